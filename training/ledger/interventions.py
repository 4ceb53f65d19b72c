"""Interventions: the ranges that people have had skipped in this history, and the last rewind. They are kept for good.

Owns what a rewind does to them; pure. A skip is recorded as it was given and never removed: a rewind to before it takes
it along, so that it holds on every later replay, until another rewind lifts it by name. Even then it stays on record.
Where ranges overlap, an offset belongs to the earliest intervention that holds, so every offset is skipped by at most
one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition

UNPUBLISHED = 0
"""Stands for the number of an intervention that is not published yet: number 0 is always a beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A range of offsets that a rewind has cut out of history."""

    order: str
    """The name of the rewind, `rewind-17`; skipped offsets are counted under it."""
    partition: Partition
    start: int
    end: int
    """One past the last offset."""
    reason: str
    """Why, in the words of the person who asked for it."""
    number: int | None = None
    """The checkpoint that the rewind was published as; None before, and where an older version recorded it."""
    by: str | None = None
    """Who asked for it."""
    lifted_by: int | None = None
    """The rewind that lifted it, by its checkpoint's number; None while it holds."""
    topic: int = 0
    """The number of earlier topics of that name when it was given: a topic created again is not affected."""

    def __str__(self) -> str:
        return f"{self.partition}:{self.start}-{self.end - 1}"

    def overlap(self, start: int, end: int) -> int:
        """Return the number of offsets of [start, end) that it cuts out."""
        return max(0, min(self.end, end) - max(self.start, start))

    def published_as(self, number: int) -> "Skip":
        """Return the same range, with this number wherever UNPUBLISHED stood."""
        skip = self
        if skip.number == UNPUBLISHED:
            skip = replace(skip, order=f"rewind-{number}", number=number)
        return replace(skip, lifted_by=number) if skip.lifted_by == UNPUBLISHED else skip

    def facts(self) -> dict[str, Any]:
        """Return the skip as JSON holds it."""
        return {
            "order": self.order,
            "partition": str(self.partition),
            "start": self.start,
            "end": self.end,
            "reason": self.reason,
            "number": self.number,
            "by": self.by,
            "lifted_by": self.lifted_by,
            "topic": self.topic,
        }

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Skip":
        """Read a skip from JSON."""
        return cls(
            order=facts["order"],
            partition=Partition.parse(facts["partition"]),
            start=int(facts["start"]),
            end=int(facts["end"]),
            reason=facts["reason"],
            number=facts.get("number"),
            by=facts.get("by"),
            lifted_by=facts.get("lifted_by"),
            topic=int(facts.get("topic", 0)),
        )


def uncovered(skip: Skip, earlier: Sequence[Skip]) -> Iterator[Skip]:
    """Yield the pieces of a range that no earlier one covers, ascending."""
    start = skip.start
    same = (other for other in earlier if (other.partition, other.topic) == (skip.partition, skip.topic))
    ranges = sorted((other.start, other.end) for other in same)
    for covered_start, covered_end in ranges:
        if covered_start > start and start < skip.end:
            yield replace(skip, start=start, end=min(covered_start, skip.end))
        start = max(start, covered_end)
    if start < skip.end:
        yield replace(skip, start=start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """The last rewind of a history."""

    number: int
    """The checkpoint that the rewind was published as."""
    to: int
    """The checkpoint that it went back to."""
    by: str | None
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interventions:
    """All interventions up to now."""

    skips: tuple[Skip, ...] = ()
    """As they were given, the earliest first; lifted ones included."""
    rewound: Rewound | None = None

    @property
    def standing(self) -> tuple[Skip, ...]:
        """The ranges that hold, by partition and offset; no two of them overlap."""
        pieces: list[Skip] = []
        for skip in self.skips:
            if skip.lifted_by is None:
                pieces.extend(uncovered(skip, pieces))
        return tuple(sorted(pieces, key=lambda piece: (piece.partition, piece.start)))

    def with_skip(self, skip: Skip) -> "Interventions":
        """Return these interventions and one more range to skip."""
        return replace(self, skips=(*self.skips, skip))

    def without(self, names: Sequence[str], number: int) -> "Interventions":
        """Return these, with some skips lifted by the rewind of this number; ConfigError for an unknown name."""
        known = {skip.order for skip in self.skips if skip.lifted_by is None}
        for name in names:
            if name not in known:
                there = ", ".join(sorted(known)) or "no order to skip anything"
                raise ConfigError(f"unskip: {name[:60]!r} is no order that holds; there is {there}")
        lifted = (replace(skip, lifted_by=number) if skip.order in names else skip for skip in self.skips)
        return replace(self, skips=tuple(lifted))

    def since(self, older: "Interventions") -> "Interventions":
        """Return these and those that only an older checkpoint has: none, unless a new beginning lies between."""
        known = {skip.order for skip in self.skips}
        return replace(self, skips=(*(skip for skip in older.skips if skip.order not in known), *self.skips))

    def published_as(self, number: int) -> "Interventions":
        """Return the same interventions, with this number wherever UNPUBLISHED stood."""
        rewound = self.rewound
        if rewound is not None and rewound.number == UNPUBLISHED:
            rewound = replace(rewound, number=number)
        return replace(self, skips=tuple(skip.published_as(number) for skip in self.skips), rewound=rewound)

    def facts(self) -> dict[str, Any]:
        """Return the interventions as JSON holds them."""
        return {
            "skips": [skip.facts() for skip in self.skips],
            "rewound": None if self.rewound is None else asdict(self.rewound),
        }

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Interventions":
        """Read the interventions from JSON; older versions recorded no rewind."""
        rewound = facts.get("rewound")
        return cls(
            skips=tuple(Skip.of_facts(skip) for skip in facts["skips"]),
            rewound=None if rewound is None else Rewound(**rewound),
        )
