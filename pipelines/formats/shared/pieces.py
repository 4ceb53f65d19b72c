"""The records of a chunk as one text, and the pieces that a chunk is decoded in. Pure functions.

Records are joined by newlines and checked for UTF-8; values without bytes are left out; decoded pieces are cut to the
good rows and joined.
"""

from collections.abc import Sequence
from itertools import filterfalse
from operator import length_hint

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal


def only_good(piece: DecodedValues, good: npt.NDArray[np.bool_]) -> DecodedValues:
    """Return the piece with its good rows only, and the same verdicts."""
    if good.all():
        return piece
    rows = np.flatnonzero(good)
    return DecodedValues(
        piece.kept[good],
        # Rows of several elements by number: by mask they take numpy ten times as long, and those of one half as long.
        {name: each[good] if each.ndim == 1 else each.take(rows, axis=0) for name, each in piece.columns.items()},
        piece.refused,
        {name: lengths[good] for name, lengths in piece.lengths.items()},
    )


def together(pieces: Sequence[DecodedValues], refused: tuple[Refusal, ...]) -> DecodedValues:
    """Join the pieces, of which each is in order, under these verdicts, in the order of their values.

    The first has every column and no rows, so that one other needs no copy.
    """
    pieces = [piece for piece in pieces if len(piece.kept)] or pieces[:1]
    first = pieces[0]
    if len(pieces) == 1:
        return DecodedValues(first.kept, first.columns, refused, first.lengths)
    kept = np.concatenate([piece.kept for piece in pieces])
    columns = {source: np.concatenate([piece.columns[source] for piece in pieces]) for source in first.columns}
    lengths = {source: np.concatenate([piece.lengths[source] for piece in pieces]) for source in first.lengths}
    if not (np.diff(kept) > 0).all():
        order = np.argsort(kept)
        kept = kept[order]
        columns = {source: column[order] for source, column in columns.items()}
        lengths = {source: each[order] for source, each in lengths.items()}
    return DecodedValues(kept, columns, refused, lengths)


def empty_rows(values: Sequence[bytes | None]) -> list[int]:
    """Return the indices of the values that are None or have no bytes, ascending."""
    if all(values):
        return []
    # How far the iterator has come tells the index: to count takes three times as long.
    left, count = iter(values if isinstance(values, list) else [*values]), len(values)
    return [count - length_hint(left) - 1 for _ in filterfalse(None, left)]


def without_empty(values: Sequence[bytes | None]) -> tuple[Sequence[bytes], Int64s, list[Refusal]]:
    """Return the values that have bytes, with their indices, and a refusal of each other."""
    empty = empty_rows(values)
    if not empty:
        return values, np.arange(len(values)), []  # type: ignore[return-value]  # none is None
    filled = np.delete(np.arange(len(values)), empty)
    return [*filter(None, values)], filled, [Refusal(index, Reason.EMPTY) for index in empty]


LARGEST = 1 << 30
"""Bytes of one text. Arrow counts in 32 bits: a larger record is refused, a larger chunk is parsed in parts."""


_PIECE = 1 << 16
"""Bytes that are decoded together: those behind an error are decoded again."""


def joined(records: Sequence[bytes]) -> bytes:
    """Return the records as one text, with a newline after each."""
    return b"\n".join((*records, b""))


def begins_of(records: Sequence[bytes]) -> Int64s:
    """Return where each record begins in the text of all, and where the text ends."""
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths + 1)])


def without(records: Sequence[bytes], rows: Sequence[int]) -> list[bytes]:
    """Return all records but those of these rows, which ascend."""
    rest, first = list[bytes](), 0
    for row in rows:
        rest += records[first:row]
        first = row + 1
    return [*rest, *records[first:]]


def text_without(text: bytes, begins: Int64s, rows: Sequence[int]) -> bytes:
    """Return the text of all records but those of these rows, which ascend."""
    out = np.asarray(rows, np.int64)
    view, at = memoryview(text), [0, *np.column_stack((begins[out], begins[out + 1])).ravel().tolist(), len(text)]
    return b"".join(view[start:end] for start, end in zip(at[::2], at[1::2], strict=True))


def is_utf8(text: bytes) -> bool:
    """Return whether a text is UTF-8. Beyond ASCII Arrow checks it, without the GIL."""
    if text.isascii():
        return True
    # A large array, because the joined records of a chunk may exceed what 32 bits count.
    offsets = pa.py_buffer(np.array([0, len(text)], dtype=np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(text)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def not_utf8(text: bytes, begins: Int64s) -> list[int]:
    """Return the records that are not UTF-8."""
    found, at, view = list[int](), 0, memoryview(text)
    while at < len(text):
        end = int(begins[min(int(begins.searchsorted(at + _PIECE)), len(begins) - 1)])
        try:
            str(view[at:end], "utf-8")
        except UnicodeDecodeError as error:
            row = int(begins.searchsorted(at + error.start, "right")) - 1
            found.append(row)
            end = int(begins[row + 1])
        at = end
    return found
