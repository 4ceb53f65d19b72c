"""Killed around a rewind: what was last ordered is what a restart finds."""

import http.client
import signal

import pytest

from millrace.training.ledger.offset_checksum import Evidence
from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.process import Run
from tests.faults.harness.shelf import Shelf, Statement

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(4)]
PARTITIONS = 2
FIRST, SKIPPED = 400, range(450, 500)


def _newest(shelf: Shelf) -> Statement:
    newest = shelf.newest()
    assert newest is not None
    return newest


def _learn_all(run: Run, offsets: int) -> None:
    run.wait_for(lambda: run.settled() == offsets, f"{offsets} offsets were settled")


def _save(run: Run) -> int:
    status, answer = run.ask("POST", "/checkpoints?wait=60s", {"note": "for the rewind"})
    assert status == 201, answer
    return int(answer["checkpoint"]["number"])


def _rewind(run: Run, to: int, skip: str) -> None:
    """Order it, of a process that is about to die of it."""
    run.wait_for(run.ready, "it took orders")
    with pytest.raises((OSError, http.client.HTTPException)):
        run.ask("POST", "/rewind?wait=60s", {"to": to, "skip": [skip], "reason": "a bad hour"})
    assert run.exit_code() == -signal.SIGKILL, run.tail()


@pytest.mark.law
def test_a_kill_around_a_rewind_restarts_on_the_timeline_that_was_last_published(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(PARTITIONS)
    topic.write(FIRST)
    made = project(topic, checkpoints={"every": "1h"})
    shelf = Shelf(made.folder)
    skip = f"{topic.name}:0:{SKIPPED.start}-{SKIPPED.stop - 1}"

    with Run(made, failpoints="rewind.before_order=kill") as run:
        _learn_all(run, PARTITIONS * FIRST)
        target = _save(run)
        topic.write(FIRST)
        _learn_all(run, PARTITIONS * 2 * FIRST)
        abandoned = _save(run)
        _rewind(run, target, skip)
    assert _newest(shelf).number == abandoned, "an order that nobody acknowledged has changed nothing"
    assert _newest(shelf).skips == ()

    with Run(made, failpoints="rewind.after_order=kill") as run:
        _rewind(run, target, skip)
        assert run.went_on_from() == abandoned
    ordered = _newest(shelf)
    assert (ordered.number, ordered.manifest.parent) == (abandoned + 1, target)
    assert ordered.positions == dict.fromkeys(range(PARTITIONS), FIRST)

    with Run(made, failpoints="call.settled=kill") as run:
        assert run.exit_code() == -signal.SIGKILL, run.tail()
        assert run.went_on_from() == ordered.number

    topic.write(100)
    with Run(made, "--until", "now") as run:
        run.finish()
        assert run.went_on_from() == ordered.number
    end, learnt = _newest(shelf), set(range(2 * FIRST + 100))
    assert end.seen == {0: Evidence.of(sorted(learnt - set(SKIPPED))), 1: Evidence.of(sorted(learnt))}
    assert [sum(end.ledger[partition].skipped.values()) for partition in range(PARTITIONS)] == [len(SKIPPED), 0]
    assert all(account.balanced and account.position == len(learnt) for account in end.ledger.values())
