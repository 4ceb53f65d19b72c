"""The campaign of ordered ends: SIGTERM at any moment, and what a restart has to read again: nothing.

Each round starts the trainer, waits for a moment (in a call, in a save, in a restore, while tracing, at any time), asks
it to end, and looks: exit code 0 within the grace, and no call was settled after the last checkpoint was copied.
"""

import itertools
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from millrace.app.tools.prove.campaign import compared, spread
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.spikes import QUIET
from tests.faults.harness.topics import Topic

PARTITIONS = 4
GRACE_S = 25.0
_SETTLED, _COPIED = "call.settled", "save.before_data"
_SEEN = f"{_SETTLED}=sleep:0, {_COPIED}=sleep:0"
_RECORDS_PER_S = 400.0
"""Few, because each call and each save writes a line."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When the trainer is asked to end."""

    name: str
    lingers: str = ""
    """The failpoint at which it is held for a moment, and asked."""
    after: int = 0
    line: str = ""
    """What it says then, where there is no failpoint."""
    seconds: float = 0.0
    """So many seconds after its first call, where there is neither."""
    twice: bool = False

    @property
    def failpoints(self) -> str:
        """What is armed: every call and every copy is told; one point lingers."""
        if not self.lingers:
            return _SEEN
        told = [point for point in _SEEN.split(", ") if not point.startswith(self.lingers)]
        return ", ".join([*told, f"{self.lingers}=sleep:0.3:after={self.after}"])

    def wait(self, run: Run) -> None:
        """Wait until the moment has come."""
        if self.lingers:
            run.wait_for(lambda: run.hits(self.lingers), f"it was at {self.lingers}")
        elif self.line:
            run.wait_for_line(self.line)
        else:
            ends_at = run.wait_for_first_call() + self.seconds
            run.wait_for(lambda: run.age_s >= ends_at, f"{self.seconds:.1f} s of learning")


def moments(random: Random) -> Iterator[Moment]:
    """Yield moments without end, each kind in turn."""
    for _ in itertools.count():
        yield Moment("in a call", lingers="call.before", after=random.randrange(1, 6))
        yield Moment("while learning", seconds=random.uniform(0, 2))
        yield Moment("in a save", lingers="save.after_data", after=random.randrange(1, 3))
        yield Moment("in a restore", lingers="restore.before")
        yield Moment("while tracing", line="model: building")


@dataclass(slots=True, kw_only=True)
class Figures:
    """What the campaign comes to."""

    seed: int
    terms: int = 0
    moments: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    seconds_to_exit: list[float] = field(default_factory=list)
    replayed: int = 0
    """Ends after which a restart had something to read again."""
    lost: int = 0
    learnt_twice: int = 0
    seconds: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether the promise held."""
        in_time = all(seconds < GRACE_S for seconds in self.seconds_to_exit)
        return in_time and set(self.exits) == {0} and not (self.replayed or self.lost or self.learnt_twice)

    def summary(self) -> dict[str, Any]:
        """Return the figures as the report holds them."""
        counted = {"moments": dict(self.moments), "exits": dict(self.exits)}
        return {**asdict(self), **counted, "seconds_to_exit": spread(self.seconds_to_exit), "kept": self.kept}


def terminate(bootstrap: str, folder: Path, *, rounds: int, seed: int, cold: bool = True) -> Figures:
    """Ask the trainer to end `rounds` times, then drain, and compare what it has learnt with what was written."""
    began, figures = time.monotonic(), Figures(seed=seed)
    with Topic(
        bootstrap, f"terms-{uuid.uuid4().hex[:8]}", PARTITIONS, Mixture(share=0.004, kinds=QUIET), seed
    ) as topic:
        topic.write(500)
        topic.flow(_RECORDS_PER_S)
        project = Project(folder, topic)
        for moment in itertools.islice(moments(Random(seed)), rounds):
            _ask(project, moment, figures, cold=cold)
        topic.still()
        with Run(project, "--until", "now", cold=cold) as run:
            run.finish()
        newest = Shelf(project.folder).newest()
        assert newest is not None
        for number in range(PARTITIONS):
            lost, twice = compared(topic.evidence(number), newest.seen[number])
            figures.lost += lost
            figures.learnt_twice += twice
    figures.seconds = round(time.monotonic() - began, 1)
    return figures


def _ask(project: Project, moment: Moment, figures: Figures, *, cold: bool) -> None:
    with Run(project, failpoints=moment.failpoints, cold=cold) as run:
        moment.wait(run)
        asked = time.monotonic()
        run.terminate()
        code = run.exit_code()
    figures.seconds_to_exit.append(round(time.monotonic() - asked, 2))
    figures.terms += 1
    figures.moments[moment.name] += 1
    figures.exits[code] += 1
    log = run.log()
    figures.replayed += log.rfind(f"failpoint {_SETTLED}: ") > log.rfind(f"failpoint {_COPIED}: ")
