"""The deck of a group's campaign: which faults strike whom, so that a campaign of 60 kills meets every kind. Pure.

A strike at a failpoint opens with the end of a member, by SIGKILL or SIGTERM, whose successor dies at the point. Which
of the workers is meant is drawn when the strike is carried out, as their number changes on the way.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from random import Random

from millrace.consumers.failpoints import NAMES


class Role(StrEnum):
    """Whom a strike hits."""

    CHIEF = "chief"
    WORKER = "worker"
    ALL = "all"
    """The failpoint is armed in all members; whoever comes to it dies."""


class Kind(StrEnum):
    """What is done."""

    KILL = "kill"
    KILL_TWO = "kill two at once"
    KILL_COMING_BACK = "drain, and kill on the way back"
    REWIND = "rewind with a skip, and kill"
    POINT = "kill at a failpoint"
    STOP = "stop until the others give it up"
    STOP_BRIEFLY = "stop briefly, which the others wait out"


class Opening(StrEnum):
    """How a member ends, whose successor dies at a failpoint."""

    NONE = "none"
    """Nothing runs yet."""
    DRAIN = "drain"
    """Not of all at once: whoever begins again meanwhile does not listen for a moment."""
    KILL = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One card."""

    kind: Kind
    role: Role
    point: str = ""
    opening: Opening = Opening.NONE

    @property
    def kills(self) -> int:
        """How many processes SIGKILL ends, at least."""
        match self.kind:
            case Kind.STOP | Kind.STOP_BRIEFLY:
                return 0
            case Kind.KILL_TWO:
                return 2
            case _:
                return 1 + (self.opening is Opening.KILL)

    @property
    def place(self) -> str:
        """The failpoint and who dies there, as figures name it."""
        return f"{self.point} of {'any' if self.role is Role.ALL else f'the {self.role}'}"

    def __str__(self) -> str:
        return f"{self.place}, after {self.opening}" if self.point else f"{self.kind}: {self.role}"


_OF_CHIEF = ("term.", "restore.", "save.", "prune.", "commit.", "rewind.", "fallback.")
_OF_EACH = ("call.", "group.")
_OF_ANY = ("careful.",)
_FIRST = ("start.",)
_NONE_OF_A_MEMBER = ("archive.", "export.", "announce.", "journal.", "pins.", "mirror.")
_ROLES: Mapping[tuple[str, ...], tuple[Role, ...]] = {
    _FIRST: (Role.CHIEF,),
    _OF_CHIEF: (Role.CHIEF,),
    _OF_EACH: (Role.CHIEF, Role.WORKER),
    _OF_ANY: (Role.ALL,),
}
BIG = 30
"""A campaign of so many kills begins with those before the first checkpoint."""


def _at_points() -> Iterator[Strike]:
    for name in NAMES:
        if name.startswith(_NONE_OF_A_MEMBER):
            continue
        (roles,) = [roles for prefixes, roles in _ROLES.items() if name.startswith(prefixes)]
        yield from (Strike(kind=Kind.POINT, role=role, point=name) for role in roles)


POINTS = tuple(_at_points())
"""Every failpoint that a member of a group passes, by who dies there."""
PLACES = tuple(strike.place for strike in POINTS)

WHOLE = 60
"""A campaign of so many kills comes to every failpoint."""
_OPENED_BY_KILLS = 15
"""So many of the strikes at failpoints: with them a deck has that many."""
_FIRST_OF_EACH = (
    Strike(kind=Kind.KILL, role=Role.WORKER),
    Strike(kind=Kind.REWIND, role=Role.CHIEF),
    Strike(kind=Kind.KILL_TWO, role=Role.ALL),
    Strike(kind=Kind.KILL_COMING_BACK, role=Role.WORKER, opening=Opening.DRAIN),
    Strike(kind=Kind.STOP_BRIEFLY, role=Role.WORKER),
)
_LATER = (
    Strike(kind=Kind.KILL_TWO, role=Role.ALL),
    Strike(kind=Kind.REWIND, role=Role.WORKER),
    Strike(kind=Kind.KILL_COMING_BACK, role=Role.CHIEF, opening=Opening.DRAIN),
    Strike(kind=Kind.KILL, role=Role.CHIEF),
    Strike(kind=Kind.STOP, role=Role.CHIEF),
    Strike(kind=Kind.STOP, role=Role.WORKER),
    Strike(kind=Kind.STOP_BRIEFLY, role=Role.CHIEF),
)


def deck(random: Random, kills: int) -> list[Strike]:
    """Return the strikes of a campaign of so many kills, or one more: a prefix of decks that are shuffled each.

    A deck begins with one strike of each kind. Where the campaign is big, its first one begins with those that are
    possible only before the first checkpoint; with them it has `WHOLE` kills.
    """
    strikes = [strike for strike in POINTS if strike.point.startswith(_FIRST)] if kills >= BIG else []
    while sum(strike.kills for strike in strikes) < kills:
        strikes += _shuffled(random)
    done = accumulate(strike.kills for strike in strikes)
    return strikes[: 1 + next(at for at, count in enumerate(done) if count >= kills)] if strikes else []


def _shuffled(random: Random) -> list[Strike]:
    at_points = [strike for strike in POINTS if not strike.point.startswith(_FIRST)]
    random.shuffle(at_points)
    points = [
        Strike(
            kind=strike.kind,
            role=strike.role,
            point=strike.point,
            opening=Opening.KILL if number < _OPENED_BY_KILLS else Opening.DRAIN,
        )
        for number, strike in enumerate(sorted(at_points, key=lambda strike: strike.role is not Role.ALL))
    ]
    early, later = [*_FIRST_OF_EACH, points.pop()], [*_LATER, *points]
    for strikes in early, later:
        random.shuffle(strikes)
        while not strikes[-1].kills:  # what kills nobody would be left out there
            strikes.insert(0, strikes.pop())
    return early + later
