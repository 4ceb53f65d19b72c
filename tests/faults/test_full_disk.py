"""A disk that is full for one save: training goes on, nothing of it is committed, and the next save makes up for it."""

import pytest

from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.kafka import committed
from tests.faults.harness.process import Run
from tests.faults.harness.shelf import Shelf

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(16)]
PARTITIONS = 2
FULL = "save.after_data"


def test_training_continues_over_a_full_disk_and_commits_nothing_until_a_save_works(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(PARTITIONS)
    made = project(topic)
    topic.flow(500)
    armed = f"{FULL}=full:after=1:once, save.after_rename=sleep:0, commit.after=sleep:0, call.settled=sleep:0"
    with Run(made, failpoints=armed) as run:
        run.wait_for_line("a checkpoint failed, and the next save tries again")
        at_failure = run.log()
        assert "No space left on device" in at_failure
        commits = run.hits("commit.after")
        calls = run.hits("call.settled")
        run.wait_for(lambda: run.hits("call.settled") > calls, "training went on")
        run.wait_for(lambda: run.hits("commit.after") > commits, "a later save was committed")
        log = run.log()
        again = log.index("failpoint save.after_rename: ", log.index(f"failpoint {FULL}: full"))
        assert "failpoint commit.after: " not in log[log.index(f"failpoint {FULL}: full") : again]
        topic.still()
        run.wait_for(lambda: run.settled() == topic.records, "all was settled")
        run.terminate()
        assert run.exit_code() == 0, run.tail()
    shelf = Shelf(made.folder)
    end = shelf.newest()
    assert end is not None
    assert shelf.contents().torn == 0
    assert end.seen == {partition: topic.evidence(partition) for partition in range(PARTITIONS)}
    assert committed(topic.bootstrap, made.group, topic.name, PARTITIONS) == end.positions
