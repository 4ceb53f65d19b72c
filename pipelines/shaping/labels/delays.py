"""How late labels come: how many came after which time, in steps of a fifth, without keeping them. Pure."""

from collections.abc import Mapping

import numpy as np

from millrace.consumers.records import Int64s

_STEPS = 4
"""To each power of two."""
BUCKETS = 150
"""As many as a year of milliseconds takes."""
_SHARES = (0.5, 0.9, 0.99)


def buckets_of(delays_ms: Int64s) -> Int64s:
    """Return the bucket of each delay; what came before its record was not late at all."""
    steps: Int64s = np.ceil(_STEPS * np.log2(1.0 + np.maximum(delays_ms, 0))).astype(np.int64)
    return np.clip(steps, 0, BUCKETS - 1)


def quantiles(counts: Int64s) -> Mapping[str, float]:
    """Return the seconds within which half of the labels came, nine of ten and 99 of 100, a fifth too long at most."""
    total, below = int(counts.sum()), np.cumsum(counts)
    if not total:
        return {}
    places = {share: int(below.searchsorted(np.ceil(share * total))) for share in _SHARES}
    return {f"{share:g}": (2 ** (place / _STEPS) - 1) / 1000 for share, place in places.items()}
