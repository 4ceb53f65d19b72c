"""Questions to an export and its answers, as text that keeps every bit; and by how much answers may differ.

A question holds input tensors by name, as `raw_columns` makes them of decoded rows; its answer output tensors. No
record is written to a file. NumPy alone: a server of predictions loads no Keras.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from millrace.pipelines.schema import Column, Schema
from millrace.pipelines.stream.record_sample import column_document, column_of

ROUNDING = 16
"""How many units of the last place of its dtype an answer may differ by, where the answer is 1; sums in another order
differ by fewer."""
SIGNATURE = "serving_default"


def as_text(columns: Iterable[Mapping[str, Any]]) -> str:
    """Return requests, or answers, as text that keeps every bit."""
    return json.dumps([{name: column_document(np.asarray(one)) for name, one in each.items()} for each in columns])


def of_text(text: str) -> list[dict[str, Column]]:
    """Return the requests, or the answers, of a text."""
    return [{name: column_of(document) for name, document in each.items()} for each in json.loads(text)]


def tolerance_of(answers: Iterable[Column], units: int = ROUNDING) -> float:
    """Return the greatest difference that rounding explains, of the coarsest dtype among the answers."""
    return max((_rounding(answer, units) for answer in answers), default=0.0)


def difference(one: Column, other: Column) -> float:
    """Return the greatest difference of two columns, relative where values are greater than 1; infinite for texts."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if np.array_equal(one, other) or not one.size:
        return 0.0
    if one.dtype.kind in "ObSU":
        return float("inf")
    a, b = one.astype(np.float64), other.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b) / np.maximum(1.0, np.abs(a)))
    return float(np.nan_to_num(apart.max(), nan=np.inf, posinf=np.inf))


def differing(ours: Mapping[str, Column], theirs: Mapping[str, Column], units: int = ROUNDING) -> dict[str, float]:
    """Return by how much each column differs that differs by more than rounding, or is not on both sides."""
    found = {name: float("inf") for name in ours.keys() ^ theirs.keys()}
    for name in ours.keys() & theirs.keys():
        apart = difference(ours[name], theirs[name])
        if apart > _rounding(ours[name], units):
            found[name] = apart
    return found


def _rounding(column: Column, units: int) -> float:
    return units * float(np.finfo(str(column.dtype)).eps) if column.dtype.kind == "f" else 0.0


def plain(tensor: Any) -> Column:
    """Return a tensor as an array of one of numpy's own dtypes: a bfloat16 as float32, which holds it exactly."""
    array: Column = tensor.numpy()
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


VALUES, SPLITS = "_values", "_row_splits"


def raw_columns(schema: Schema, features: Mapping[str, Column]) -> dict[str, Column]:
    """Return the tensors of decoded rows by name."""
    fed: dict[str, Column] = {}
    for field in schema.features:
        column = features[field.name]
        if field.classes is not None:
            column = np.array([text.encode() for text in field.classes], object)[column.astype(np.int64)]
        if field.pad is None:
            fed[field.name] = column
        elif field.lengths is not None:
            lengths = features[field.lengths.name].astype(np.int64)
            fed[field.name + VALUES] = column[np.arange(field.shape[0]) < lengths[:, None]]
            fed[field.name + SPLITS] = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        else:  # what was padded cannot be told from what was not, and gives the same rows
            fed[field.name + VALUES] = column.reshape(-1, *field.shape[1:])
            fed[field.name + SPLITS] = np.arange(len(column) + 1, dtype=np.int64) * field.shape[0]
    return fed
