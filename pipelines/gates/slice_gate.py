"""The gate of slices: it keeps for the trainer what the records of a slice are known by.

A row travels to the trainer without the fields that only slices are made of, as the dataset and the model know none of
them. So their values are kept here: a few bytes a record for each field.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millrace.consumers.records import Int64s
from millrace.pipelines.gates.watching_gate import WatchingGate
from millrace.pipelines.stream.decode import Decoded, SliceValues


class Sliced(NamedTuple):
    """Records of one partition, with their values of each field."""

    offsets: Int64s
    """Ascending."""
    fields: Mapping[str, SliceValues]


class SliceGate(WatchingGate[Sliced, Sliced]):
    """Keeps the values of some fields of the records that pass."""

    def __init__(self, fields: Sequence[str]) -> None:
        super().__init__()
        self.fields = tuple(fields)

    def keep(self, decoded: Decoded) -> tuple[Int64s, Sliced]:
        """Keep the values of a chunk."""
        return decoded.offsets, Sliced(decoded.offsets, decoded.slices)

    def piece_of(self, kept: Sliced, rows: slice, start: int, end: int) -> Sliced:
        """Return the values of some records."""
        del start, end
        fields = {name: one.rows(rows.start, rows.stop) for name, one in kept.fields.items()}
        return Sliced(kept.offsets[rows], fields)
