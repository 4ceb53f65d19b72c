"""What a field allows and means: `min`, `max` and `one_of`, checked for a whole column at once, and texts of classes.

Pure functions of each element's own value. Bounds and listed numbers are first rounded to the dtype of the field, as
the numbers of the records are: `max: 0.1` lets the float32 nearest to 0.1 pass.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.consumers.reasons import Reason
from millrace.pipelines.schema import Column, Field

Mask = npt.NDArray[np.bool_]


def broken_by_numbers(column: Column, field: Field) -> Iterator[tuple[Reason, Mask]]:
    """Yield the elements that break a rule, by reason. NaN breaks no bound; it has a reason of its own."""
    if field.min is not None:
        yield Reason.OUT_OF_RANGE, np.less(column, np.asarray(field.min, column.dtype))
    if field.max is not None:
        yield Reason.OUT_OF_RANGE, np.greater(column, np.asarray(field.max, column.dtype))
    if field.one_of is not None:
        yield Reason.NOT_ALLOWED, np.isin(column, np.array(field.one_of, column.dtype), invert=True)


def words_not_allowed(words: pa.Array, field: Field) -> Mask | None:
    """Return a mask of the texts that are not listed, or None where the field has no list. No text may be null."""
    if field.one_of is None:
        return None
    listed = pa.array([str(word).encode() for word in field.one_of], words.type)
    allowed: Mask = pc.is_in(words, value_set=listed).to_numpy(zero_copy_only=False)
    return ~allowed


def indices_of(column: Column, field: Field) -> Column:
    """Return the index of each text, in the field's dtype. The decoder has refused every text that is not listed."""
    listed = pa.array([text.encode() for text in field.classes or ()], pa.binary())
    indices = pc.index_in(pa.array(column.ravel(), pa.binary()), value_set=listed)
    shaped: Column = indices.to_numpy(zero_copy_only=False).astype(field.numpy_dtype).reshape(column.shape)
    return np.ascontiguousarray(shaped)
