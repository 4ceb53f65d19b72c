"""Records as one text: joined by newlines, and whether it is UTF-8. Pure functions."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

LARGEST = 1 << 30
"""Bytes. Arrow counts in 32 bits: a larger record is refused, more than that of records are parsed in turns."""


def joined(records: Sequence[bytes]) -> bytes:
    """The records, a newline after each."""
    return b"\n".join((*records, b""))


def is_utf8(text: bytes) -> bool:
    """Whether it is UTF-8; beyond ASCII Arrow checks, off the GIL."""
    if text.isascii():
        return True
    offsets = pa.py_buffer(np.array([0, len(text)], dtype=np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(text)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
