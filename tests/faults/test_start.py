"""Killed before the first save: the beginning is a checkpoint too."""

import signal
import time
from dataclasses import dataclass
from random import Random

import pytest

from millrace.app.tools.prove import checkpoint_reader, trainer_process
from millrace.training.ledger.offset_checksum import Evidence
from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.faults import AfterStart, AtPoint, KillMethod
from tests.faults.harness.process import Run
from tests.faults.harness.shelf import Shelf

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(3)]
PARTITIONS = 2
BEGINNING = (AtPoint("start.before_zero"), AtPoint("start.after_zero"))
RESTORES = (AtPoint("restore.before"), AtPoint("restore.after"))
SOON, ONCE_TAKEN = 2, 1
"""Kills up to 3 s after a cold start, which the imports alone take, and up to 3 s after the folder was taken."""
LONGEST_S = 3.0


def test_start_latest_skips_nothing_written_later_though_killed_before_any_save(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(PARTITIONS)
    topic.write(50)
    made = project(topic, kafka={"start": "latest"}, checkpoints={"every": "1h"})
    shelf = Shelf(made.folder)

    for point, written in (("start.after_zero", 70), ("call.settled", 30)):
        with Run(made, failpoints=f"{point}=kill", cold=point == "start.after_zero") as run:
            assert run.exit_code() == -signal.SIGKILL, run.tail()
            assert run.hits(point) == 1
        assert shelf.numbers() == [0], "killed before the first save"
        topic.write(written)

    with Run(made, "--until", "now") as run:
        run.finish()
        assert run.went_on_from() == 0
    newest = shelf.newest()
    assert newest is not None
    for partition in range(PARTITIONS):
        account = newest.ledger[partition]
        assert (account.start, account.position, account.learnt) == (50, 150, 100)
        assert newest.seen[partition] == Evidence.of(range(50, 150))


@dataclass(frozen=True, slots=True)
class AfterTaking:
    """So many seconds after it has taken the folder."""

    seconds: float
    point: str | None = None
    failpoints: str = ""

    def bring_about(self, run: trainer_process.Run, checkpoints: checkpoint_reader.Shelf) -> None:
        """Wait for that second."""
        run.wait_for_line("writing to")
        ends_at = run.age_s + self.seconds
        run.wait_for(lambda: run.age_s >= ends_at, f"{self.seconds:.1f} s with the folder")


def _later(random: Random) -> list[KillMethod]:
    """Return kills of starts that would restore: some while they do, most at any time before."""
    faults: list[KillMethod] = [*RESTORES]
    faults += [AfterStart(random.uniform(0, LONGEST_S)) for _ in range(SOON)]
    faults += [AfterTaking(random.uniform(0, LONGEST_S)) for _ in range(ONCE_TAKEN)]
    random.shuffle(faults)
    return faults


def test_a_start_killed_again_and_again_converges_and_leaves_no_more_files_than_one(
    stream: MakeStream, project: MakeProject
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    topic = stream(PARTITIONS)
    made = project(topic, kafka={"start": "latest"}, checkpoints={"every": "1h"})
    checkpoints = Shelf(made.folder)

    def strike(fault: KillMethod) -> None:
        with Run(made, failpoints=fault.failpoints, cold=isinstance(fault, AfterStart)) as run:
            fault.bring_about(run, checkpoints)

    def files() -> list[str]:
        # The page's history is one file, which a start writes that lives for a minute.
        every = (path for path in made.folder.root.rglob("*") if path.is_file())
        return [path.name for path in every if path.parent != made.folder.history]

    for fault in BEGINNING:
        assert checkpoints.numbers() == []
        topic.write(10)  # before number 0 nobody has promised to learn it
        strike(fault)
    assert checkpoints.numbers() == [0]
    begun = 10 * len(BEGINNING)
    strike(RESTORES[0])
    after_one = len(files())
    for later in _later(Random(seed)):
        strike(later)
        topic.write(10)
    left = files()
    assert len(left) <= after_one + 2, f"besides those only a claim and a record of the start that died last: {left}"

    with Run(made, "--until", "now") as run:
        run.finish()
        assert run.went_on_from() == 0
    newest = checkpoints.newest()
    assert newest is not None
    end = begun + 10 * (len(RESTORES) + SOON + ONCE_TAKEN)
    for partition in range(PARTITIONS):
        account = newest.ledger[partition]
        assert (account.start, account.position, account.learnt) == (begun, end, end - begun)
        assert newest.seen[partition] == Evidence.of(range(begun, end))


def test_a_restart_remembers_the_proof_and_an_edited_model_is_proven_again(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(PARTITIONS)
    topic.write(300)
    made = project(topic)
    remembers, proves = "the proof of an earlier start holds", "proving the model again"
    with Run(made, failpoints="call.settled=kill", cold=True) as run:
        assert run.exit_code() == -signal.SIGKILL, run.tail()
        assert not run.said(remembers)
    with Run(made, "--until", "now", cold=True) as run:
        run.finish()
        assert run.said(remembers)
        assert not run.said(proves)

    model = made.path / "model.py"
    model.write_text(model.read_text() + "\n# edited\n")
    with Run(made, "--until", "now", cold=True) as run:
        run.finish()
        assert run.said(proves)
