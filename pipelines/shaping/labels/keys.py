"""Keys as numbers: a hash of 64 bits and a check of 32, for columns of whole numbers and of texts."""

import hashlib
import zlib

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s
from millrace.pipelines.schema import Column
from millrace.pipelines.stream.offset_mix import mixed_bits

_LONG = 64
"""Of longer texts a digest of so many bytes is taken."""


def hashes_of(keys: Column) -> Int64s:
    """Return a number for each key, the same for equal keys in every process; different whole numbers never meet."""
    if keys.dtype != object:
        return mixed_bits(keys.astype(np.uint64)).view(np.int64)
    texts: list[bytes] = keys.tolist()
    lengths = np.fromiter(map(len, texts), np.uint64, len(texts))
    if lengths.max(initial=0) > _LONG:
        texts = [text if len(text) <= _LONG else hashlib.blake2b(text, digest_size=_LONG).digest() for text in texts]
    # Texts of one width, padded with zeros, as words of 64 bits.
    words = np.array(texts, f"S{-(-max(1, int(min(lengths.max(initial=1), _LONG))) // 8) * 8}").view("<u8")
    mixed = lengths
    for at, word in enumerate(words.reshape(len(texts), -1).T if texts else ()):
        # How long the others are makes no difference.
        mixed = np.where(lengths > 8 * at, mixed_bits(mixed ^ word), mixed)
    return mixed.view(np.int64)


def checks_of(keys: Column) -> npt.NDArray[np.uint32]:
    """Return a second number for each key, by which two keys of one hash are told apart."""
    if keys.dtype != object:
        return np.zeros(len(keys), np.uint32)
    texts: list[bytes] = keys.tolist()
    return np.fromiter(map(zlib.crc32, texts), np.uint32, len(texts))
