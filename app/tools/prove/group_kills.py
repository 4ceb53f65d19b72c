"""The ways in which the workers of a group are killed: which of them, and when. Pure.

Some are killed while the group learns, one or two at once. The successor of one that was killed then dies at a
failpoint, or at any time on its way back.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from millrace.app.tools.prove.kills import AfterSave, AfterStart, AtPoint, KillMethod
from millrace.consumers.failpoints import NAMES

_OF_CHIEF = ("term.", "restore.", "save.", "commit.", "rewind.")
_OF_EACH = ("call.", "group.")
POINTS = tuple(name for name in NAMES if name.startswith((*_OF_CHIEF, *_OF_EACH)))
"""The failpoints to which a group comes for sure, once it has a checkpoint."""
_LONGEST_WAY_BACK_S = 8.0
_ANY_TIME = 4
"""Of so many successors one dies at any time, the others at a failpoint."""
_AT_ONCE = 4
"""Of so many kills while the group learns one takes two workers."""


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
    points = itertools.cycle(random.sample(POINTS, len(POINTS)))
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
            yield GroupKill((member,), _of_successor(point, random), of_successor=True)
            left -= 1


def _of_successor(point: str, random: Random) -> KillMethod:
    if random.randrange(_ANY_TIME) == 0:
        return AfterStart(random.uniform(0, _LONGEST_WAY_BACK_S))
    return AtPoint(point)
