"""How fast a topic's records come, as `millrace init` asks Kafka."""

import time

import pytest

from millrace.app.settings.sections.kafka import KafkaSettings
from millrace.app.tools.init import topic_sample
from millrace.app.tools.init.topic_sample import sampled_records
from tests.conftest import MakeTopic, Produce

pytestmark = pytest.mark.broker
MINUTE_MS = 60_000


def _looked_at(broker: str, name: str) -> tuple[int, float | None]:
    found = sampled_records(KafkaSettings(bootstrap_servers=(broker,), topics=(name,)))
    held, rate = found.held, found.records_per_s
    return held, rate


def test_a_topic_that_has_been_written_to_for_half_an_hour_has_a_rate(
    broker: str, topic: MakeTopic, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, now = topic(partitions=2), round(time.time() * 1000)
    times = [now - 30 * MINUTE_MS + second * 1000 for second in range(0, 1800, 2)]
    produce(name, [(number % 2, b"%d" % (number // 2)) for number in range(len(times))], timestamps=times)
    held, rate = _looked_at(broker, name)
    assert held == 900
    assert rate == pytest.approx(0.5, rel=0.05)
    # Of what is more than it looks at, ten stretches that are spread over each partition.
    monkeypatch.setattr(topic_sample, "_MOST", 100)
    kafka = KafkaSettings(bootstrap_servers=(broker,), topics=(name,))
    spread = [b"%d" % (445 * place // 9 + offset) for place in range(10) for offset in range(5)]
    assert list(sampled_records(kafka).values) == 2 * spread
    assert list(sampled_records(kafka, places=1).values) == 2 * [b"%d" % offset for offset in range(50)]
    monkeypatch.setattr(topic_sample, "_MOST_BYTES", 100)
    few = {int(value) for value in sampled_records(kafka).values}
    assert min(few) == 0
    assert max(few) >= 445


def test_a_topic_that_was_filled_just_now_has_none(broker: str, topic: MakeTopic, produce: Produce) -> None:
    name = topic()
    produce(name, [b'{"x":1}'] * 50)
    assert _looked_at(broker, name) == (50, None)
