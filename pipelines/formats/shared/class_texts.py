"""Texts of classes as indices: the text that a record holds, by its place in the list of the settings. Pure."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.pipelines.schema import Column, Field


def indices_of(column: Column, field: Field) -> Column:
    """Return the index of each text, in the field's dtype. The decoder has refused every text that is not listed."""
    listed = pa.array([text.encode() for text in field.classes or ()], pa.binary())
    indices = pc.index_in(pa.array(column.ravel(), pa.binary()), value_set=listed)
    shaped: Column = indices.to_numpy(zero_copy_only=False).astype(field.numpy_dtype).reshape(column.shape)
    return np.ascontiguousarray(shaped)
