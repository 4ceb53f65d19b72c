"""Orders: what people have told this history to pass over, and the last rewind; kept for ever after.

Owns what becomes of them in a rewind; pure, runs anywhere. A skip is written down as it was ordered and never removed:
a rewind to before it takes it along, so that it holds on every later replay, until an order takes it back by name. Even
then it stays on record. Where ranges overlap, an offset belongs to the earliest order that holds, so every offset is
skipped by one order at most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from consumers.errors import ConfigError
from training.ledger.skips import UNPUBLISHED, Skip, uncovered


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """The last rewind of a history."""

    number: int
    """The checkpoint that the order was published as."""
    to: int
    """The checkpoint that it went back to."""
    by: str | None
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interventions:
    """All that was ordered up to now."""

    skips: tuple[Skip, ...] = ()
    """As they were ordered, the earliest first; those that were taken back included."""
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
        """One range more."""
        return replace(self, skips=(*self.skips, skip))

    def without(self, names: Sequence[str], number: int) -> "Interventions":
        """Some orders taken back by the order that is published as this number."""
        known = {skip.order for skip in self.skips if skip.lifted_by is None}
        for name in names:
            if name not in known:
                there = ", ".join(sorted(known)) or "no order to skip anything"
                raise ConfigError(f"unskip: {name[:60]!r} is no order that holds; there is {there}")
        lifted = (replace(skip, lifted_by=number) if skip.order in names else skip for skip in self.skips)
        return replace(self, skips=tuple(lifted))

    def since(self, older: "Interventions") -> "Interventions":
        """These, and what an older checkpoint knows besides, which is nothing but where a beginning lies between."""
        known = {skip.order for skip in self.skips}
        return replace(self, skips=(*(skip for skip in older.skips if skip.order not in known), *self.skips))

    def published_as(self, number: int) -> "Interventions":
        """Return the same interventions, with this number wherever UNPUBLISHED stood."""
        rewound = self.rewound
        if rewound is not None and rewound.number == UNPUBLISHED:
            rewound = replace(rewound, number=number)
        return replace(self, skips=tuple(skip.published_as(number) for skip in self.skips), rewound=rewound)

    def facts(self) -> dict[str, Any]:
        """As JSON holds them."""
        return {
            "skips": [skip.facts() for skip in self.skips],
            "rewound": None if self.rewound is None else asdict(self.rewound),
        }

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Interventions":
        """Out of JSON; older versions have written down no rewind."""
        rewound = facts.get("rewound")
        return cls(
            skips=tuple(Skip.of_facts(skip) for skip in facts["skips"]),
            rewound=None if rewound is None else Rewound(**rewound),
        )
