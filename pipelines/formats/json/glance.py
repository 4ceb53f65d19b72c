"""A glance at JSON records: what text a field at the top certainly holds, found without a parser.

A record is told if all of this is so: it begins with `{` and ends with `}`; it holds neither a backslash nor a NUL; the
field's name in quotes stands in it once; before that no other `{` stands than the first; and behind it comes a colon,
then a quote, with one space at most on either side of the colon.

Then the name is a key at the top, if the record is JSON: without a backslash a quote ends or begins a string, so that
the name in quotes is a string of its own, which a colon makes a key; and with no other brace before it no other object
is open than the record. As it stands there once, the field holds the text behind the quote, up to the next one. What
else the record holds is not looked at. A record that is not told may hold anything, and is parsed.

Holds no state; runs on the decode pool's threads, mostly without the interpreter's lock.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.format import HEADER, Glanced
from millrace.pipelines.formats.shared.pieces import begins_of

_AT_ONCE = 2048
"""Records of one look: their bytes stay in the processor's cache."""
_WORD = 8
_BEHIND = 64
"""Bytes behind the records, so that what is compared there is in the text."""
Mask = npt.NDArray[np.bool_]


class JsonGlance:
    """Looks at one field."""

    def __init__(self, name: str, texts: frozenset[bytes], *, framed: bool) -> None:
        """`framed`: whether a record begins with the number of a schema."""
        self._name, self._texts, self._framed = b'"' + name.encode() + b'"', texts, framed
        self._behind = b"\n" * (_BEHIND + max(map(len, texts)))

    def __call__(self, values: Sequence[bytes | None]) -> Glanced:
        """Return which values are records that hold one of the texts, and which hold another one."""
        parts = [self._glanced(values[at : at + _AT_ONCE]) for at in range(0, len(values), _AT_ONCE)]
        listed, others = ([each[which] for each in parts] for which in (0, 1))
        none = np.zeros(0, np.bool_)
        return Glanced(np.concatenate([none, *listed]), np.concatenate([none, *others]))

    def _glanced(self, values: Sequence[bytes | None]) -> Glanced:
        if self._framed:
            records = [value[HEADER:] if value and value[0] == 0 else b"" for value in values]
        else:
            records = [value or b"" for value in values]
        text, begins = b"\n".join((*records, self._behind)), begins_of(records)
        codes = np.frombuffer(text, np.uint8)
        places = _places(text, self._name)
        rows = begins.searchsorted(places, "right") - 1
        usable = np.bincount(rows, minlength=len(records)) == 1
        # Of an empty record the second place holds the newline of the one before.
        first = codes[begins[:-1]] == ord("{")
        usable &= first & (codes[begins[1:] - 2] == ord("}"))
        for never in (b"\\", b"\0"):
            if never in text:
                usable[begins.searchsorted(np.flatnonzero(codes == never[0]), "right") - 1] = False
        is_brace = codes == ord("{")
        if np.count_nonzero(is_brace) > np.count_nonzero(first):
            braces = np.flatnonzero(is_brace)
            usable[rows] &= braces.searchsorted(places) - braces.searchsorted(begins[rows]) == 1
        at = places + len(self._name)
        at += codes[at] == ord(" ")
        told = usable[rows] & (codes[at] == ord(":"))
        at += 1
        at += codes[at] == ord(" ")
        told &= codes[at] == ord('"')
        is_listed = np.zeros(len(rows), np.bool_)
        for listed in self._texts:
            same = told.copy()
            for ahead, code in enumerate(listed + b'"', 1):
                same &= codes[at + ahead] == code
            is_listed |= same
        glanced = Glanced(np.zeros(len(records), np.bool_), np.zeros(len(records), np.bool_))
        glanced.listed[rows[is_listed]] = glanced.others[rows[told & ~is_listed]] = True
        return glanced


def _places(text: bytes, name: bytes) -> Int64s:
    """Return where a text holds a name, which has three bytes at least."""
    # Words at each of their alignments are compared faster than bytes; and where none is the same, eight are passed
    # over at once.
    size = 4 if len(name) >= 4 else 2
    word = int.from_bytes(name[:size], "little")
    count = (len(text) // size - 1) // _WORD * _WORD
    same = np.empty((size, count), np.bool_)
    for shift in range(size):
        np.equal(np.frombuffer(text, f"<u{size}", count, shift), word, out=same[shift])
    eights = np.flatnonzero(same.reshape(-1).view(np.uint64))
    which, inside = np.nonzero(same.reshape(-1, _WORD)[eights])
    shifts, words = np.divmod(eights[which] * _WORD + inside, count)
    places: Int64s = np.sort(words * size + shifts)
    codes = np.frombuffer(text, np.uint8)
    for ahead, code in enumerate(name[size:], size):
        places = places[codes[places + ahead] == code]
    return places
