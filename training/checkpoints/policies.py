"""When to save, and what to keep: small policies that are composed.

Owns the decisions only; pure, runs anywhere. The store keeps some checkpoints whatever the policy says: the newest, the
nearest ancestor that verifies, every beginning, and all that it may not judge (corrupt, fenced, newer, unknown).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from training.checkpoints.manifest import Manifest, SaveReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveContext:
    """What a save policy may look at, between two calls; it is asked only once anything was settled since the last."""

    now: float
    """Monotonic clock, seconds."""
    last_saved_at: float
    """When the newest checkpoint was copied, same clock."""
    step: int
    last_saved_step: int


class SavePolicy(Protocol):
    """Says when a save is due."""

    def due(self, context: SaveContext) -> SaveReason | None:
        """The reason to save now, or None."""
        ...


@dataclass(frozen=True, slots=True)
class EverySeconds:
    """A save is due so many seconds after the last one."""

    seconds: float

    def due(self, context: SaveContext) -> SaveReason | None:
        """INTERVAL when the time has come."""
        waited = context.now - context.last_saved_at
        return SaveReason.INTERVAL if waited >= self.seconds else None


@dataclass(frozen=True, slots=True)
class EverySteps:
    """A save is due so many steps after the last one."""

    steps: int

    def due(self, context: SaveContext) -> SaveReason | None:
        """STEPS when enough were made."""
        return SaveReason.STEPS if context.step - context.last_saved_step >= self.steps else None


@dataclass(frozen=True, slots=True)
class Never:
    """No save is due by itself; orders and the end still save."""

    def due(self, context: SaveContext) -> SaveReason | None:  # noqa: ARG002 - the Protocol's signature
        """None."""
        return None


class KeepPolicy(Protocol):
    """Says which checkpoints outlive a pruning."""

    def keep(self, manifests: Sequence[Manifest]) -> set[int]:
        """The numbers to keep, out of these manifests in ascending order."""
        ...


@dataclass(frozen=True, slots=True)
class KeepLast:
    """The last n."""

    count: int

    def keep(self, manifests: Sequence[Manifest]) -> set[int]:
        """The n greatest numbers."""
        return {manifest.number for manifest in manifests[max(0, len(manifests) - self.count) :]}


@dataclass(frozen=True, slots=True)
class KeepBest:
    """The best n by a live metric; among equals the later one."""

    count: int
    metric: str
    higher: bool = True

    def keep(self, manifests: Sequence[Manifest]) -> set[int]:
        """The n best of those that have the metric."""
        scored = [(manifest.metrics[self.metric], manifest.number) for manifest in manifests if self._has(manifest)]
        sign = 1 if self.higher else -1
        scored.sort(key=lambda pair: (sign * pair[0], pair[1]), reverse=True)
        return {number for _, number in scored[: self.count]}

    def _has(self, manifest: Manifest) -> bool:
        return self.metric in manifest.metrics


@dataclass(frozen=True, slots=True)
class KeepHourly:
    """The last one of each hour (UTC), for the n latest hours that have any."""

    count: int

    def keep(self, manifests: Sequence[Manifest]) -> set[int]:
        """One number an hour."""
        last_of_hour = {m.created.strftime("%Y-%m-%dT%H"): m.number for m in manifests}
        hours = sorted(last_of_hour, reverse=True)[: self.count]
        return {last_of_hour[hour] for hour in hours}


@dataclass(frozen=True, slots=True)
class Pinned:
    """These, for ever."""

    numbers: frozenset[int]

    def keep(self, manifests: Sequence[Manifest]) -> set[int]:
        """Those of them that are there."""
        return {manifest.number for manifest in manifests if manifest.number in self.numbers}


@dataclass(frozen=True, slots=True)
class KeepAny:
    """Whatever one of these keeps."""

    policies: Sequence[KeepPolicy]

    def keep(self, manifests: Sequence[Manifest]) -> set[int]:
        """The union."""
        return set[int]().union(*(policy.keep(manifests) for policy in self.policies))
