"""Probe batches: made-up rows that fit a schema, to build, trace and examine a model before any record has come.

Pure; numpy only. Numbers lie in (0, 1), integers and labels are 0 or 1, so that they fit any embedding, any logarithm
and nearly any loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.schema import Column, Field, Schema


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows [B, …] of every feature and label."""

    features: Mapping[str, Column]
    labels: Mapping[str, Column]

    def arranged(self, order: npt.NDArray[np.int64]) -> "Probe":
        """The rows in another order, with repetitions."""
        return Probe(
            features={name: column[order] for name, column in self.features.items()},
            labels={name: column[order] for name, column in self.labels.items()},
        )


def make_probe(schema: Schema, rows: int, seed: int = 1) -> Probe:
    """Make rows up; the same for the same seed."""
    random = np.random.default_rng(seed)
    return Probe(
        features={field.name: _column(field, rows, random) for field in schema.features},
        labels={field.name: _column(field, rows, random, label=True) for field in schema.labels},
    )


def _column(field: Field, rows: int, random: np.random.Generator, *, label: bool = False) -> Column:
    shape = (rows, *field.shape)
    if field.dtype == "string":
        words: Any = random.integers(0, 1000, shape).astype("S")
        return words.astype(object)  # type: ignore[no-any-return]  # numpy says Any
    kind = field.numpy_dtype.kind
    if label and len(field.shape) == 1 and field.shape[0] > 1 and kind == "f":
        return np.eye(field.shape[0], dtype=field.numpy_dtype)[random.integers(0, field.shape[0], rows)]
    if label or kind in "iub":
        return random.integers(0, 2, shape).astype(field.numpy_dtype)
    return random.uniform(0.05, 0.95, shape).astype(field.numpy_dtype)
