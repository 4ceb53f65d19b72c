"""Row identity: a number by which the trainer knows a row again that the server has answered for.

It is a hash of the features as the record has them, before windows and `preprocess`: the same record decodes to the
same bits in both. Lists of varying length and images are left out. Pure; runs on any thread.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from millrace.pipelines.schema import Column, Schema
from millrace.pipelines.stream.offset_mix import GOLDEN, mix, salt_of

Identities = npt.NDArray[np.uint64]


class RowIdentity:
    """Knows rows of one schema."""

    def __init__(self, schema: Schema) -> None:
        self.names = sorted(
            field.name
            for field in schema.features
            if field.pad is None and not field.ragged and field.image is None and field.scaled is None
        )
        self._classes = {
            field.name: _of_texts(text.encode() for text in field.classes)
            for field in schema.features
            if field.classes is not None
        }
        self._factors: dict[tuple[str, int], Identities] = {}
        """By name and width: an odd number for each value of a row."""

    def of(self, features: Mapping[str, Column]) -> Identities:
        """Return the identity of each row. A listed text may stand there as such, or as its index."""
        identities: Identities | None = None
        for name in self.names:
            column = np.ascontiguousarray(features[name])
            bits = self._bits(name, column.reshape(len(column), -1))
            part = np.einsum("ij,j->i", bits, self._factors_of(name, bits.shape[1]))
            identities = part if identities is None else identities * np.uint64(GOLDEN) + part
        if identities is None:
            return np.zeros(len(next(iter(features.values()))), np.uint64)
        return mix(identities.view(np.int64)).view(np.uint64)

    def _factors_of(self, name: str, width: int) -> Identities:
        found = self._factors.get((name, width))
        if found is None:
            found = mix(np.arange(width) + salt_of(name)).view(np.uint64) | np.uint64(1)
            self._factors[name, width] = found
        return found

    def _bits(self, name: str, column: Column) -> Identities:
        """Return each value as 64 bits of its own."""
        if column.dtype == object:
            return _of_texts(column.ravel().tolist()).reshape(column.shape)
        if name in self._classes:
            return self._classes[name][column.astype(np.int64)]
        if column.dtype.kind in "iu":
            return column.astype(np.int64).view(np.uint64)
        # Where two floats differ in their low bits alone, a product must differ in its high ones.
        return column.view(f"u{column.dtype.itemsize}").astype(np.uint64)


def _of_texts(texts: Iterable[bytes]) -> Identities:
    return np.frombuffer(b"".join(blake2b(text, digest_size=8).digest() for text in texts), "<u8").astype(np.uint64)


def in_share(identities: Identities, share: float) -> npt.NDArray[np.bool_]:
    """Return which rows are in a share of all, which is the same wherever it is asked."""
    return (identities >> np.uint64(32)) < share * 2**32
