"""Skips: ranges of offsets that a rewind has cut out of history.

Owns the range and its arithmetic; pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
