"""The account of one partition: one integer (the next offset), and the outcome of every offset before it.

Owns the counters by reason, and the fingerprint by which the partition is recognised; the ledger replaces an account
when a block is settled. Where a topic was created again, the account of the topic before it is closed and kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from millrace.consumers.fingerprints import Fingerprint
from millrace.pipelines.stream.offset_counts import OffsetCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAccount(OffsetCounts):
    """The outcome of a partition's offsets, from its start to its position."""

    start: int
    """The offset at which this history begins."""
    position: int
    """The next offset: everything before it is settled."""
    fingerprint: Fingerprint | None = None
    """Of the last chunk that was wholly settled; None where there was none, and in closed accounts."""
    former: tuple["PartitionAccount", ...] = ()
    """The closed accounts of the topics that had the name before, the oldest first."""

    @property
    def histories(self) -> tuple["PartitionAccount", ...]:
        """The closed ones and the present one; the weights have learnt from all of them."""
        return (*self.former, self)

    @property
    def settled(self) -> int:
        """Offsets before the position, of the present topic."""
        return self.position - self.start

    @property
    def balanced(self) -> bool:
        """Whether every offset is accounted for exactly once, in every history."""
        return self.offsets == self.settled and all(closed.balanced for closed in self.former)

    def moved_to(self, position: int, settled: OffsetCounts, fingerprint: Fingerprint | None) -> "PartitionAccount":
        """Return the account after the offsets up to `position` were settled, with these counts."""
        # A block that ends within a chunk brings none; then the last one still identifies the topic.
        known = fingerprint or self.fingerprint
        return replace(self, position=position, fingerprint=known, **(self + settled).fields())

    def restarted(self, start: int) -> "PartitionAccount":
        """Return an empty account for a topic that was created again; this one is closed and kept in it."""
        closed = replace(self, fingerprint=None, former=())
        return PartitionAccount(start=start, position=start, former=(*self.former, closed))

    def facts(self) -> dict[str, Any]:
        """Return the present history as JSON holds it."""
        return {"start": self.start, "position": self.position, **self.to_json()}

    def all_facts(self) -> dict[str, Any]:
        """Return the whole account as JSON holds it, with the fingerprint and the closed histories."""
        return {
            **self.facts(),
            "fingerprint": None if self.fingerprint is None else list(self.fingerprint),
            "former": [closed.facts() for closed in self.former],
        }

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "PartitionAccount":
        """Read an account from JSON; older checkpoints hold neither fingerprints nor closed histories."""
        return cls(
            start=int(facts["start"]),
            position=int(facts["position"]),
            fingerprint=Fingerprint.of_facts(facts.get("fingerprint")),
            former=tuple(map(PartitionAccount.of_facts, facts.get("former", ()))),
            **OffsetCounts.of_json(facts).fields(),
        )
