"""Which JSON records the parser probably refuses, by their bytes, for all of a chunk at once.

Pure functions. The text is not parsed: a colon behind the name of a field is taken to be where its value begins, also
in a string. So what is found are hints, as in `json_suspects`, and a record in an unusual form is not seen.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from consumers.records import Int64s
from pipelines.decoders.asked_fields import AskedField
from pipelines.decoders.json_suspects import with_several_values
from pipelines.decoders.text import is_utf8, not_utf8

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
_COLON, _SPACE, _WORD = ord(":"), ord(" "), 8
_TOO_LONG = 20
"""Digits of a whole number that is too large for the parser."""
_NUMBER, _TEXT, _BOOL, _LIST, _RECORD = b"-0123456789NI", b'"', b"tf", b"[", b"{"
_ONES = np.uint64(0x0101010101010101)
"""A one in each of eight bytes; a byte times this is that byte in all of them."""
_ZEROS, _POINTS, _POWERS, _LOWER = (_ONES * np.uint64(code) for code in (ord("0"), ord("."), ord("e"), 0x20))
_BEYOND_NINE, _HIGH = _ONES * np.uint64(0x80 - 10), _ONES * np.uint64(0x80)


class _LookedFor(NamedTuple):
    """What the values of one name begin with."""

    tail: np.uint64
    """The end of the name, a quote and a colon: eight bytes at most."""
    mask: np.uint64
    begins: npt.NDArray[np.bool_]
    """By byte: whether a value of the field's type can begin with it."""
    whole: bool
    """Whether it is a whole number."""


class JsonLook:
    """What a schema asks for, as a look at bytes can find it."""

    def __init__(self, asked: Mapping[str, AskedField]) -> None:
        nodes: dict[str, list[AskedField]] = {}
        for name, node in _all_nodes(asked.items()):
            nodes.setdefault(name, []).append(node)
        self.names = [_looked_for(name, alike) for name, alike in nodes.items()]


def suspects_of(text: bytes, begins: Int64s, look: JsonLook) -> list[int]:
    """Return the records that the parser probably refuses, ascending."""
    codes = np.frombuffer(text, np.uint8)
    found = [*_wrongly_typed(codes, look), _controls(codes, begins)]
    rows = {*(begins.searchsorted(np.concatenate(found), "right") - 1).tolist()}
    rows.update(with_several_values(text, begins))
    if not is_utf8(text):
        rows.update(not_utf8(text, begins))
    return sorted(rows)


def _wrongly_typed(codes: Bytes, look: JsonLook) -> Iterator[Int64s]:
    """Yield where a value of a field begins that is of another type."""
    colons = np.flatnonzero(codes == _COLON)
    if len(codes) <= _WORD or not len(colons):
        return
    words = np.ndarray((len(codes) - _WORD + 1,), "<u8", codes, strides=(1,))
    tails = words[colons - (_WORD - 1)]
    for named in look.names:
        values = colons[tails & named.mask == named.tail] + 1
        values = values + (codes[values] == _SPACE)
        yield values[~named.begins[codes[values]]]
        if named.whole:
            yield _fractions(codes, words, values)


def _fractions(codes: Bytes, words: Words, values: Int64s) -> Int64s:
    """Return which of these numbers are no whole ones, or are very long.

    Eight bytes of each are looked at together: the lowest bit of `others` is that of the first that is no digit.
    """
    ends = values + (codes[values] == ord("-"))
    found = list[Int64s]()
    for taken in range(0, _TOO_LONG, _WORD):
        there = ends < len(words)
        values, ends = values[there], ends[there]
        word = words[ends]
        digits = word ^ _ZEROS
        others = ((digits + _BEYOND_NINE) | digits) & _HIGH
        first = others & (~others + np.uint64(1))
        points, powers = word ^ _POINTS, (word | _LOWER) ^ _POWERS
        fraction = ((points - _ONES) & ~points) | ((powers - _ONES) & ~powers)
        wrong = fraction & first != 0
        if taken + _WORD > _TOO_LONG:
            wrong |= first > np.uint64(0x80 << 8 * (_TOO_LONG - taken - 1))
        found.append(values[wrong])
        values, ends = values[others == 0], ends[others == 0] + _WORD
    return np.concatenate([*found, values])


def _controls(codes: Bytes, begins: Int64s) -> Int64s:
    """Return where control characters are inside of records."""
    controls = codes < _SPACE
    controls[begins[1:] - 1] = False
    return np.flatnonzero(controls)


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
    spelt = f'"{name}":'.encode()[-_WORD:]
    free = _WORD - len(spelt)
    return _LookedFor(
        np.uint64(int.from_bytes(bytes(free) + spelt, "little")),
        np.uint64((1 << 8 * _WORD) - (1 << 8 * free)),
        begins,
        whole,
    )


def _first_bytes(node: AskedField) -> bytes:
    if node.lists:
        return _LIST
    if node.leaf is None:
        return _RECORD
    return {"string": _TEXT, "bool": _BOOL}.get(node.leaf.dtype, _NUMBER)
