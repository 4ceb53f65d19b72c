"""The ordered end: by signal in any phase, by reaching what was to be learnt."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.consumers.reasons import Reason
from millrace.training.checkpoints.manifest import SaveReason
from tests.faults.campaigns.terms import terminate
from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.kafka import committed
from tests.faults.harness.process import Run
from tests.faults.harness.records import POISON, Mixture
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.spikes import QUIET

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.row(5)]
PARTITIONS = 2
MOMENTS = 5
"""Kinds of them that `terms` knows."""
GRACE_S = 25.0
SOON_S = 10.0
SLOW_MODEL = """\
import time


def build_model():
    print("building", flush=True)
    time.sleep(120)
"""


@pytest.mark.law
def test_sigterm_while_learning_saves_commits_and_leaves_nothing_to_be_read_again(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(PARTITIONS, Mixture(share=0.01, kinds=QUIET))
    made = project(topic, checkpoints={"every": "1h"})
    shelf = Shelf(made.folder)
    topic.write(500)
    topic.flow(1000)
    with Run(made, failpoints="call.settled=sleep:0, save.before_data=sleep:0, commit.after=sleep:0", cold=True) as run:
        run.wait_for_first_call()
        run.wait_for(lambda: run.ask("GET", "/history?span=24h")[1].get("last"), "its curves had begun")
        asked = time.monotonic()
        run.terminate()
        assert run.exit_code() == 0, run.tail()
        assert time.monotonic() - asked < GRACE_S
    topic.still()

    log = run.log()
    last = [log.rfind(f"failpoint {point}: ") for point in ("call.settled", "save.before_data", "commit.after")]
    assert last == sorted(last), "the last call, then the last checkpoint, then its commit"
    stopped = shelf.newest()
    assert stopped is not None
    assert stopped.manifest.reason == SaveReason.STOP
    assert committed(topic.bootstrap, made.group, topic.name, PARTITIONS) == stopped.positions

    with Run(made, "--until", "now") as run:
        run.finish()
        assert run.went_on_from() == stopped.number
    end = shelf.newest()
    assert end is not None
    assert end.seen == {partition: topic.evidence(partition) for partition in range(PARTITIONS)}

    # Nothing more comes, and the page still shows what the processes before have scored, and what happened.
    with Run(made) as run:
        run.wait_for(lambda: run.state() == "idle", "it was idle")
        run.wait_for(lambda: run.ask("GET", "/history?span=24h")[1].get("last"), "it had the curves of before")
        past, events = run.ask("GET", "/history?span=24h")[1], run.ask("GET", "/events")[1]["events"]
        assert [value for value in past["mean"]["metric"] if value is not None]
        assert past["last"]["at"] < time.time()
        assert [event["kind"] for event in events].count("started") == 3
        assert [event["id"] for event in events] == sorted({event["id"] for event in events})
        run.terminate()
        assert run.exit_code() == 0, run.tail()


def test_sigterm_in_a_call_save_restore_or_trace_ends_well_and_replays_nothing(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = terminate(broker, tmp_path, rounds=MOMENTS, seed=seed, cold=False)
    record_property("terms", figures.summary())
    assert len(figures.moments) == MOMENTS
    assert figures.exits == {0: MOMENTS}
    assert max(figures.seconds_to_exit) < GRACE_S
    assert (figures.replayed, figures.lost, figures.learnt_twice) == (0, 0, 0)


def test_a_second_signal_ends_at_once_what_the_first_is_still_saving(stream: MakeStream, project: MakeProject) -> None:
    topic = stream()
    made = project(topic, checkpoints={"every": "1h"})
    topic.write(300)
    with Run(made, failpoints="save.before_data=sleep:120:after=1") as run:
        run.wait_for_first_call()
        run.terminate()
        run.wait_for(lambda: run.hits("save.before_data"), "the last save began")
        run.terminate()
        assert run.exit_code(SOON_S) == 1, run.tail()
    assert Shelf(made.folder).contents().good == (0,)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells which signals a process takes")
def test_sigterm_while_it_is_still_importing_ends_well(stream: MakeStream, project: MakeProject) -> None:
    made = project(stream())
    with Run(made, cold=True) as run:
        run.wait_for(lambda: run.takes(signal.SIGTERM), "it took SIGTERM")
        run.terminate()
        assert run.exit_code(SOON_S) == 0, run.tail()
        assert not run.said("writing to"), "it was asked before it began"
    assert not made.folder.root.exists()


def test_sigterm_while_the_model_is_built_ends_well_and_publishes_nothing(
    stream: MakeStream, project: MakeProject
) -> None:
    made = project(stream(), model={"build": "./slow.py:build_model"})
    (made.path / "slow.py").write_text(SLOW_MODEL)
    with Run(made) as run:
        run.wait_for_line("building")
        run.terminate()
        assert run.exit_code(SOON_S) == 0, run.tail()
    assert Shelf(made.folder).numbers() == []


@pytest.mark.row(23)
def test_sigterm_on_an_idle_topic_ends_soon(stream: MakeStream, project: MakeProject) -> None:
    made = project(stream(PARTITIONS))
    with Run(made) as run:
        run.wait_for_line("incarnation 1 begins")
        run.wait_for(lambda: run.state() == "idle", "it was idle")
        run.terminate()
        assert run.exit_code(SOON_S) == 0, run.tail()


def test_until_now_on_an_empty_topic_ends_well(stream: MakeStream, project: MakeProject) -> None:
    made = project(stream(PARTITIONS))
    with Run(made, "--until", "now") as run:
        run.finish()
    newest = Shelf(made.folder).newest()
    assert newest is not None
    assert newest.positions == dict.fromkeys(range(PARTITIONS), 0)


def test_max_records_ends_when_exactly_so_many_were_learnt(stream: MakeStream, project: MakeProject) -> None:
    found_by_learning = {Reason.UPDATE_NOT_FINITE, Reason.STEP_RAISED}
    undecodable = tuple(reason for reason in POISON if reason not in found_by_learning)
    topic = stream(PARTITIONS, Mixture(share=0.05, kinds=undecodable))
    topic.write(500)
    made = project(topic)
    with Run(made, "--max-records", "333") as run:
        run.finish()
    newest = Shelf(made.folder).newest()
    assert newest is not None
    assert sum(account.learnt for account in newest.ledger.values()) == 333
    assert sum(evidence.count for evidence in newest.seen.values()) == 333
    assert all(account.balanced for account in newest.ledger.values())
