"""Framing of JSON records: it finds those that can be one object at all, mostly by their first and last bytes.

Pure functions of each record's bytes, and the cheap half of the proof in `pipelines.formats.json.decoder`: a framed
record begins with `{`, ends with `}`, and has no NUL byte and no `null` beside the object.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.pieces import LARGEST

_WHITESPACE = b" \t\r\n"
_NULL_AFTER_OBJECT = re.compile(rb"\}[ \t\r\n]*null")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, ended or not: every quote begins a match, so to find them all takes linear time."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING, _CLOSING = tuple(b"[{"), tuple(b"]}")


class FramedJson(NamedTuple):
    """Records that may be one JSON object each, and verdicts on those that cannot be."""

    records: Sequence[bytes]
    """Without the whitespace around them."""
    rows: Sequence[int]
    """Where each is in the values, ascending."""
    refused: Sequence[tuple[int, Reason]]
    """Where the others are."""


def framed(values: Sequence[bytes | None]) -> FramedJson:
    """Strip the whitespace around each value, and refuse the values that cannot be one JSON object."""
    frames = [*enumerate(map(frame, values))]
    records = [(row, look) for row, look in frames if not isinstance(look, Reason)]
    refused = [(row, look) for row, look in frames if isinstance(look, Reason)]
    return FramedJson([record for _, record in records], [row for row, _ in records], refused)


def frame(value: bytes | None) -> bytes | Reason:
    """Return the record without the whitespace around it, or the reason why it cannot be one JSON object."""
    record = value.strip(_WHITESPACE) if value is not None else b""
    if not record:
        return Reason.EMPTY
    if not (record.startswith(b"{") and record.endswith(b"}")) or b"\0" in record or len(record) > LARGEST:
        return Reason.MALFORMED
    if b"null" in record and _NULL_AFTER_OBJECT.search(record) and ends_early(record):
        return Reason.MALFORMED
    return record


def without_strings(record: bytes) -> bytes:
    """Return the record without its strings and keys."""
    return _STRING.sub(b"", record)


def nesting(record: bytes) -> Int64s:
    """Return the depth of nesting after each bracket outside of strings."""
    brackets = np.frombuffer(without_strings(record).translate(None, _NOT_BRACKETS), np.uint8)
    return np.cumsum(np.isin(brackets, _OPENING).astype(np.int64) - np.isin(brackets, _CLOSING))


def ends_early(record: bytes) -> bool:
    """Return whether the object at the beginning of the record ends before the record does."""
    return bool((nesting(record)[:-1] <= 0).any())
