"""The ways in which a trainer is killed. Each names its failpoint, and waits for its moment.

Some kill at a random time, whatever the process is doing; others at a failpoint, which must be seen to have acted.
Of a group some workers are killed while it learns, one or two at once. The successor of one that was killed then dies
at a failpoint, or at any time on its way back.
"""

import http.client
import itertools
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Protocol

from millrace.app.tools.prove.checkpoint_reader import Shelf
from millrace.app.tools.prove.trainer_process import Run, UnprovenError, WaitedError
from millrace.consumers.failpoints import NAMES

_OF_OTHERS = ("group.", "archive.", "export.", "announce.", "journal.", "pins.", "mirror.")
TRAINER_POINTS = tuple(name for name in NAMES if not name.startswith(_OF_OTHERS))
"""The failpoints that each trainer passes: not those of a group's worker, of the archiver, of an export's process, of
the announcer, of the journal, of pins, of the mirror."""
SAVE_POINTS = tuple(name for name in NAMES if name.startswith(("save.", "commit.")))
"""The windows of a save, in their order."""
START_POINTS = tuple(name for name in NAMES if name.startswith("start."))
"""Passed once in a history, before its first checkpoint and after it."""
_LONGEST_START_S = 12.0
_AT_POINTS = 2
"""Thirds of a plan that strike at a point of their own; the others are drawn."""

_OF_CHIEF = ("term.", "restore.", "save.", "commit.", "rewind.")
_OF_EACH = ("call.", "group.")
GROUP_POINTS = tuple(name for name in NAMES if name.startswith((*_OF_CHIEF, *_OF_EACH)))
"""The failpoints to which a group comes for sure, once it has a checkpoint."""
_LONGEST_WAY_BACK_S = 8.0
_ANY_TIME = 4
"""Of so many successors one dies at any time, the others at a failpoint."""
_AT_ONCE = 4
"""Of so many kills while the group learns one takes two workers."""


class KillMethod(Protocol):
    """A way to kill a trainer."""

    @property
    def point(self) -> str | None:
        """The failpoint at which the trainer dies; None for a random time."""
        ...

    @property
    def failpoints(self) -> str:
        """The failpoints that are armed in the process."""
        ...

    def bring_about(self, run: Run, shelf: Shelf) -> None:
        """Wait for the moment. The process may be dead afterwards; if not, the caller kills it."""
        ...


@dataclass(frozen=True, slots=True)
class AfterStart:
    """A number of seconds after the start, whatever the trainer is doing."""

    seconds: float
    point: str | None = None
    failpoints: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s after its start"

    def bring_about(self, run: Run, shelf: Shelf) -> None:  # noqa: ARG002 - the Protocol's signature
        """Wait for that second."""

        def is_time() -> bool:
            run.has_called()  # notes when, where it happens meanwhile
            return run.age_s >= self.seconds

        run.wait_for(is_time, f"second {self.seconds:.1f} of its life")


@dataclass(frozen=True, slots=True)
class WhileLearning:
    """A number of seconds after the first call."""

    seconds: float
    point: str | None = None
    failpoints: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s after its first call"

    def bring_about(self, run: Run, shelf: Shelf) -> None:  # noqa: ARG002 - the Protocol's signature
        """Wait for the call, then for that second."""
        ends_at = run.wait_for_first_call() + self.seconds
        run.wait_for(lambda: run.age_s >= ends_at, f"{self.seconds:.1f} s of learning")


@dataclass(frozen=True, slots=True)
class AfterSave:
    """A number of seconds after the first checkpoint that the trainer has published."""

    seconds: float
    point: str | None = None
    failpoints: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s after a checkpoint"

    def bring_about(self, run: Run, shelf: Shelf) -> None:
        """Wait for the checkpoint, then for that second."""
        before = shelf.numbers()
        run.wait_for_first_call()
        run.wait_for(lambda: shelf.numbers()[-1:] > before[-1:], "it published a checkpoint")
        ends_at = run.age_s + self.seconds
        run.wait_for(lambda: run.age_s >= ends_at, f"{self.seconds:.1f} s after that")


@dataclass(frozen=True, slots=True)
class AtPoint:
    """At a failpoint, after it was passed a number of times."""

    point: str
    after: int = 0

    @property
    def failpoints(self) -> str:
        """The failpoint, armed to kill."""
        return f"{self.point}=kill:after={self.after}"

    def __str__(self) -> str:
        return f"at {self.point}: {NAMES[self.point]}"

    def bring_about(self, run: Run, shelf: Shelf) -> None:
        """Do what leads to the failpoint, and wait until the trainer has died of it."""
        if self.point.startswith("rewind."):
            # Command a rewind to the oldest checkpoint, which the trainer does not survive.
            run.wait_for_first_call()
            run.wait_for(run.ready, "it took commands")
            with suppress(OSError, http.client.HTTPException):
                status, answer = run.ask("POST", "/rewind?wait=60s", {"to": shelf.numbers()[0], "reason": "a proof"})
                raise WaitedError(f"the rewind that was to kill the trainer was answered with {status}: {answer}")
        if run.exit_code() != -signal.SIGKILL or run.hits(self.point) != 1:
            raise UnprovenError(f"the kill at {self.point} did not hit:\n{run.tail()}")


def _at_save(random: Random) -> AtPoint:
    return AtPoint(random.choice(SAVE_POINTS), random.randrange(3))


RANDOM_KINDS: Sequence[Callable[[Random], KillMethod]] = (
    lambda random: AfterStart(random.uniform(0, _LONGEST_START_S)),
    lambda random: WhileLearning(random.uniform(0, 2)),
    _at_save,
    lambda random: AfterSave(random.uniform(0, 1)),
    _at_save,
)
"""How a kill is drawn: a good third of them inside a save, the others at any time."""


_PASSED_ONCE = ("term.", "start.", "restore.", "rewind.", "fallback.", "careful.")
"""Points that a process passes once, or once for what leads there."""


def plan(random: Random, rounds: int, points: Sequence[str] = TRAINER_POINTS) -> Iterator[KillMethod]:
    """Draw the kills of one history: first those of its beginning, then other failpoints and random times, shuffled."""
    beginning: Sequence[KillMethod] = [AtPoint(point) for point in START_POINTS if point in points][: rounds // 3]
    left = rounds - len(beginning)
    # The failpoints that come after the beginning, those of a save and others alternating.
    drawn = random.sample(points, len(points))
    of_save = [point for point in drawn if point in SAVE_POINTS]
    others = [point for point in drawn if point not in SAVE_POINTS and point not in START_POINTS]
    mixed = itertools.chain.from_iterable(itertools.zip_longest(of_save, others))
    at_points: list[KillMethod] = [
        AtPoint(point, 0 if point.startswith(_PASSED_ONCE) else random.randrange(2))
        for point in mixed
        if point is not None
    ]
    later = at_points[: _AT_POINTS * left // 3]
    kinds = itertools.islice(itertools.cycle(RANDOM_KINDS), left - len(later))
    later += [kind(random) for kind in kinds]
    random.shuffle(later)
    yield from beginning
    yield from later


@dataclass(frozen=True, slots=True)
class GroupKill:
    """One kill of one worker or of several at once, by their numbers; the chief is 0."""

    members: tuple[int, ...]
    method: KillMethod
    """The moment, by the process of the first of them."""
    of_successor: bool = False
    """Whether it dies in the process that takes the place of the one that was killed before."""

    @property
    def point(self) -> str | None:
        """The failpoint; None for a random time."""
        return self.method.point

    def __str__(self) -> str:
        names = " and ".join(f"worker {member}" if member else "the chief" for member in self.members)
        return f"{names}, {self.method}"


def group_plan(random: Random, kills: int, workers: int) -> Iterator[GroupKill]:
    """Draw the kills of so many processes in all: of one or two that learn, then of the successor of the first."""
    points = itertools.cycle(random.sample(GROUP_POINTS, len(GROUP_POINTS)))
    left = kills
    while left:
        point = next(points)
        member = 0 if point.startswith(_OF_CHIEF) else random.randrange(workers)
        members = [member]
        if left > 2 and random.randrange(_AT_ONCE) == 0:
            members.append(random.choice([other for other in range(workers) if other != member]))
        yield GroupKill(tuple(members), AfterSave(random.uniform(0, 2)))
        left -= len(members)
        if left:
            successor: KillMethod = AtPoint(point)
            if random.randrange(_ANY_TIME) == 0:
                successor = AfterStart(random.uniform(0, _LONGEST_WAY_BACK_S))
            yield GroupKill((member,), successor, of_successor=True)
            left -= 1
