"""Records that are learnt again wait for their labels: while Kafka is away, no label counts as gone."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Thread

import pytest

from millrace.app.service import label_join
from millrace.app.service.label_join import awaited, why_away
from millrace.consumers.errors import DataLossError, UnreachableError
from millrace.consumers.kafka.positions import Start
from millrace.consumers.kafka.statistics import SourceMeter, SourceStatistics
from millrace.consumers.records import Partition
from millrace.pipelines.gates.label_gate import LabelGate
from millrace.pipelines.stream.assemble import Shape
from tests.conftest import WaitFor
from tests.pipelines.gates.test_label_gate import EARLY, WITHIN, Joined, records
from tests.pipelines.shaping.labels.label_log import Click, LabelLog

BEGAN = round(time.time() * 1000) - 3_600_000


class Broker:
    """A source's Kafka, which answers or not."""

    def __init__(self, *, connected: bool = True) -> None:
        self.connected = connected

    def statistics(self) -> SourceStatistics:
        found = SourceMeter().snapshot(loop_lag_p99_s=0.0)
        return replace(found, connected=self.connected, last_error=None if self.connected else "no answer for 5 s")

    def resolve_start(self, start: Start) -> Mapping[Partition, int]:
        raise AssertionError(start)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[LabelLog, Broker], Shape]:
    monkeypatch.setattr(label_join, "_GONE_S", 0.3)
    monkeypatch.setattr(label_join, "_AWAY_S", 1.5)

    def make(log: LabelLog, broker: Broker) -> Shape:
        joined = Joined(log)
        gate = LabelGate(joined.shaper.rules, joined.reader, away=lambda: why_away([Broker(), broker]))
        return awaited(gate, joined.shape)

    return make


def test_labels_that_do_not_come_while_kafka_answers_are_lost(waiting: Callable[[LabelLog, Broker], Shape]) -> None:
    shape = waiting(LabelLog(), Broker())
    with pytest.raises(DataLossError, match=r"labels of clicks:0 up to offset 0 do not come"):
        shape(records(BEGAN))


def test_labels_come_after_kafka_was_away_for_longer_than_labels_may_be(
    waiting: Callable[[LabelLog, Broker], Shape], wait_for: WaitFor
) -> None:
    log, broker = LabelLog(), Broker(connected=False)
    shape, learnt = waiting(log, broker), list[Sequence[float]]()
    thread = Thread(target=lambda: learnt.append(shape(records(BEGAN))[0].labels["later"].tolist()))
    thread.start()
    thread.join(0.6)
    assert thread.is_alive()
    log.add([Click(0, BEGAN + 5, 1.0), Click(-1, BEGAN + WITHIN + EARLY)])
    broker.connected = True
    wait_for(lambda: learnt == [[1.0]])
    thread.join(10)


def test_a_kafka_that_stays_away_is_no_data_loss(waiting: Callable[[LabelLog, Broker], Shape]) -> None:
    shape = waiting(LabelLog(), Broker(connected=False))
    with pytest.raises(UnreachableError, match=r"Kafka has been away for \d+ s \(no answer for 5 s\)"):
        shape(records(BEGAN))
