"""Decoded rows as the signature of an export takes them. NumPy alone: a server of predictions loads no Keras."""

from collections.abc import Mapping

import numpy as np

from millrace.pipelines.schema import Column, Schema

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
