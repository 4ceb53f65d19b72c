"""Evidence: checksums of a set of offsets, so that none can be lost or learnt twice without being detected.

Count, wrapping sum, and wrapping sum of a 64-bit mix (SplitMix64) of each, so that one lost and one learnt twice cannot
cancel out. Pure NumPy: checking a checkpoint's witness needs no TensorFlow. The witness computes the same inside the
compiled call.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from millrace.pipelines.stream.offset_mix import mix


@dataclass(frozen=True, slots=True)
class Evidence:
    """The checksums of one partition's learnt offsets."""

    count: int
    total: int
    """The sum of the offsets, wrapping at 64 bits."""
    mixed: int
    """The sum of their mixes, wrapping at 64 bits."""

    @classmethod
    def of(cls, offsets: Iterable[int]) -> "Evidence":
        """Compute the evidence of these offsets, in plain integers."""
        array = np.fromiter(offsets, np.int64)
        # Wrapping is intended: the graph wraps in the same way.
        with np.errstate(over="ignore"):
            return cls(len(array), int(array.sum(dtype=np.int64)), int(mix(array).sum(dtype=np.int64)))
