"""The account of one partition: one integer (the next offset), and what became of every offset before it.

Owns the counters by reason, and the fingerprint by which the partition is known again; the ledger guards it and is the
only one to change it. Where a topic was created again, the account of the one before it is closed as it stood and kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from consumers.fingerprints import Fingerprint
from consumers.reasons import Reason
from pipelines.blocks import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAccount:
    """What became of a partition's offsets, from its start to its position."""

    start: int
    """The offset at which this history begins."""
    position: int
    """The next offset: everything before it is settled."""
    learnt: int
    """Records that a training step has used."""
    set_aside: Mapping[Reason, int]
    """Records that could not be learnt, by reason."""
    skipped: Mapping[str, int]
    """Offsets cut out by order."""
    gaps: int
    """Offsets at which Kafka holds no record."""
    lost: int
    """Offsets that retention removed before they were read; anything but 0 is a loss."""
    truncated: Mapping[str, int] = field(default_factory=dict)
    """Records of which a list was cut to its bound, by feature; they count as learnt or set aside as any other."""
    former: tuple["PartitionAccount", ...] = ()
    """What became of the topics that bore the name before, the oldest first."""

    @property
    def histories(self) -> tuple["PartitionAccount", ...]:
        """The closed ones and the present one; the weights have learnt from all of them."""
        return (*self.former, self)

    @property
    def balanced(self) -> bool:
        """Whether every offset is accounted for exactly once, in every history."""
        parts = self.learnt + sum(self.set_aside.values()) + sum(self.skipped.values()) + self.gaps + self.lost
        return parts == self.position - self.start and all(closed.balanced for closed in self.former)

    def facts(self) -> dict[str, Any]:
        """As JSON holds it; the closed ones apart."""
        return {
            "start": self.start,
            "position": self.position,
            "learnt": self.learnt,
            "set_aside": {reason.value: count for reason, count in self.set_aside.items()},
            "skipped": dict(self.skipped),
            "gaps": self.gaps,
            "lost": self.lost,
            **({"truncated": dict(self.truncated)} if self.truncated else {}),
        }

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "PartitionAccount":
        """Out of JSON."""
        return cls(
            start=int(facts["start"]),
            position=int(facts["position"]),
            learnt=int(facts["learnt"]),
            set_aside={Reason(reason): int(count) for reason, count in facts["set_aside"].items()},
            skipped={str(order): int(count) for order, count in facts["skipped"].items()},
            gaps=int(facts["gaps"]),
            lost=int(facts["lost"]),
            truncated={str(name): int(count) for name, count in facts.get("truncated", {}).items()},
        )


@dataclass(slots=True, kw_only=True)
class Account:
    """One partition's counters. Changes only by `settle`."""

    start: int
    position: int
    learnt: int = 0
    set_aside: dict[Reason, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    gaps: int = 0
    lost: int = 0
    truncated: dict[str, int] = field(default_factory=dict)
    fingerprint: Fingerprint | None = None
    """Of the last chunk that was wholly settled; None where none was."""
    former: tuple[PartitionAccount, ...] = ()

    def settle(self, span: Span, refused: Mapping[Reason, int]) -> None:
        """Move past a span, so many of its rows set aside after all."""
        self.position = span.end
        self.learnt += span.learnt - sum(refused.values())
        self.gaps += span.gaps
        self.lost += span.lost
        self.fingerprint = span.fingerprint or self.fingerprint
        for reasons in (span.set_aside, refused):
            for reason, count in reasons.items():
                self.set_aside[reason] = self.set_aside.get(reason, 0) + count
        for order, count in span.skipped.items():
            self.skipped[order] = self.skipped.get(order, 0) + count
        for feature, count in span.truncated.items():
            self.truncated[feature] = self.truncated.get(feature, 0) + count

    @property
    def settled(self) -> int:
        """Offsets behind the position, of the present topic."""
        return self.position - self.start

    def begun_anew(self, start: int) -> "Account":
        """The account of a topic that was created again; this one is closed as it stands."""
        return Account(start=start, position=start, former=(*self.former, replace(self.statistics(), former=())))

    def statistics(self) -> PartitionAccount:
        """A frozen copy."""
        return PartitionAccount(
            start=self.start,
            position=self.position,
            learnt=self.learnt,
            set_aside=dict(self.set_aside),
            skipped=dict(self.skipped),
            gaps=self.gaps,
            lost=self.lost,
            truncated=dict(self.truncated),
            former=self.former,
        )

    def facts(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            **self.statistics().facts(),
            "fingerprint": None if self.fingerprint is None else list(self.fingerprint),
            "former": [closed.facts() for closed in self.former],
        }

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Account":
        """Out of JSON; facts from before there were fingerprints hold none."""
        counted = PartitionAccount.of_facts(facts)
        return cls(
            start=counted.start,
            position=counted.position,
            learnt=counted.learnt,
            set_aside=dict(counted.set_aside),
            skipped=dict(counted.skipped),
            gaps=counted.gaps,
            lost=counted.lost,
            truncated=dict(counted.truncated),
            fingerprint=Fingerprint.of_facts(facts.get("fingerprint")),
            former=tuple(map(PartitionAccount.of_facts, facts.get("former", ()))),
        )
