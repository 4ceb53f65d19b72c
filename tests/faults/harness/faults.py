"""Faults: the ways in which a process is killed. Each says what it arms, and strikes until the process is dead."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol

from tests.faults.harness.process import Run

SAVE_POINTS = (
    "save.before_data",
    "save.after_data",
    "save.before_manifest",
    "save.after_manifest",
    "save.after_rename",
    "save.before_prune",
    "commit.before",
    "commit.after",
)
"""The windows of a save, in their order."""


class Fault(Protocol):
    """A way to die."""

    @property
    def failpoints(self) -> str:
        """What is armed in the process."""
        ...

    def bring_about(self, run: Run) -> None:
        """Wait for the moment; the process may be dead by then, or is killed by whoever asked."""
        ...


@dataclass(frozen=True, slots=True)
class AfterStart:
    """So many seconds after its start, whatever it is doing."""

    seconds: float
    failpoints: str = ""

    def bring_about(self, run: Run) -> None:
        """Wait for that second."""
        run.wait_for(lambda: run.age_s >= self.seconds, f"second {self.seconds:.1f} of its life")


@dataclass(frozen=True, slots=True)
class WhileLearning:
    """So many seconds after its first call."""

    seconds: float
    failpoints: str = ""

    def bring_about(self, run: Run) -> None:
        """Wait for the call, then for that second."""
        ends_at = run.wait_for_first_call() + self.seconds
        run.wait_for(lambda: run.age_s >= ends_at, f"{self.seconds:.1f} s of learning")


@dataclass(frozen=True, slots=True)
class InSave:
    """In a window of a save, after so many saves that went well."""

    point: str
    after: int = 0

    @property
    def failpoints(self) -> str:
        """The window, armed to kill."""
        return f"{self.point}=kill:after={self.after}"

    def bring_about(self, run: Run) -> None:
        """Wait until it has died there."""
        assert run.exit_code() == -signal.SIGKILL, run.tail()
        assert run.hits(self.point) == 1, run.tail()


def faults(random: Random, rounds: int) -> Iterator[Fault]:
    """A fault a round: a third of them anywhere from the start on, a third while it learns, a third inside a save."""
    kinds = (["start", "learning", "save"] * rounds)[:rounds]
    random.shuffle(kinds)
    for kind in kinds:
        if kind == "start":
            yield AfterStart(random.uniform(0, 12))
        elif kind == "learning":
            yield WhileLearning(random.uniform(0, 3))
        else:
            yield InSave(random.choice(SAVE_POINTS), random.randrange(3))
