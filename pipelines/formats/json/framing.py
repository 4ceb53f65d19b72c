"""Framing of JSON records: it finds the records that can be one object at all, mostly by their first and last bytes.

Pure functions of each record's bytes, and the cheap half of the proof in `pipelines.formats.json.decoder`: a framed
record begins with `{`, ends with `}`, and has no NUL byte and no `null` beside the object.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.pieces import LARGEST, begins_of, empty_rows, joined
from millrace.pipelines.formats.shared.protocol import Refusal

_PIECE = 1 << 16
_SPARSE = 24
_WHITESPACE = b" \t\r\n"
_NULL_AFTER_OBJECT = re.compile(rb"\}[ \t\r\n]*null")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, ended or not: every quote begins a match, so to find them all takes linear time."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING, _CLOSING = tuple(b"[{"), tuple(b"]}")


class FramedJson(NamedTuple):
    """Values without the whitespace around them, and verdicts on those that cannot be one JSON object each."""

    records: Sequence[bytes]
    """All values, also those that are refused."""
    text: bytes
    """The same, joined."""
    begins: Int64s
    """Where each begins in it, and where the last one ends."""
    refused: list[Refusal]


def framed(values: Sequence[bytes | None]) -> FramedJson:
    """Strip the whitespace around each value, and refuse the values that cannot be one JSON object."""
    given = cast("Sequence[bytes]", values)
    try:
        text = joined(given)
    except TypeError:  # some are None
        given = [*given]
        for row in empty_rows(values):
            given[row] = b""
        text = joined(given)
    begins = begins_of(given)
    if all_framed(begins, text):
        return FramedJson(given, text, begins, [])
    refused, stripped = list[Refusal](), dict[int, bytes]()
    for row in _not_framed(text, begins):
        look = frame(given[row])
        if isinstance(look, Reason):
            refused.append(Refusal(row, look))
        elif len(look) < len(given[row]):
            stripped[row] = look
    if stripped:
        given = [stripped.get(row, value) for row, value in enumerate(given)]
        text, begins = joined(given), begins_of(given)
    return FramedJson(given, text, begins, refused)


def _not_framed(text: bytes, begins: Int64s) -> list[int]:
    """Return the values of a text that `frame` may refuse or change; all others it lets pass as they are."""
    codes = np.frombuffer(text, np.uint8)
    # Of an empty value both places hold a newline.
    lengths = np.diff(begins) - 1
    wrong = (codes[begins[:-1]] != ord("{")) | (codes[begins[1:] - 2] != ord("}"))
    wrong |= (lengths == 0) | (lengths > LARGEST)
    at = text.find(0)
    while at >= 0:
        row = int(begins.searchsorted(at, "right")) - 1
        wrong[row] = True
        at = text.find(0, int(begins[row + 1]))
    if b"null" in text:
        wrong[begins.searchsorted(_nulls_after_objects(text, begins), "right") - 1] = True
    return [int(index) for index in np.flatnonzero(wrong)]


def _nulls_after_objects(text: bytes, begins: Int64s) -> Int64s:
    """Return where `null` may follow an object: behind a brace that it or whitespace follows, if few do."""
    codes = np.frombuffer(text, np.uint8)
    closers = np.flatnonzero(codes[:-2] == ord("}"))
    after, then = codes[closers + 1], codes[closers + 2]
    # Between two records a `}`, a newline and a `{` stand, as a rule.
    found: Int64s = closers[(after == ord("n")) | ((after <= ord(" ")) & ((then == ord("n")) | (then <= ord(" "))))]
    if len(found) > len(begins) // _SPARSE:  # braces with whitespace behind them
        found = np.array([match.end() - 1 for match in _NULL_AFTER_OBJECT.finditer(text)], np.int64)
    return found


def all_framed(begins: Int64s, text: bytes) -> bool:
    """Return whether `frame` certainly lets every record pass as it is: the quick check for a whole chunk.

    `text` is the records, joined. False where a closer look is needed, as for `}null` inside a string.
    """
    codes = np.frombuffer(text, np.uint8)
    return bool(
        # Of an empty value both places hold a newline.
        (codes[begins[:-1]] == ord("{")).all()
        and (codes[begins[1:] - 2] == ord("}")).all()
        and b"\0" not in text
        and (_braces(codes) == len(begins) - 1 or b"null" not in text or not _NULL_AFTER_OBJECT.search(text))
        and np.diff(begins).max(initial=0) <= LARGEST
    )


def _braces(codes: npt.NDArray[np.uint8]) -> int:
    """Count the `}`, piece by piece: a temporary as large as the text costs more than the counting."""
    pieces = range(0, len(codes), _PIECE)
    return sum(int(np.count_nonzero(codes[at : at + _PIECE] == ord("}"))) for at in pieces)


def frame(value: bytes | None) -> bytes | Reason:
    """Return the record without the whitespace around it, or the reason why it cannot be one JSON object."""
    record = value.strip(_WHITESPACE) if value is not None else b""
    if not record:
        return Reason.EMPTY
    if not (record.startswith(b"{") and record.endswith(b"}")) or b"\0" in record or len(record) > LARGEST:
        return Reason.MALFORMED
    if _NULL_AFTER_OBJECT.search(record) and ends_early(record):
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
