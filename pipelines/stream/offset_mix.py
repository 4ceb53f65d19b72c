"""SplitMix64 of offsets: numbers that look random, and depend on the offset alone. Pure NumPy; runs anywhere."""

import numpy as np

from millrace.consumers.records import Int64s

GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of the mix, which graphs share."""


def mix(offsets: Int64s) -> Int64s:
    """Compute the SplitMix64 of each offset."""
    z = offsets.astype(np.uint64) + np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    return (z ^ (z >> np.uint64(31))).astype(np.int64)
