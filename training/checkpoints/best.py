"""The best checkpoints by the watched metric, for keeping them and for going back to one. Pure.

The newest checkpoint says which metric is watched, and whether higher is better; the values are those that each
checkpoint has recorded. They were measured on different records, those of their own time.

Only the present timeline counts: the newest and its ancestors. What a rewind has abandoned was given up, perhaps
because its records made the metric look good. A rewind has the weights and values of its target, and counts only where
the target is gone.

Few records make a good value by luck, for example soon after a start. So a checkpoint counts only if its window had
scored half as many records as the median of the others, or 10,000.
"""

from collections.abc import Sequence
from math import isfinite
from statistics import median

from millrace.training.checkpoints.manifest import Manifest, SaveReason

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
    least = _least_records(scored)
    counting = [manifest for manifest in scored if _records(manifest) >= least]
    return sorted(counting, key=lambda one: (sign * one.metrics[watched], one.number), reverse=True)


def _least_records(scored: Sequence[Manifest]) -> float:
    """Return how many records the window of a checkpoint must have scored for it to count."""
    if not scored:
        return 1
    return max(1, min(ENOUGH_RECORDS, _LEAST_SHARE * median(map(_records, scored))))


def _records(manifest: Manifest) -> int:
    return 0 if manifest.measured is None else manifest.measured.records
