"""When to save, and which checkpoints to keep: small policies that are composed.

Owns the decisions only; pure. The store keeps some checkpoints whatever the policy says: the newest, the
nearest ancestor that verifies, every beginning, and all that it may not judge (corrupt, fenced, newer, unknown).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Protocol

from millrace.training.checkpoints.manifest import Manifest, SaveReason

# The best checkpoints by the watched metric, for keeping them and for going back to one.
#
# The newest checkpoint says which metric is watched, and whether higher is better; the values are those that each
# checkpoint has recorded. They were measured on different records, those of their own time.
#
# Only the present timeline counts: the newest and its ancestors. What a rewind has abandoned was given up, perhaps
# because its records made the metric look good. A rewind has the weights and values of its target, and counts only if
# the target is gone.
#
# Few records make a good value by luck, for example soon after a start. So a checkpoint counts only if its window had
# scored half as many records as the median of the others, or 10,000.
ENOUGH_RECORDS = 10_000
_LEAST_SHARE = 0.5
_COPIES = frozenset({SaveReason.REWIND, SaveReason.SKIP})


def best_first(manifests: Sequence[Manifest], newest: Manifest) -> list[Manifest]:
    """Return those that count, the best first, and of equal ones the later first. Empty where nothing is watched."""
    if newest.measured is None:
        return []
    watched, sign = newest.measured.watched, 1 if newest.measured.higher_is_better else -1
    timeline = {newest.number, *newest.ancestors}
    present = {manifest.number for manifest in manifests}
    scored = [
        manifest
        for manifest in manifests
        if manifest.number in timeline
        and isfinite(manifest.metrics.get(watched, float("nan")))
        and not (manifest.reason in _COPIES and manifest.parent in present)
    ]
    # So many records the window of a checkpoint must have scored for it to count.
    least = max(1, min(ENOUGH_RECORDS, _LEAST_SHARE * median(map(_records, scored)))) if scored else 1
    counting = [manifest for manifest in scored if _records(manifest) >= least]
    return sorted(counting, key=lambda one: (sign * one.metrics[watched], one.number), reverse=True)


def _records(manifest: Manifest) -> int:
    return 0 if manifest.measured is None else manifest.measured.records


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
class KeepAny:
    """Keeps what any of its policies keeps."""

    policies: Sequence[KeepPolicy]

    def keep(self, manifests: Sequence[Manifest], newest: Manifest) -> set[int]:
        """Return the union of what the policies keep."""
        return set[int]().union(*(policy.keep(manifests, newest) for policy in self.policies))
