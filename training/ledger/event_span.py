"""The span of event time that a history has learnt: its oldest and its newest record.

Owns two numbers, updated once a block; pure. Records that a call refused count too, so the span may be a
little too wide and is never too narrow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EventSpan:
    """The oldest and the newest event time, in milliseconds since 1970; both None where nothing has been learnt yet."""

    oldest_ms: int | None = None
    newest_ms: int | None = None
    known: bool = True
    """False in a history that began with a version which kept no event times, and in all that follows it."""

    def widened(self, oldest_ms: int, newest_ms: int) -> "EventSpan":
        """Return the span, widened by the times of one more block."""
        if not self.known:
            return self
        return EventSpan(
            oldest_ms if self.oldest_ms is None else min(self.oldest_ms, oldest_ms),
            newest_ms if self.newest_ms is None else max(self.newest_ms, newest_ms),
        )

    def facts(self) -> Mapping[str, Any] | None:
        """Return the span as JSON holds it."""
        return {"oldest_ms": self.oldest_ms, "newest_ms": self.newest_ms} if self.known else None

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any] | None, *, learnt: int) -> "EventSpan":
        """Read a span from JSON. Without facts the span is known only where the history has learnt nothing."""
        if facts is None:
            return cls(known=learnt == 0)
        return cls(facts["oldest_ms"], facts["newest_ms"])
