"""Interventions: the ranges that people have had skipped in this history, and the last rewind. They are kept for good.

Owns what a rewind does to them; pure. A skip is recorded as it was given and never removed: a rewind to before it takes
it along, so that it holds on every later replay, until another rewind lifts it by name. Even then it stays on record.
Where ranges overlap, an offset belongs to the earliest intervention that holds, so every offset is skipped by at most
one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from millrace.consumers.errors import ConfigError
from millrace.training.ledger.skips import UNPUBLISHED, Skip, uncovered


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
