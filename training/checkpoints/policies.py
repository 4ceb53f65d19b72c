"""When to save, and which checkpoints to keep: small policies that are composed.

Owns the decisions only; pure. The store keeps some checkpoints whatever the policy says: the newest, the
nearest ancestor that verifies, every beginning, and all that it may not judge (corrupt, fenced, newer, unknown).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace.training.checkpoints.best import best_first
from millrace.training.checkpoints.manifest import Manifest, SaveReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveContext:
    """What a save policy decides by. It is asked between two calls, once something was settled since the last save."""

    now: float
    """Monotonic clock, seconds."""
    last_saved_at: float
    """When the state of the newest checkpoint was copied, by the same clock."""
    step: int
    last_saved_step: int


class SavePolicy(Protocol):
    """Decides when a save is due."""

    def due(self, context: SaveContext) -> SaveReason | None:
        """Return the reason to save now, or None."""
        ...


@dataclass(frozen=True, slots=True)
class EverySeconds:
    """A save is due this many seconds after the last one."""

    seconds: float

    def due(self, context: SaveContext) -> SaveReason | None:
        """Return INTERVAL when the time has come."""
        waited = context.now - context.last_saved_at
        return SaveReason.INTERVAL if waited >= self.seconds else None


@dataclass(frozen=True, slots=True)
class EverySteps:
    """A save is due this many steps after the last one."""

    steps: int

    def due(self, context: SaveContext) -> SaveReason | None:
        """Return STEPS when enough steps were made."""
        return SaveReason.STEPS if context.step - context.last_saved_step >= self.steps else None


@dataclass(frozen=True, slots=True)
class Never:
    """No save is ever due; commands and the end of the process still save."""

    def due(self, context: SaveContext) -> SaveReason | None:  # noqa: ARG002 - the Protocol's signature
        """Return None."""
        return None


class KeepPolicy(Protocol):
    """Decides which checkpoints pruning keeps."""

    def keep(self, manifests: Sequence[Manifest], newest: Manifest) -> set[int]:
        """Return the numbers to keep, out of these manifests in ascending order; `newest` is where a start resumes."""
        ...


@dataclass(frozen=True, slots=True)
class KeepLast:
    """The last n."""

    count: int

    def keep(self, manifests: Sequence[Manifest], newest: Manifest) -> set[int]:  # noqa: ARG002 - of the Protocol
        """Return the n greatest numbers."""
        return {manifest.number for manifest in manifests[max(0, len(manifests) - self.count) :]}


@dataclass(frozen=True, slots=True)
class KeepBest:
    """The best n of the present timeline by the watched metric."""

    count: int

    def keep(self, manifests: Sequence[Manifest], newest: Manifest) -> set[int]:
        """Return the n best that count."""
        return {manifest.number for manifest in best_first(manifests, newest)[: self.count]}


@dataclass(frozen=True, slots=True)
class KeepHourly:
    """The last one of each hour (UTC), for the n latest hours that have any."""

    count: int

    def keep(self, manifests: Sequence[Manifest], newest: Manifest) -> set[int]:  # noqa: ARG002 - of the Protocol
        """Return one number an hour."""
        # The manifests ascend, so the last one of an hour replaces those before it.
        last_of_hour = {m.created.strftime("%Y-%m-%dT%H"): m.number for m in manifests}
        hours = sorted(last_of_hour, reverse=True)[: self.count]
        return {last_of_hour[hour] for hour in hours}


@dataclass(frozen=True, slots=True)
class Pinned:
    """Checkpoints that are always kept."""

    numbers: frozenset[int]

    def keep(self, manifests: Sequence[Manifest], newest: Manifest) -> set[int]:  # noqa: ARG002 - of the Protocol
        """Return the pinned numbers that are on disk."""
        return {manifest.number for manifest in manifests if manifest.number in self.numbers}


@dataclass(frozen=True, slots=True)
class KeepAny:
    """Keeps what any of its policies keeps."""

    policies: Sequence[KeepPolicy]

    def keep(self, manifests: Sequence[Manifest], newest: Manifest) -> set[int]:
        """Return the union of what the policies keep."""
        return set[int]().union(*(policy.keep(manifests, newest) for policy in self.policies))
