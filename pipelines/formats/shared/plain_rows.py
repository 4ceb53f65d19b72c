"""Plain records of texts into Arrow's columns, by compiled code: `plain.c` of each such format says what is plain.

What is not plain, and everything where the code was not compiled for this machine, is left to the caller. Plain records
are judged by the rules of their fields, as `arrow_columns` judges columns, so that no row has to be taken out of
thousands: by those of the first fields, up to one whose rules the code does not know. Holds no state from one text to
the next, and the code runs without the interpreter's lock.
"""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.arrow_columns import REASONS, Show
from millrace.pipelines.formats.shared.pieces import LARGEST
from millrace.pipelines.formats.shared.protocol import Refusal
from millrace.pipelines.schema import Field

_LIBRARY = Path(__file__).with_name("libplain.so")
_RECORD, _LIST, _BOOL, _TEXT = 0, 1, 5, 6
_KINDS = {pa.float32(): 2, pa.float64(): 3, pa.int64(): 4, pa.bool_(): _BOOL, pa.binary(): _TEXT}
_PARTS = (
    "kind first members name name_length values offsets valid rows nulls length seen objects keys "
    "place present elements ruled least most listed listed_count"
)
_NODE = np.dtype([(name, np.int64) for name in _PARTS.split()])
_UNJUDGED = 1 << 20
_ROW_BYTES = {_RECORD: 0, _LIST: 0, _TEXT: 0, _BOOL: 1}
"""The most bytes of a row in a node's values; 8 for all other kinds, besides the bytes of texts."""
_VALID, _, _OFFSETS, _VALUES = range(4)
_KEYS, _MARK = 512 * 24, 24
"""Bytes of the keys that a record remembers, and of a mark."""
_LEAST_POWER, _GREATEST_POWER = -342, 308
_ALIGNED = 64
_LEFT, _PLAIN, _MALFORMED, _EMPTY, _FAULTY = range(5)
_VERDICTS = _FAULTS = 8
"""More than there are verdicts, and kinds of faults."""


class RuledField(NamedTuple):
    """A field of plain records."""

    field: Field
    paths: Sequence[tuple[str, ...]]
    """The names that lead to its values; several, if each element has names of its own."""
    null_is_fault: bool
    is_judged: bool = True
    """Whether the records that it refuses can be told value by value."""


class PlainRows(NamedTuple):
    """What is plain of some values, and what is left."""

    table: pa.Table
    """A row for each plain one that is not refused."""
    indices: Int64s
    """The index of each in the values, ascending."""
    left: Int64s
    """The indices of those that are neither plain nor refused."""
    refused: Sequence[Refusal]
    """Those that are certainly faulty, ascending."""


class _ArrowNode(NamedTuple):
    """A column; the first is that of the records themselves."""

    arrow: pa.DataType
    name: str
    path: tuple[str, ...] = ()
    """The names that lead to it."""
    lists: int = 0
    """How many lists it is inside. If there is one, a record has any number of its rows."""


class PlainReader:
    """Reads the columns of a schema."""

    def __init__(
        self, read: str, schema: pa.Schema, before: bytes, fields: Sequence[RuledField], *more: int | Int64s
    ) -> None:
        """`read` is the function in C, and `more` what it is told besides.

        Before each element but the first of a record is one of the bytes of `before`. Of several faults in a record the
        verdict is that on the first of `fields`.
        """
        self._schema, self._call, self._before, self._more = schema, getattr(library(), read), before, more
        self._nodes = [_ArrowNode(pa.struct(list(schema)), "")]
        laid: list[tuple[int, int, int]] = []
        for node in self._nodes:  # grows while it is read: the members of a node follow each other
            members = [node.arrow.field(at) for at in range(node.arrow.num_fields)]
            kind = _KINDS.get(node.arrow, _LIST if pa.types.is_list(node.arrow) else _RECORD)
            laid.append((kind, len(self._nodes), len(members)))
            in_list = kind == _LIST
            self._nodes += [
                _ArrowNode(one.type, one.name, (*node.path, *([] if in_list else [one.name])), node.lists + in_list)
                for one in members
            ]
        self._laid = np.zeros(len(laid), _NODE)
        self._laid["kind"], self._laid["first"], self._laid["members"] = np.transpose(laid)
        self._kinds = [kind for kind, _, _ in laid]
        self._inside = [range(first, first + members) for _, first, members in laid]
        self._row_bytes = np.array([_ROW_BYTES.get(kind, 8) for kind in self._kinds])
        self._key_bytes = np.array([_KEYS * (kind == _RECORD) for kind in self._kinds])
        self._has_offsets = np.array([kind in (_LIST, _TEXT) for kind in self._kinds])
        self._is_text = np.array([kind == _TEXT for kind in self._kinds])
        keys = [node.name.encode() + b'"' for node in self._nodes]
        ends = np.cumsum([len(key) for key in keys])
        self._keys = np.frombuffer(b"".join(keys), np.uint8)
        self._laid["name_length"] = np.diff(ends, prepend=0)
        self._laid["name"] = self._keys.ctypes.data + ends - self._laid["name_length"]
        self._many = np.array([node.lists > 0 for node in self._nodes])
        self._judged = [*takewhile(_is_judged, fields)]
        self._listed = [*self._lay_rules()]

    def of(self, values: Sequence[bytes | None]) -> PlainRows | None:
        """Read the plain ones of some values; None where they cannot be read together."""
        texts = pa.array(values, pa.binary())
        if not values or isinstance(texts, pa.ChunkedArray) or texts.nbytes > LARGEST:
            return None
        try:
            table, indices, others, verdicts = self.read(texts)
        except MemoryError:
            return None
        codes = verdicts.tolist()
        faults = {code: self._fault(code) for code in {*codes} - {_LEFT}}
        refused = [Refusal(at, *faults[code]) for at, code in zip(others.tolist(), codes, strict=True) if code != _LEFT]
        return PlainRows(table, indices, others[verdicts == _LEFT], refused)

    def _fault(self, code: int) -> tuple[Reason, str | None]:
        """Return the reason of a verdict, and the field at fault."""
        fault, verdict = divmod(code, _VERDICTS)
        if verdict != _FAULTY:
            return Reason.MALFORMED if verdict == _MALFORMED else Reason.EMPTY, None
        place, rest = divmod(fault, _FAULTS)
        show = _FAULTS - 1 - rest
        # A number that is too large is not plain: what is infinite was written as such.
        return Reason.NOT_FINITE if show == Show.INFINITE else REASONS[show], self._judged[place].field.source

    def _lay_rules(self) -> Iterator[Int64s]:
        """Lay out what is known of the fields; yield the values that are listed for some."""
        laid = self._laid
        laid["place"], laid["elements"] = _UNJUDGED, -1
        places = {path: (place, one) for place, one in enumerate(self._judged) for path in one.paths}
        for at, node in enumerate(self._nodes):
            if node.path not in places:
                continue
            place, (field, _, null_is_fault, _) = places[node.path]
            laid["place"][at], laid["present"][at] = place, null_is_fault or node.lists > 0
            if pa.types.is_list(node.arrow):
                any_number = field.pad is not None and not node.lists
                laid["elements"][at] = -1 if any_number else field.shape[node.lists]
            elif _is_ruled(field):
                laid["ruled"][at] = True
                laid["least"][at], laid["most"][at] = _bits(_bounds(field), node.arrow)
                listed = _bits(np.array(field.one_of or (), field.dtype).tolist(), node.arrow)
                laid["listed"][at], laid["listed_count"][at] = listed.ctypes.data, len(listed)
                yield listed

    def read(self, texts: pa.BinaryArray) -> tuple[pa.Table, Int64s, Int64s, Int64s]:
        """Read the plain ones of some records.

        Return their rows and their places, and the places of the others with the verdict on each. Raise MemoryError
        where there is no room for the longest lists that the text may hold.
        """
        _, ends, text = texts.buffers()
        records, nodes = len(texts), self._laid.copy()
        begins = np.frombuffer(ends, np.int32, records + 1).astype(np.int64)
        at_text, length = 0 if text is None else text.address, int(begins[-1])
        # What is not written to takes no memory.
        before = self._before if self._many.any() else b""
        elements = records + library().count_bytes(at_text, length, before, len(before))
        sizes = self._sizes(np.where(self._many, elements, records), length)
        aligned = -(-sizes // _ALIGNED) * _ALIGNED
        ends = aligned.cumsum()
        starts = (ends - aligned.ravel()).reshape(aligned.shape)
        room = np.empty(int(ends[-1]), np.uint8)
        _, keys, offsets, _ = starts
        room[: keys[0]] = 0xFF
        room[keys[0] : offsets[0]] = 0
        room.view(np.int32)[offsets // 4] = 0
        nodes["valid"], nodes["keys"], nodes["offsets"], nodes["values"] = room.ctypes.data + starts
        marks = np.empty(len(nodes) * _MARK, np.uint8)
        kept, others, verdicts = outcome = np.empty((3, records), np.int64)
        told = np.array([*(each.ctypes.data for each in outcome), 0, 0])
        arrays = (begins, nodes, marks, _powers_of_five(), told)
        at_begins, at_nodes, at_marks, at_powers, at_told = (each.ctypes.data for each in arrays)
        more = (each if isinstance(each, int) else each.ctypes.data for each in self._more)
        self._call(at_text, at_begins, records, at_nodes, len(nodes), at_marks, at_powers, at_told, *more)
        held = _ReadBuffers(
            pa.py_buffer(room), *(each.tolist() for each in (starts, sizes, nodes["rows"], nodes["nulls"]))
        )
        columns = [self._array(member, held) for member in self._inside[0]]
        *_, good, bad = told.tolist()
        return pa.Table.from_arrays(columns, schema=self._schema), kept[:good], others[:bad], verdicts[:bad]

    def _sizes(self, rows: Int64s, text: int) -> Int64s:
        """Return the bytes of each node's validity, keys, offsets, and values."""
        offsets = 4 * (rows * self._has_offsets + 1)
        return np.stack([rows // 8 + 1, self._key_bytes, offsets, self._row_bytes * rows + self._is_text * text])

    def _array(self, at: int, held: "_ReadBuffers") -> pa.Array:
        kind, nulls = self._kinds[at], held.nulls[at]
        buffers = [held.part(_VALID, at) if nulls else None]
        if kind in (_LIST, _TEXT):
            buffers.append(held.part(_OFFSETS, at))
        if kind not in (_LIST, _RECORD):
            buffers.append(held.part(_VALUES, at))
        inside = [self._array(member, held) for member in self._inside[at]]
        return pa.Array.from_buffers(self._nodes[at].arrow, held.rows[at], buffers, nulls, children=inside or None)


class _ReadBuffers(NamedTuple):
    """What the code has written, of each node."""

    whole: pa.Buffer
    starts: list[list[int]]
    sizes: list[list[int]]
    rows: list[int]
    nulls: list[int]

    def part(self, part: int, at: int) -> pa.Buffer:
        return self.whole.slice(self.starts[part][at], self.sizes[part][at])


def _is_judged(one: RuledField) -> bool:
    """Return whether the code knows all rules of a field."""
    field = one.field
    if field.dtype in ("string", "bool"):
        return one.is_judged and field.one_of is None and field.min is None and field.max is None
    return one.is_judged and field.dtype != "float16"  # which is rounded once more


def _is_ruled(field: Field) -> bool:
    """Return whether a finite number that fits the column may be refused."""
    has_rule = any(rule is not None for rule in (field.min, field.max, field.one_of))
    return has_rule or (np.dtype(field.numpy_dtype).kind in "iu" and field.dtype != "int64")


def _bounds(field: Field) -> list[float]:
    """Return the least and the greatest value that a field allows, rounded as its values are."""
    dtype = np.dtype(field.dtype)
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    least, most = (
        limit if rule is None else rule for limit, rule in ((limits.min, field.min), (limits.max, field.max))
    )
    rounded: list[float] = np.array([least, most], dtype).clip(limits.min, limits.max).tolist()
    return rounded


def _bits(values: Sequence[float], arrow: pa.DataType) -> Int64s:
    """Return numbers as the code has them: whole ones, or the bits of floats."""
    return np.array(values, np.int64) if arrow == pa.int64() else np.array(values, np.float64).view(np.int64)


@cache
def compiled() -> bool:
    """Return whether the code is there for this machine."""
    return _LIBRARY.exists()


@cache
def library() -> ctypes.CDLL:
    """Return the compiled code, and what each of its functions is given."""
    code, place, number = ctypes.CDLL(str(_LIBRARY)), ctypes.c_void_p, ctypes.c_int64
    common = (place, place, number, place, number, place, place, place)
    code.read_json.argtypes = common
    code.read_csv.argtypes = (*common, place, number, number, number, number)
    code.find_unlike.argtypes = (place, place, place, number, place, place, place, number, place)
    code.count_bytes.argtypes, code.count_bytes.restype = (place, number, ctypes.c_char_p, number), number
    code.read_json.restype = code.read_csv.restype = code.find_unlike.restype = None
    return code


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
