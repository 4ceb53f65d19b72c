"""The fields of nested records in Arrow: the type to read them as, and the array of each field. Pure functions.

Of a record only the names on the asked paths are read. Where a record, or one around it, is null, its fields are null
too: a null parent is a missing field.
"""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millrace.pipelines.formats.shared.arrow_columns import element_type, in_lists
from millrace.pipelines.formats.shared.paths import AskedField, PathStep, asked_of, steps_of
from millrace.pipelines.schema import Field


class ArrowPaths:
    """The paths of some fields."""

    def __init__(self, fields: Iterable[Field]) -> None:
        """Raise ConfigError where two fields cannot both be read from a record."""
        fields = tuple(fields)
        self.asked: Mapping[str, AskedField] = asked_of(fields)
        self.schema = pa.schema([(name, _type(asked)) for name, asked in self.asked.items()])
        """The columns of a table of such records."""
        self._steps = {field.source: steps_of(field) for field in fields}

    def arrays(self, table: pa.Table) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return the array of each field by source: its values, or lists of them, one dimension a list."""
        return {
            source: table.column(steps[0].name)
            if len(steps) == 1
            else _within(_one_array(table.column(steps[0].name)), steps)
            for source, steps in self._steps.items()
        }


def _type(asked: AskedField) -> pa.DataType:
    if asked.leaf is not None:
        return in_lists(element_type(asked.leaf), asked.lists)
    return in_lists(pa.struct([(name, _type(member)) for name, member in asked.members.items()]), asked.lists)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _within(array: pa.Array, steps: Sequence[PathStep], lists: int | None = None) -> pa.Array:
    """Return what the steps lead to; the array holds the value of the first, in so many lists."""
    here, *rest = steps
    if not rest:
        return array
    if lists is None:
        lists = here.lists
    if lists:
        return _in_lists(array, _within(array.flatten(), steps, lists - 1))
    member = array.type.get_field_index(rest[0].name)
    # Unlike `field`, this shows a member of a null as null.
    return _within(pc.struct_field(array, [member]), rest)


def _in_lists(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Return lists like these of other values, which stand for what `flatten` gives of them."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, values, mask=lists.is_null() if lists.null_count else None)
