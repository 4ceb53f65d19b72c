"""Which JSON records the parser probably refuses, by their bytes, for all of a chunk at once.

Pure functions. The text is not parsed: a colon behind the name of a field is taken to be where its value begins, also
in a string. So what is found are hints, as in `suspects`, and a record in an unusual form is not seen.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.json.suspects import with_several_values
from millrace.pipelines.formats.shared.paths import AskedField
from millrace.pipelines.formats.shared.pieces import not_utf8

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
_COLON, _SPACE, _WORD = ord(":"), ord(" "), 8
_NO_ASCII = 128
_PIECE = 1 << 18
"""Bytes that are looked at together: what is made of them stays in the processor's cache."""
_TOO_LONG = 20
"""Digits of a whole number that is too large for the parser."""
_NUMBER, _TEXT, _BOOL, _LIST, _RECORD = b"-0123456789NI", b'"', b"tf", b"[", b"{"
_ONES = np.uint64(0x0101010101010101)
"""A one in each of eight bytes; a byte times this is that byte in all of them."""
_ZEROS, _POINTS, _POWERS, _LOWER = (_ONES * np.uint64(code) for code in (ord("0"), ord("."), ord("e"), 0x20))
_BEYOND_NINE, _HIGH = _ONES * np.uint64(0x80 - 10), _ONES * np.uint64(0x80)


class _Names(NamedTuple):
    """Names of which no two end with the same byte, so that this byte tells which of them it can be.

    Each array is by the number of a name. Number 0 is no name: its mask leaves nothing, and its tail is not nothing.
    """

    numbers: Int64s
    """By the last byte of a name."""
    tails: Words
    """The end of each name, a quote and a colon: eight bytes at most."""
    masks: Words
    begins: Mask
    """By number and byte, flat: whether a value of the field's type can begin with it."""
    whole: Mask
    """Whether it is a whole number."""


class _LookedFor(NamedTuple):
    """What the values of one name begin with."""

    tail: bytes
    """The end of the name, a quote and a colon: eight bytes at most."""
    begins: Mask
    whole: bool


class JsonLook:
    """What a schema asks for, as a look at bytes can find it."""

    def __init__(self, asked: Mapping[str, AskedField]) -> None:
        nodes: dict[str, list[AskedField]] = {}
        for name, node in _all_nodes(asked.items()):
            nodes.setdefault(name, []).append(node)
        groups: list[dict[int, _LookedFor]] = []
        for name, alike in nodes.items():
            named = _looked_for(name, alike)
            last = named.tail[-3]
            free = next((group for group in groups if last not in group), None)
            if free is None:
                groups.append(free := {})
            free[last] = named
        self.names = [_names_of(group) for group in groups]
        self.doubtful = np.zeros(256 * 256, np.bool_)
        """By the last byte of a name, and the first one of a value: whether more has to be looked at."""
        for group in groups:
            for last, named in group.items():
                self.doubtful[last << 8 : last + 1 << 8] |= named.whole | ~named.begins


def suspects_of(text: bytes, begins: Int64s, look: JsonLook) -> list[int]:
    """Return the records that the parser probably refuses, ascending."""
    found = list[int]()
    for first, last in _pieces(begins):
        place = int(begins[first])
        piece = memoryview(text)[place : int(begins[last])]
        found += [first + row for row in _suspects_of_piece(piece, begins[first : last + 1] - place, look)]
    return found


def _pieces(begins: Int64s) -> Iterator[tuple[int, int]]:
    """Yield the rows of each piece: its first one, and the one behind its last."""
    first, rows = 0, len(begins) - 1
    while first < rows:
        last = max(first + 1, int(begins.searchsorted(begins[first] + _PIECE, "right")) - 1)
        yield first, last
        first = last


def _suspects_of_piece(piece: memoryview, begins: Int64s, look: JsonLook) -> list[int]:
    codes = np.frombuffer(piece, np.uint8)
    # Control characters inside of records: the newline that ends one is none.
    controls = codes < _SPACE
    controls[begins[1:] - 1] = False
    found = [*_wrongly_typed(codes, look), np.flatnonzero(controls)]
    rows = {*(begins.searchsorted(np.concatenate(found), "right") - 1).tolist()}
    rows.update(with_several_values(piece, begins))
    if codes.max(initial=0) >= _NO_ASCII:
        rows.update(not_utf8(piece, begins))
    return sorted(rows)


def _wrongly_typed(codes: Bytes, look: JsonLook) -> Iterator[Int64s]:
    """Yield where a value of a field begins that is of another type."""
    colons = np.flatnonzero(codes == _COLON)
    # Before the first ones there is no whole word. Nothing is lost but a hint on one record of a piece.
    colons = colons[colons.searchsorted(_WORD - 1) :]
    if not len(colons):
        return
    words = np.ndarray((len(codes) - _WORD + 1,), "<u8", codes, strides=(1,))
    values = colons + 1
    firsts = codes[values]
    if (spaced := firsts == _SPACE).any():
        values += spaced
        firsts = codes[values]
    lasts = codes[colons - 2]
    doubtful = np.flatnonzero(look.doubtful.take(lasts.astype(np.uint16) << 8 | firsts))
    values, lasts, firsts = values[doubtful], lasts[doubtful], firsts[doubtful]
    tails = words[colons[doubtful] - (_WORD - 1)]
    for names in look.names:
        numbers = names.numbers[lasts]
        named = tails & names.masks[numbers] == names.tails[numbers]
        yield values[np.flatnonzero(named & ~names.begins[numbers << 8 | firsts])]
        if names.whole.any():
            yield _fractions(codes, words, values[np.flatnonzero(named & names.whole[numbers])])


def _fractions(codes: Bytes, words: Words, values: Int64s) -> Int64s:
    """Return which of these numbers, in order, are no whole ones, or are very long.

    Eight bytes of each are looked at together: the lowest bit of `others` is that of the first that is no digit.
    """
    ends = values + (codes[values] == ord("-"))
    found = list[Int64s]()
    for taken in range(0, _TOO_LONG, _WORD):
        there = int(ends.searchsorted(len(words)))
        values, ends = values[:there], ends[:there]
        word = words[ends]
        digits = word ^ _ZEROS
        others = ((digits + _BEYOND_NINE) | digits) & _HIGH
        first = others & (~others + np.uint64(1))
        points, powers = word ^ _POINTS, (word | _LOWER) ^ _POWERS
        fraction = ((points - _ONES) & ~points) | ((powers - _ONES) & ~powers)
        wrong = fraction & first != 0
        if taken + _WORD > _TOO_LONG:
            wrong |= first > np.uint64(0x80 << 8 * (_TOO_LONG - taken - 1))
        found.append(values[np.flatnonzero(wrong)])
        longer = np.flatnonzero(others == 0)
        values, ends = values[longer], ends[longer] + _WORD
    return np.concatenate([*found, values])


def _all_nodes(members: Iterable[tuple[str, AskedField]]) -> Iterator[tuple[str, AskedField]]:
    for name, node in members:
        yield name, node
        yield from _all_nodes(node.members.items())


def _looked_for(name: str, nodes: Iterable[AskedField]) -> _LookedFor:
    begins = np.zeros(256, np.bool_)
    begins[ord("n")] = True
    for node in nodes:
        begins[list(_first_bytes(node))] = True
    whole = all(
        node.leaf is not None and not node.lists and node.leaf.dtype.startswith(("int", "uint")) for node in nodes
    )
    return _LookedFor(f'"{name}":'.encode()[-_WORD:], begins, whole)


def _names_of(group: Mapping[int, _LookedFor]) -> _Names:
    """Return names by their last byte as arrays."""
    named = list(group.values())
    numbers = np.zeros(256, np.int64)
    numbers[list(group)] = np.arange(1, len(named) + 1)
    tails = [int.from_bytes(one.tail.rjust(_WORD, b"\0"), "little") for one in named]
    masks = [(1 << 8 * _WORD) - (1 << 8 * (_WORD - len(one.tail))) for one in named]
    return _Names(
        numbers,
        np.array([1, *tails], np.uint64),
        np.array([0, *masks], np.uint64),
        np.concatenate([np.ones(256, np.bool_), *(one.begins for one in named)]),
        np.array([False, *(one.whole for one in named)]),
    )


def _first_bytes(node: AskedField) -> bytes:
    if node.lists:
        return _LIST
    if node.leaf is None:
        return _RECORD
    return {"string": _TEXT, "bool": _BOOL}.get(node.leaf.dtype, _NUMBER)
