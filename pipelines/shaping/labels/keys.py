"""Keys as numbers: a hash of 64 bits and a check of 32, for columns of whole numbers and of texts."""

import zlib

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s
from millrace.pipelines.schema import Column


def hashes_of(keys: Column) -> Int64s:
    """Return a number for each key, the same for equal keys in this process; different whole numbers never meet."""
    if keys.dtype == object:
        texts: list[bytes] = keys.tolist()
        return np.fromiter(map(hash, texts), np.int64, len(texts))
    mixed = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))).view(np.int64)


def checks_of(keys: Column) -> npt.NDArray[np.uint32]:
    """Return a second number for each key, by which two keys of one hash are told apart."""
    if keys.dtype != object:
        return np.zeros(len(keys), np.uint32)
    texts: list[bytes] = keys.tolist()
    return np.fromiter(map(zlib.crc32, texts), np.uint32, len(texts))
