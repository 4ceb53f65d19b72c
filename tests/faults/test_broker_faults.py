"""The broker goes and comes back: the trainer neither ends nor forgets, and is quiet in the meantime."""

import math
import os
import time
from collections.abc import Callable

import pytest

from millrace.app.tools.local_broker import LocalBroker
from tests.faults.harness.account import assert_learnt_once
from tests.faults.harness.broker_disturbances import BrokerKilled, BrokerPaused, BrokerStopped
from tests.faults.harness.disturbances import Disturbance, disturbed
from tests.faults.harness.liveness import LivenessProbe
from tests.faults.harness.process import Run
from tests.faults.harness.shared import SharedTrainer
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.station import Station
from tests.faults.harness.topics import Topic
from tests.faults.harness.vitals import Vitals

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900)]

BACKLOG = 15_000
AWAY_S = float(os.environ.get("MILLRACE_TEST_AWAY_S", "8"))
"""How long the broker is away; a soak makes it minutes."""
CPUS_WHILE_AWAY = 0.35
"""One thread that spins takes a whole one."""
LINES_A_MINUTE = 60
GRACE_S = 25.0
MEMORY_BYTES = 32 * 2**20


def _connected(run: Run) -> bool:
    return bool(run.status().get("kafka", {}).get("connected"))


def _held(run: Run) -> int:
    return int(run.status().get("records", {}).get("held") or 0)


def _stop_reading_halfway(run: Run, topic: Topic) -> None:
    """Write more than the queue takes while nobody learns."""
    assert run.ask("POST", "/pause")[0] == 200
    topic.write(BACKLOG)
    run.wait_for(lambda: _held(run), "something was queued")


def _learn_what_is_queued(run: Run, topic: Topic) -> None:
    """While the broker is away: learn what was read of the last backlog, which is a part of it, and wait for more."""
    before = run.settled() or 0
    assert run.ask("POST", "/resume")[0] == 200
    run.wait_for(lambda: run.state() == "idle" and not _held(run), "what was queued was learnt")
    assert before < (run.settled() or 0) < topic.records, "the broker went while the backlog was read"


@pytest.mark.row(6)
@pytest.mark.parametrize("kind", [pytest.param(BrokerStopped, marks=pytest.mark.nightly), BrokerPaused])
def test_a_broker_that_goes_and_comes_back_while_read_ends_and_loses_nothing(
    station: Station, straight: SharedTrainer, kind: Callable[[LocalBroker], Disturbance]
) -> None:
    run, topic = straight.run, straight.topic
    _stop_reading_halfway(run, topic)
    with LivenessProbe(run) as livez:
        with disturbed(kind(station.broker)):
            _learn_what_is_queued(run, topic)
            run.wait_for(lambda: not _connected(run), "it saw that nobody answers")
            assert any("Kafka does not answer" in problem["what"] for problem in run.status()["problems"])
        run.wait_for(lambda: _connected(run), "it was answered again")
        topic.write(100)
        assert_learnt_once(run, topic)
    assert livez.answers.keys() == {200}, livez.answers


@pytest.mark.row(6)
@pytest.mark.row(7)
def test_while_a_killed_broker_is_away_the_queue_is_learnt_and_then_little_is_used(
    station: Station, straight: SharedTrainer, record_property: Callable[[str, object], None]
) -> None:
    run, topic = straight.run, straight.topic
    _stop_reading_halfway(run, topic)
    with LivenessProbe(run) as livez:
        with disturbed(BrokerKilled(station.broker)):
            away_since, said = time.monotonic(), len(run.log().splitlines())
            _learn_what_is_queued(run, topic)
            began, first = time.monotonic(), Vitals.of(run.pid)
            run.wait_for(lambda: time.monotonic() >= away_since + AWAY_S, f"{AWAY_S:g} s were over")
            ended, last = time.monotonic(), Vitals.of(run.pid)
            lines = run.log().splitlines()[said:]
        topic.write(100)
        assert_learnt_once(run, topic)
    cpus, grown = (last.cpu_s - first.cpu_s) / (ended - began), last.anonymous_bytes - first.anonymous_bytes
    for name, figure in (("away_s", AWAY_S), ("away_cpus", cpus), ("away_lines", len(lines)), ("away_bytes", grown)):
        record_property(name, figure)
    assert cpus < CPUS_WHILE_AWAY
    assert len(lines) <= LINES_A_MINUTE * math.ceil((ended - away_since) / 60), "\n".join(lines)
    assert grown < MEMORY_BYTES
    assert livez.answers.keys() == {200}, livez.answers


@pytest.mark.row(6)
def test_a_stop_while_the_broker_is_away_saves_and_the_next_start_resumes(
    station: Station, straight: SharedTrainer
) -> None:
    run, topic = straight.run, straight.topic
    _stop_reading_halfway(run, topic)
    with disturbed(BrokerKilled(station.broker)):
        _learn_what_is_queued(run, topic)
        learnt = run.settled()
        run.terminate()
        assert run.exit_code(GRACE_S) == 0, run.tail()
        assert "Traceback" not in run.log(), run.tail()
    stopped = Shelf(straight.project.folder).newest()
    assert stopped is not None
    assert stopped.settled == learnt, "what was learnt while the broker was away is saved"
    straight.make_ready()
    assert straight.run.went_on_from() == stopped.number
    assert_learnt_once(straight.run, topic)
