"""Row identity: a number by which the trainer knows a row again that the server has answered for.

It is a hash of the features as the record has them, before windows and `preprocess`: the same record decodes to the
same bits in both. Lists of varying length and images are left out. Pure; runs on any thread.
"""

from collections.abc import Mapping

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
            field.name: np.array([salt_of(text) for text in field.classes], np.int64).view(np.uint64)
            for field in schema.features
            if field.classes is not None
        }

    def of(self, features: Mapping[str, Column]) -> Identities:
        """Return the identity of each row. A listed text may stand there as such, or as its index."""
        identities: Identities | None = None
        for name in self.names:
            column = np.ascontiguousarray(features[name])
            bits = self._bits(name, column.reshape(len(column), -1))
            # A sum of products with odd numbers of the name: one pass a column.
            factors = mix(np.arange(bits.shape[1]) + salt_of(name)).view(np.uint64) | np.uint64(1)
            part = (bits * factors).sum(axis=1, dtype=np.uint64)
            identities = part if identities is None else identities * np.uint64(GOLDEN) + part
        if identities is None:
            return np.zeros(len(next(iter(features.values()))), np.uint64)
        return mix(identities.view(np.int64)).view(np.uint64)

    def _bits(self, name: str, column: Column) -> Identities:
        """Return each value as 64 bits of its own."""
        if column.dtype == object:
            known = {text: salt_of(text) for text in set(column.ravel().tolist())}
            found = np.fromiter((known[text] for text in column.ravel().tolist()), np.int64, column.size)
            return found.view(np.uint64).reshape(column.shape)
        if name in self._classes:
            return self._classes[name][column.astype(np.int64)]
        if column.dtype.kind in "iu":
            return column.astype(np.int64).view(np.uint64)
        # Where two floats differ in their low bits alone, a product must differ in its high ones.
        return column.view(f"u{column.dtype.itemsize}").astype(np.uint64)


def in_share(identities: Identities, share: float) -> npt.NDArray[np.bool_]:
    """Return which rows are in a share of all, which is the same wherever it is asked."""
    return (identities >> np.uint64(32)) < share * 2**32
