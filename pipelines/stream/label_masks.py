"""Labels that a record may lack: beside each stands a column that says which rows have it, under a name of its own.

A decoder puts a mark in the place of a label that is missing (`Field.mark`), which no record may hold; here the mark
becomes a value that a record may hold, and False in the column beside it. That column travels with the labels through
windows, joins, blocks and the reservoir; `preprocess` is not given it. Pure; runs on any thread.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.pipelines.schema import PRESENT, Column, Field

Mask = npt.NDArray[np.bool_]


def marked_rows(column: Column, field: Field) -> Mask:
    """Return which rows of a decoded column have the mark of a missing label."""
    mark: Any = field.as_read.missing
    if isinstance(mark, float):
        found: Column = np.isnan(column)
    else:
        found = np.equal(column, mark.encode() if isinstance(mark, str) else mark)
    return np.asarray(found.any(axis=tuple(range(1, column.ndim))), np.bool_)


def without_marks(
    fields: Sequence[Field], columns: Mapping[str, Column]
) -> tuple[Mapping[str, Column], dict[str, Mask]]:
    """Return the columns by source with no mark in them, and by its own name the column of each label's rows."""
    masked = [field for field in fields if field.masked]
    if not masked:
        return columns, {}
    filled, present = dict(columns), dict[str, Mask]()
    for field in masked:
        column = columns[field.source]
        missing = marked_rows(column, field)
        present[field.name + PRESENT] = ~missing
        if missing.any():
            filled[field.source] = column.copy()
            filled[field.source][missing] = field.classes[0].encode() if field.classes else field.stand_in
    return filled, present


def apart(labels: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the labels, and the columns that say which rows have them, both by name."""
    masks = {name: column for name, column in labels.items() if is_mask(name, labels)}
    return {name: column for name, column in labels.items() if name not in masks}, masks


def is_mask(name: str, labels: Mapping[str, Any]) -> bool:
    """Return whether the column of this name says which rows have another label."""
    return name.endswith(PRESENT) and name.removesuffix(PRESENT) in labels


def masks_of(labels: Any) -> dict[str, Any]:
    """Return which rows have each label that they may lack, by the name of the label."""
    if not isinstance(labels, Mapping):
        return {}
    return {name.removesuffix(PRESENT): column for name, column in labels.items() if is_mask(name, labels)}


def joined(label: Any, masks: Mapping[str, Any]) -> Any:
    """Return labels with what says which rows have them; raise ValueError with the name of a label that is lost."""
    if not masks:
        return label
    names = label.keys() if isinstance(label, Mapping) else ()
    if lost := [name for name in masks if name.removesuffix(PRESENT) not in names]:
        raise ValueError(lost[0].removesuffix(PRESENT))
    return {**label, **masks}
