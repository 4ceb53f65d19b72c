"""SplitMix64 of offsets: numbers that look random, and depend on the offset alone. Pure NumPy; runs anywhere."""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s

GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of the mix, which graphs share."""


def mix(offsets: Int64s) -> Int64s:
    """Compute the SplitMix64 of each offset."""
    return mixed_bits(offsets.astype(np.uint64)).astype(np.int64)


def mixed_bits(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Compute the SplitMix64 of each number."""
    z = numbers + np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    return z ^ (z >> np.uint64(31))


def salt_of(text: str | bytes) -> int:
    """Return the number by which the draws of this text, as of a partition's name, differ from those of others."""
    raw = text.encode() if isinstance(text, str) else text
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "big", signed=True)


def drawn(offsets: Int64s, salt: int) -> npt.NDArray[np.float64]:
    """Return a number from 0 to below 1 for each offset, as evenly spread as random ones."""
    with np.errstate(over="ignore"):
        mixed = mix(offsets + np.int64(salt))
    spread: npt.NDArray[np.float64] = (mixed.astype(np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return spread


def one_of_each(offsets: Int64s, share: int, salt: np.int64) -> tuple[Int64s, npt.NDArray[np.uint64]]:
    """Return which rows are drawn, and the hashes that drew them: of each `share` offsets the one that their hash says.

    So the same rows are drawn in whatever chunks they come, and few of them are hashed. The offsets ascend.
    """
    if not len(offsets):
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    first, last = int(offsets[0]), int(offsets[-1])
    # Where most offsets are without a record, as in a compacted topic, their number has no bound.
    few = last - first < share * len(offsets)
    groups = np.arange(first // share, last // share + 1) if few else np.unique(offsets // share)
    hashes = mix(groups + salt).view(np.uint64)
    at = groups * share + (hashes % np.uint64(share)).view(np.int64)
    rows = at - first if last - first == len(offsets) - 1 else offsets.searchsorted(at)
    found = offsets.take(rows, mode="clip") == at
    return rows[found], hashes[found]
