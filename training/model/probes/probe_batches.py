"""Probe batches: made-up rows that fit a schema, to build, trace and examine a model before any record has come.

A field with an `example` gets that; every other field gets random values.

Pure; numpy only. Numbers lie in (0, 1), integers and labels are 0 or 1, so that they fit any embedding, any logarithm
and nearly any loss. Where a field has rules (`min`, `max`, `one_of`), its rows keep to them, as its records will.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.pipelines.formats.shared.made_up import of_dtype, within
from millrace.pipelines.schema import Column, Field, Schema


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows [B, …] of every feature and label."""

    features: Mapping[str, Column]
    labels: Mapping[str, Column]

    def arranged(self, order: npt.NDArray[np.int64]) -> "Probe":
        """Return the rows in another order, which may repeat some."""
        return Probe(
            features={name: column[order] for name, column in self.features.items()},
            labels={name: column[order] for name, column in self.labels.items()},
        )


def make_probe(schema: Schema, rows: int, seed: int = 1) -> Probe:
    """Make up rows that fit the schema, the same ones for the same seed."""
    random = np.random.default_rng(seed)
    features = {field.name: _column(field, rows, random) for field in schema.features}
    for field in schema.features:
        if field.pad is not None:
            features |= _of_any_length(field, features[field.name], random)
    return Probe(
        features=features,
        labels={field.name: _column(field, rows, random, label=True) for field in schema.labels},
    )


def _of_any_length(field: Field, column: Column, random: np.random.Generator) -> dict[str, Column]:
    """Cut the rows to random lengths, pad them, and add the lengths where the dataset has such a column."""
    lengths = random.integers(0, field.shape[0] + 1, len(column))
    beyond = np.arange(field.shape[0]) >= lengths[:, np.newaxis]
    cut = column.copy()
    cut[beyond] = np.array(field.pad.encode() if isinstance(field.pad, str) else field.pad, field.numpy_dtype)
    if field.lengths is None:
        return {field.name: cut}
    return {field.name: cut, field.lengths.name: lengths.astype(np.int32)}


def _column(field: Field, rows: int, random: np.random.Generator, *, label: bool = False) -> Column:
    shape = (rows, *field.shape)
    if field.example is not None:
        return np.resize(of_dtype(field, field.example), shape)
    if field.one_of is not None:
        return of_dtype(field, field.one_of)[random.integers(0, len(field.one_of), shape)]
    if field.dtype == "string":
        words: Any = random.integers(0, 1000, shape).astype("S")
        return words.astype(object)  # type: ignore[no-any-return]  # numpy says Any
    kind = field.numpy_dtype.kind
    if label and len(field.shape) == 1 and field.shape[0] > 1 and kind == "f":
        return np.eye(field.shape[0], dtype=field.numpy_dtype)[random.integers(0, field.shape[0], rows)]
    if label or kind in "iub":
        return within(random.integers(0, 2, shape), field).astype(field.numpy_dtype)
    return within(random.uniform(0.05, 0.95, shape), field).astype(field.numpy_dtype)
