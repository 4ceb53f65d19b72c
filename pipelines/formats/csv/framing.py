"""Framing of CSV records: it finds the records that are exactly one row, for a whole chunk at once.

Pure functions of each record's own bytes. A record is a row as RFC 4180 defines it: columns between delimiters, each
either without any quote or line break, or wholly in quotes, with a quote inside written twice. One line break at the
end belongs to no column. In such a record quotes open and close by turns, so the number of quotes before a byte *in its
own record* shows whether the byte is inside quotes. No record is judged by bytes of another, and a quote that opens in
one record cannot reach the next.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.pieces import (
    LARGEST,
    is_utf8,
    joined,
    not_utf8,
    text_without,
    without,
    without_empty,
)
from millrace.pipelines.formats.shared.protocol import Refusal

# Arrow drops one at the start of its text and nowhere else, so what a record means would depend on its place.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SPARSE = 24
"""If more than one record in this many holds quotes, all are looked at by all rules."""
Mask = npt.NDArray[np.bool_]


class FramedCsv(NamedTuple):
    """Records that are one row each, and verdicts on the others."""

    records: Sequence[bytes]
    indices: Int64s
    """The index of each record in the values that were passed in, ascending."""
    text: bytes
    """The records, joined."""
    refused: list[Refusal]


class _Text(NamedTuple):
    """Joined records, and where each begins and ends."""

    codes: npt.NDArray[np.uint8]
    starts: Int64s
    ends: Int64s
    """The place of the newline that was put after each record."""

    @classmethod
    def of(cls, records: Sequence[bytes], text: bytes) -> "_Text":
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        ends = np.cumsum(lengths + 1) - 1
        return cls(np.frombuffer(text, np.uint8), ends - lengths, ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The form that a record must have."""

    columns: int
    delimiter: int
    """The code of the byte."""
    quote: int | None

    def framed(self, values: Sequence[bytes | None]) -> FramedCsv:
        """Return the values that are one row each, and refuse the others."""
        with suppress(TypeError):  # what joining values that are None raises
            records = cast("Sequence[bytes]", values)
            text = joined(records)
            if self._plain(records, text):
                return FramedCsv(records, np.arange(len(records)), text, [])
        return self._sorted_out(values)

    def _plain(self, records: Sequence[bytes], text: bytes) -> bool:
        """Return whether every record is certainly a row as it is, without quotes or line breaks: the quick check."""
        if not records:
            return True
        if (
            text.count(b"\n") != len(records)
            or b"\r" in text
            or (self.quote is not None and self.quote in text)
            or not is_utf8(text)
        ):
            return False
        at = _Text.of(records, text)
        lengths = at.ends - at.starts
        if not lengths.min() or lengths.max() > LARGEST or _BYTE_ORDER_MARK in text:
            return False
        delimiters = np.add.reduceat(at.codes == self.delimiter, at.starts, dtype=np.int64)
        return bool((delimiters == self.columns - 1).all())

    def _sorted_out(self, values: Sequence[bytes | None]) -> FramedCsv:
        """Check the records with all rules: the slow way, for a chunk that the quick check does not settle."""
        given, indices, refused = without_empty(values)
        if not given:
            return FramedCsv([], indices, b"", refused)
        records, text, at = _without_line_ends([*given])
        good = self._rows_of(records, text, at)
        if not is_utf8(text):
            good[not_utf8(text, np.append(at.starts, len(text)))] = False
        bad = np.flatnonzero(~good).tolist()
        refused += [
            Refusal(index, Reason.MALFORMED if records[row] else Reason.EMPTY)
            for row, index in zip(bad, indices[bad].tolist(), strict=True)
        ]
        kept = text_without(text, np.append(at.starts, len(text)), bad)
        return FramedCsv(without(records, bad), indices[good], kept, refused)

    def _rows_of(self, records: Sequence[bytes], text: bytes, at: _Text) -> Mask:
        """Return a mask of the records that are rows: the few with quotes are looked at by themselves."""
        quotes = np.empty(0, np.int64) if self.quote is None else np.flatnonzero(at.codes == self.quote)
        quoted = np.unique(np.searchsorted(at.ends, quotes))
        if len(quoted) > len(records) // _SPARSE:
            return self._rows(records, text)
        lengths = at.ends - at.starts
        good: Mask = (lengths > 0) & (lengths <= LARGEST)
        good &= np.add.reduceat(at.codes == self.delimiter, at.starts, dtype=np.int64) == self.columns - 1
        breaks = (at.codes == ord("\n")) | (at.codes == ord("\r"))
        breaks[at.ends] = False
        good[np.searchsorted(at.ends, np.flatnonzero(breaks))] = False
        if _BYTE_ORDER_MARK in text:
            good &= ~_marked(records)
        if len(quoted):
            few = [records[index] for index in quoted.tolist()]
            good[quoted] = self._rows(few, joined(few))
        return good

    def _rows(self, records: Sequence[bytes], text: bytes) -> Mask:
        """Return a mask of the records that are rows, by all rules."""
        at = _Text.of(records, text)
        quotes = np.empty(0, np.int64) if self.quote is None else np.flatnonzero(at.codes == self.quote)
        first = np.searchsorted(quotes, at.starts)
        good = self._quoted_well(at, quotes, first)
        outside = _outside(at, quotes, first, np.flatnonzero(at.codes == self.delimiter))
        good &= np.bincount(outside, minlength=len(records)) == self.columns - 1
        breaks = np.flatnonzero((at.codes == ord("\n")) | (at.codes == ord("\r")))
        good[_outside(at, quotes, first, np.setdiff1d(breaks, at.ends, assume_unique=True))] = False
        lengths = at.ends - at.starts
        result: Mask = good & (lengths > 0) & (lengths <= LARGEST) & ~_marked(records)
        return result

    def _quoted_well(self, at: _Text, quotes: Int64s, first: Int64s) -> Mask:
        """Return a mask of the records whose quotes come in pairs that open and close where columns begin and end."""
        good: Mask = np.diff(first, append=len(quotes)) % 2 == 0
        if not len(quotes):
            return good
        owner = np.searchsorted(at.ends, quotes)
        opens = (np.arange(len(quotes)) - first[owner]) % 2 == 0
        # Both stay in the text: a newline follows each record, and index -1, before the first byte, is the last one.
        before, after = at.codes[quotes - 1], at.codes[quotes + 1]
        begins = (quotes == at.starts[owner]) | (before == self.delimiter) | (before == self.quote)
        ends = (quotes + 1 == at.ends[owner]) | (after == self.delimiter) | (after == self.quote)
        good[owner[~np.where(opens, begins, ends)]] = False
        return good


def _marked(records: Sequence[bytes]) -> Mask:
    """Return a mask of the records that begin with a byte order mark."""
    return np.fromiter((record.startswith(_BYTE_ORDER_MARK) for record in records), np.bool_, len(records))


def _without_line_ends(records: list[bytes]) -> tuple[list[bytes], bytes, _Text]:
    """Return the records without one line break at the end of each, and joined, and where each is."""
    text = joined(records)
    at = _Text.of(records, text)
    # Before an empty record is the newline of the one before, or the last byte of all, which is a newline too.
    last = at.codes[at.ends - 1]
    ended = np.flatnonzero((at.ends > at.starts) & ((last == ord("\n")) | (last == ord("\r"))))
    if not len(ended):
        return records, text, at
    for index in ended.tolist():
        records[index] = without_line_end(records[index])
    text = joined(records)
    return records, text, _Text.of(records, text)


def without_line_end(record: bytes) -> bytes:
    """Return the record without one line break at its end, as producers of lines leave it there."""
    return record.removesuffix(b"\n").removesuffix(b"\r") if record.endswith((b"\n", b"\r")) else record


def _outside(at: _Text, quotes: Int64s, first: Int64s, places: Int64s) -> Int64s:
    """Return the index of the record of each place that is outside of quotes."""
    owner = np.searchsorted(at.ends, places)
    if not len(quotes):
        return owner
    result: Int64s = owner[(np.searchsorted(quotes, places) - first[owner]) % 2 == 0]
    return result
