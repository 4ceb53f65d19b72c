"""Plain JSON records into Arrow's columns, by compiled code: `rows.c` beside this, which says what is plain.

What is not plain, and everything where the code was not compiled for this machine, is left to the caller. Holds no
state from one text to the next, and the code runs without the interpreter's lock.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.consumers.records import Int64s

_LIBRARY = Path(__file__).with_name("librows.so")
_RECORD, _LIST, _BOOL, _TEXT = 0, 1, 5, 6
_KINDS = {pa.float32(): 2, pa.float64(): 3, pa.int64(): 4, pa.bool_(): _BOOL, pa.binary(): _TEXT}
_PARTS = "kind first members name name_length values offsets valid rows nulls length seen objects keys"
_NODE = np.dtype([(name, np.int64) for name in _PARTS.split()])
_KEYS, _MARK = 512 * 24, 24
"""Bytes of the keys that a record remembers, and of a mark."""
_LEAST_POWER, _GREATEST_POWER = -342, 308
_ALIGNED = 64


class _ArrowNode(NamedTuple):
    """A column; the first is that of the records themselves."""

    arrow: pa.DataType
    name: str
    many: bool
    """Whether it is inside a list, so that a record has any number of its rows."""


class PlainReader:
    """Reads the columns of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._nodes = [_ArrowNode(pa.struct(list(schema)), "", many=False)]
        laid: list[tuple[int, int, int]] = []
        for node in self._nodes:  # grows while it is read: the members of a node follow each other
            members = [node.arrow.field(at) for at in range(node.arrow.num_fields)]
            kind = _KINDS.get(node.arrow, _LIST if pa.types.is_list(node.arrow) else _RECORD)
            laid.append((kind, len(self._nodes), len(members)))
            self._nodes += [_ArrowNode(one.type, one.name, node.many or kind == _LIST) for one in members]
        self._laid = np.zeros(len(laid), _NODE)
        self._laid["kind"], self._laid["first"], self._laid["members"] = np.transpose(laid)
        keys = [node.name.encode() + b'"' for node in self._nodes]
        ends = np.cumsum([len(key) for key in keys])
        self._keys = np.frombuffer(b"".join(keys), np.uint8)
        self._laid["name_length"] = np.diff(ends, prepend=0)
        self._laid["name"] = self._keys.ctypes.data + ends - self._laid["name_length"]

    def read(self, text: bytes, begins: Int64s, plain: npt.NDArray[np.bool_]) -> pa.Table:
        """Read the plain ones of a text's records, each of which ends a byte before the next begins.

        `plain` is a mask of the records that may be looked at, which are UTF-8, and becomes that of the rows. Raise
        MemoryError where there is no room for the longest lists that the text may hold.
        """
        records, nodes = len(begins) - 1, self._laid.copy()
        # An element of a list has a comma or a bracket before it. What is not written to takes no memory.
        codes = np.frombuffer(text, np.uint8)
        most = (
            sum(np.count_nonzero(codes == ord(each)) for each in ",[") if any(node.many for node in self._nodes) else 0
        )
        rows = np.where([node.many for node in self._nodes], most, records)
        sizes = [_sizes(int(kind), int(most), len(text)) for kind, most in zip(nodes["kind"], rows, strict=True)]
        ends = np.cumsum([-(-size // _ALIGNED) * _ALIGNED for each in sizes for size in each])
        room = np.empty(int(ends[-1]) + _ALIGNED, np.uint8)
        at = np.concatenate([[0], ends[:-1]]).reshape(-1, 4)
        for name, column in zip(("valid", "offsets", "values", "keys"), at.T, strict=True):
            nodes[name] = room.ctypes.data + column
        for (valid, offsets, _, keys), (bits, *_, known) in zip(at.tolist(), sizes, strict=True):
            room[valid : valid + bits] = 0xFF
            room[offsets : offsets + 4] = 0
            room[keys : keys + known] = 0
        marks = np.empty(len(nodes) * _MARK, np.uint8)
        _compiled()(
            text, begins.ctypes.data, records, nodes.ctypes.data, len(nodes), marks.ctypes.data,
            _powers_of_five().ctypes.data, plain.ctypes.data,
        )  # fmt: skip
        whole = pa.py_buffer(room)
        buffers = [
            [whole.slice(start, size) for start, size in zip(*each, strict=True)]
            for each in zip(at.tolist(), sizes, strict=True)
        ]
        columns = [self._array(member, nodes, buffers) for member in range(1, 1 + int(nodes["members"][0]))]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _array(self, at: int, nodes: npt.NDArray[np.void], buffers: list[list[pa.Buffer]]) -> pa.Array:
        valid, offsets, values, _ = buffers[at]
        kind, first, members, rows, nulls = (
            int(nodes[name][at]) for name in ("kind", "first", "members", "rows", "nulls")
        )
        held: list[pa.Buffer | None] = [valid if nulls else None]
        if kind in (_LIST, _TEXT):
            held.append(offsets)
        if kind not in (_LIST, _RECORD):
            held.append(values)
        inside = [self._array(member, nodes, buffers) for member in range(first, first + members)]
        return pa.Array.from_buffers(self._nodes[at].arrow, rows, held, nulls, children=inside or None)


def _sizes(kind: int, rows: int, text: int) -> tuple[int, int, int, int]:
    """Return the bytes of a node's validity, offsets, values, and keys."""
    bits = rows // 8 + 1
    values = {_RECORD: 0, _LIST: 0, _BOOL: bits, _TEXT: text}.get(kind, 8 * rows)
    return bits, 4 * (rows + 1) if kind in (_LIST, _TEXT) else 4, values, _KEYS if kind == _RECORD else 0


@cache
def compiled() -> bool:
    """Return whether the code is there for this machine."""
    return _LIBRARY.exists()


@cache
def _compiled() -> "ctypes._FuncPointer":
    read = ctypes.CDLL(str(_LIBRARY)).read_rows
    pointer = ctypes.c_void_p
    read.argtypes = [ctypes.c_char_p, pointer, ctypes.c_int64, pointer, ctypes.c_int64, pointer, pointer, pointer]
    read.restype = None
    return read


@cache
def _powers_of_five() -> npt.NDArray[np.uint64]:
    """Return the first 128 bits of each power of five: of a negative one rounded up, as Lemire's method has it."""
    words: list[int] = []
    for power in range(_LEAST_POWER, _GREATEST_POWER + 1):
        five = 5 ** abs(power)
        if power < 0:
            bits = (five - 1).bit_length()
            five = (1 << (bits + 127 if power >= -27 else 2 * bits + 128)) // five + 1
        excess = five.bit_length() - 128
        five = five >> excess if excess > 0 else five << -excess
        words += [five >> 64, five & (1 << 64) - 1]
    return np.array(words, np.uint64)
