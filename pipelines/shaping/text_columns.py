"""Columns as a checkpoint holds them: arrays of numbers; texts as their bytes and their lengths."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from millrace.pipelines.schema import Column

_BYTES, _LENGTHS = ".bytes", ".lengths"


def packed(name: str, column: Column) -> dict[str, Column]:
    """Return a column as arrays, by name."""
    if column.dtype != object:
        return {name: column}
    texts: list[bytes] = column.ravel().tolist()
    lengths = np.fromiter(map(len, texts), np.int32, len(texts))
    return {f"{name}{_BYTES}": np.frombuffer(b"".join(texts), np.uint8), f"{name}{_LENGTHS}": lengths}


def unpacked(arrays: Mapping[str, Any], name: str, shape: Sequence[int]) -> Column:
    """Return a column whose entries have this shape."""
    if name in arrays:
        column: Column = arrays[name]
        return column
    lengths = arrays[f"{name}{_LENGTHS}"].astype(np.int64)
    whole, ends = arrays[f"{name}{_BYTES}"].tobytes(), np.cumsum(lengths).tolist()
    texts = np.empty(len(lengths), object)
    texts[:] = [whole[end - size : end] for end, size in zip(ends, lengths.tolist(), strict=True)]
    return texts.reshape(len(lengths) // math.prod(shape), *shape)
