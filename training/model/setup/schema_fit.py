"""Checking that a model's inputs fit a schema; where they do not, both are shown side by side.

Pure inspection; runs while the model is built.
"""

from collections.abc import Mapping
from typing import Any

from millrace.pipelines.schema import RAGGED
from millrace.pipelines.stream.blocks import Rows
from millrace.training.errors import ModelError


def check_inputs(model: Any, rows: Rows) -> None:
    """Refuse a functional model whose inputs differ from the features (after `preprocess`) in name, shape or kind."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return
    wanted = {tensor.name: _Input(tuple(tensor.shape[1:]), str(tensor.dtype)) for tensor in inputs}
    offered = {
        name: _Input(tuple(column.shape[2:]), column.dtype.name)
        for name, column in rows.features.items()
        if not name.endswith(RAGGED)
    }
    if len(wanted) == len(offered) == 1 and not isinstance(getattr(model, "_inputs_struct", None), dict):
        offered = dict(zip(wanted, offered.values(), strict=True))
    if wanted.keys() != offered.keys() or any(not wanted[name].takes(offered[name]) for name in wanted):
        raise ModelError(f"the model's inputs do not fit records.features: {_side_by_side(wanted, offered)}")


class _Input:
    """The shape of one row and its dtype."""

    def __init__(self, shape: tuple[int | None, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype

    def takes(self, other: "_Input") -> bool:
        """Return whether this input takes such a column. Keras casts numbers, never text."""
        shapes = len(self.shape) == len(other.shape) or (self.shape, other.shape) in {((1,), ()), ((), (1,))}
        sizes = all(a is None or a == b for a, b in zip(self.shape, other.shape, strict=False))
        return shapes and sizes and (self.dtype == "string") == (other.dtype == "string")

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape) or ''}"


def _side_by_side(wanted: Mapping[str, _Input], offered: Mapping[str, _Input]) -> str:
    rows = []
    for name in sorted(wanted.keys() | offered.keys()):
        model, schema = wanted.get(name), offered.get(name)
        if model is None or schema is None or not model.takes(schema):
            rows.append(f"{name}: the model wants {model or 'nothing'}, the schema has {schema or 'nothing'}")
    return "; ".join(rows)
