"""Records as one text: joined by newlines, and checked for UTF-8. Pure functions."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.consumers.records import Int64s

LARGEST = 1 << 30
"""Bytes of one text. Arrow counts in 32 bits: a larger record is refused, a larger chunk is parsed in parts."""


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


def not_utf8(text: bytes | memoryview, begins: Int64s) -> list[int]:
    """Return the records that are not UTF-8."""
    found, at, view = list[int](), 0, memoryview(text)
    while at < len(text):
        try:
            str(view[at:], "utf-8")
        except UnicodeDecodeError as error:
            row = int(begins.searchsorted(at + error.start, "right")) - 1
            found.append(row)
            at = int(begins[row + 1])
        else:
            break
    return found
