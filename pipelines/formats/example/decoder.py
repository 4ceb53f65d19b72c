"""`tf.train.Example` records: TensorFlow parses a chunk at a time, and numpy judges what it found.

Every feature is parsed as a list of any length, so that a record which lacks one, or holds another number of
elements, is refused by itself. A record of another type, or one that is no Example, makes TensorFlow refuse the whole
chunk. Where some are no Examples, or TensorFlow has refused the chunk, those that look like it (`framing`)
are parsed apart, by the kinds of lists that protobuf reads in each: floats that are stored as integers are learnt,
and a list that TensorFlow reads as another kind is one that it refuses as the schema's. Protobuf only proposes: a
record is refused if and only if TensorFlow refuses its own bytes alone, with every type that it may hold.

Features are found by a field's path as one text. TensorFlow does not tell an empty list from an absent feature: both
are absent, except that a feature with `pad` is an empty list. Runs on the decode pool's threads and on those of
tf.data, and holds TensorFlow's constants and no other state.

Before TensorFlow is asked, it is found of all records at a time which may be handed to it, and which it may refuse,
with numpy over their joined bytes. What may be refused is a hint; what may end the process is not: TensorFlow reserves
as much memory as a list says that it is long, before it looks whether the record is that long, and a length of 2^31 or
more ends the process. It does so for two kinds of list: a text in a list of texts, which it reserves without touching,
and packed floats, which it sets to zero.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf
from google.protobuf.message import DecodeError

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.arrow_columns import broken_by_numbers, of_one_length, words_not_allowed
from millrace.pipelines.formats.shared.paths import default_of, distinct_fields, empty_column, flat_names, pad_of
from millrace.pipelines.formats.shared.pieces import only_good, together, without
from millrace.pipelines.formats.shared.plain_rows import compiled, library
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal
from millrace.pipelines.schema import Column, Field, Schema

Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
FLOATS, INTS, TEXTS = "float_list", "int64_list", "bytes_list"
_FEATURES, _FLOATS, _MORE = 0x0A, 0x12, 0x80
"""The tag of an Example's one field, and of what a list holds; of a list of floats. A byte of a number that is not its
last is 0x80 or more."""
_LONGEST, _LONGEST_NUMBER = 4, 10
_PIECE = 1 << 17
"""Bytes that are looked at at once: temporaries as large as a chunk cost more than the look."""
_BEFORE, _BEHIND = 16, 8
"""Zeros around the joined records, so that all places that are looked at exist."""
_TAGS = {TEXTS: 0x0A, FLOATS: 0x12, INTS: 0x1A}


@dataclass(frozen=True, slots=True)
class JoinedExamples:
    """Records as one array of bytes, with zeros before and behind."""

    codes: Bytes
    begins: Int64s
    lengths: Int64s

    @classmethod
    def of(cls, texts: Sequence[bytes | None]) -> "JoinedExamples":
        """Join texts; None counts as an empty one."""
        there = cast("Sequence[bytes]", texts)
        try:
            lengths = np.fromiter(map(len, there), np.int64, len(there))
        except TypeError:
            there = [text or b"" for text in texts]
            lengths = np.fromiter(map(len, there), np.int64, len(there))
        codes = np.frombuffer(b"".join((bytes(_BEFORE), *there, bytes(_BEHIND))), np.uint8)
        return cls(codes, np.cumsum(lengths) - lengths + _BEFORE, lengths)

    def owners(self, places: Int64s) -> Int64s:
        """Return the records that these places are in."""
        owners: Int64s = self.begins.searchsorted(places, "right") - 1
        return owners


def framed(joined: JoinedExamples) -> Mask:
    """Return which records are one field of the Example and nothing else, by its length.

    TensorFlow is lenient in this: it reads some that were cut short.
    """
    codes, at, lengths = joined.codes, joined.begins, joined.lengths
    good: Mask = codes[at] == _FEATURES
    more, said, taken = good, np.ones(len(lengths), np.int64), 0
    while taken < _LONGEST and more.any():
        code = codes[at + (taken + 1)].astype(np.int64)
        said += np.where(more, 1 + ((code & (_MORE - 1)) << 7 * taken), 0)
        more, taken = more & (code >= _MORE), taken + 1
    good &= ~more & (said == lengths)
    return good


def far_lists(joined: JoinedExamples) -> Int64s:
    """Return the records that may hold a list which states a length far beyond the record, ascending.

    A text of 2^28 bytes or more, or packed floats of 2^21 bytes or more. A few records have such bytes by chance.
    """
    codes = joined.codes
    tags = np.concatenate(
        [_long_numbers(codes[at : at + _PIECE + _LONGEST]) + at for at in range(0, len(codes), _PIECE)]
    )
    if not len(tags):
        return tags
    last = codes[tags - 1] < _MORE
    back = tags - 2
    for _ in range(_LONGEST_NUMBER - 1):
        back = back - (codes[back] >= _MORE)
    floats = last & (codes[back] == _FLOATS)
    tags = tags[floats | (codes[tags + _LONGEST] >= _MORE)]
    owners = joined.owners(tags)
    ends = joined.begins[owners] + joined.lengths[owners]
    return np.unique(owners[tags + _LONGEST - 1 < ends])


def _long_numbers(codes: Bytes) -> Int64s:
    """Return the places of a list's tag that three bytes of a number follow which are not its last."""
    runs = codes[1:-3] & codes[2:-2]
    runs &= codes[3:-1]
    far = runs >= _MORE
    far &= codes[:-_LONGEST] == _FEATURES
    return np.flatnonzero(far)


class Kinds:
    """The features that a schema asks for, each with the kind of list that is read from it."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        names = [name.encode() for name in kinds]
        tags = np.array([_TAGS[kind] for kind in kinds.values()], np.uint8)
        self._asked = np.frombuffer(b"".join(names), np.uint8), tags, np.cumsum([len(name) for name in names])

    def unlike(self, joined: JoinedExamples) -> Int64s:
        """Return the records in which a feature of such a name is a list of another kind, ascending.

        None where no code was compiled for this machine: they are found when TensorFlow stops at them.
        """
        found = np.zeros(len(joined.lengths), np.bool_)
        if compiled():
            places = (array.ctypes.data for array in (joined.codes, joined.begins, joined.lengths))
            asked = (array.ctypes.data for array in self._asked)
            library().find_unlike(*places, len(found), *asked, len(self._asked[1]), found.ctypes.data)
        return np.flatnonzero(found)


_AT_ROW = re.compile(r"Index: (\d+)\.")
_TYPES = {FLOATS: tf.float32, INTS: tf.int64, TEXTS: tf.string}


class FeatureLists(NamedTuple):
    """A feature of all records of a chunk."""

    values: Column
    lengths: Int64s


class ParseStop(NamedTuple):
    """TensorFlow has refused a chunk."""

    row: int | None
    """The row that it names, if it does: a hint, never a verdict."""


class ExampleParser:
    """Parses features of given kinds by TensorFlow's operation, which is prepared once."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._names = tuple(kinds)
        self._types = [_TYPES[kind] for kind in kinds.values()]
        self._splits = [tf.int64] * len(kinds)

    @cached_property
    def _keys(self) -> tuple[Any, Any]:
        """No names, and the names, as tensors: to make them at each call costs more than a short chunk does."""
        return tf.constant([], tf.string), tf.constant(self._names, tf.string)

    def __call__(self, texts: Any) -> dict[str, FeatureLists] | ParseStop:
        """Return the features of all records, or that TensorFlow refuses one of them."""
        none, names = self._keys
        try:
            parsed = tf.raw_ops.ParseExampleV2(
                serialized=texts,
                names=none,
                sparse_keys=none,
                dense_keys=none,
                ragged_keys=names,
                dense_defaults=(),
                num_sparse=0,
                sparse_types=(),
                ragged_value_types=self._types,
                ragged_split_types=self._splits,
                dense_shapes=(),
            )
        except tf.errors.InvalidArgumentError as error:
            named = _AT_ROW.search(error.message)
            row = int(named[1]) if named is not None else len(texts)
            return ParseStop(row if row < len(texts) else None)
        except UnicodeDecodeError:  # TensorFlow's text quotes bytes
            return ParseStop(None)
        lists = zip(self._names, parsed.ragged_values, parsed.ragged_row_splits, strict=True)
        return {name: FeatureLists(values.numpy(), np.diff(splits.numpy())) for name, values, splits in lists}


NO_FEATURES = ExampleParser({"": INTS})
"""Asks for next to nothing: what it refuses, any other refuses too, for it is no Example."""


_SLICE = 512
"""Records of which those with a fault are searched for at once: each that is found costs to parse half of them."""
_SPARSE = 24
"""If more than one record in this many is at fault, to look at all costs less than to parse again after each."""
_PARSERS = 64
"""Parsers that are kept, each for other kinds of lists."""
_Kinds: TypeAlias = frozenset[tuple[str, str]]
"""Names of features, each with the kind of its list."""


class _Read(NamedTuple):
    """A field of all records: its column, which records are at fault, and the lengths where they vary."""

    column: Column
    faults: Sequence[tuple[Reason, Mask]]
    lengths: Int64s | None = None


class ExampleDecoder:
    """Decodes serialised `tf.train.Example`s."""

    def __init__(self, schema: Schema, integers: Collection[str] = ()) -> None:
        """`integers` names float fields that are mostly stored as integers, which are then parsed as such at once."""
        self.schema = schema
        self._fields = {field.source: field for field in distinct_fields(schema)}
        self._defaults = {source: default_of(field) for source, field in self._fields.items()}
        self._pads = {source: pad_of(field) for source, field in self._fields.items()}
        self._names = flat_names(self._fields)
        self._kinds = {name: _kind(self._fields[source]) for source, name in self._names.items()}
        usual = frozenset((name, INTS) for name, kind in self._kinds.items() if kind == FLOATS and name in integers)
        self._with = lru_cache(_PARSERS)(self._new_parser)
        self._plain, self._usual = self._with(frozenset()), self._with(usual)
        self._asked = Kinds(self._kinds | dict(usual))

    def _new_parser(self, kinds: _Kinds) -> ExampleParser:
        return ExampleParser(self._kinds | dict(kinds))

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none; a tensor of texts is taken as it is."""
        given: Any = values
        texts: Any = given.numpy().tolist() if tf.is_tensor(given) else given
        joined = JoinedExamples.of(texts)
        doubtful = ~framed(joined)
        doubtful[far_lists(joined)] = True
        wrong = [index for index in np.flatnonzero(doubtful).tolist() if not _is_example(texts[index])]
        if not wrong and not isinstance(parsed := self._usual(tf.constant(texts, tf.string)), ParseStop):
            return self._judged(parsed, np.arange(len(texts)))
        unread = [Refusal(index, Reason.MALFORMED if texts[index] else Reason.EMPTY) for index in wrong]
        # Join the pieces, and sort their rows and refusals. The last piece has no rows.
        pieces = [*self._apart(texts, joined, wrong), self._none(*unread)]
        filled = [piece for piece in pieces if len(piece.kept)]
        refused = _by_index(each for piece in pieces for each in piece.refused)
        return together([pieces[-1], *filled], refused)

    def _apart(self, texts: Sequence[bytes], joined: JoinedExamples, wrong: Sequence[int]) -> Iterator[DecodedValues]:
        """Yield what the records of a chunk hold, without the wrong ones: those that TensorFlow may refuse apart."""
        unlike = np.zeros(len(texts), np.bool_)
        unlike[self._asked.unlike(joined)] = True
        unlike[wrong] = False
        others = np.flatnonzero(unlike)
        apart = sorted([*others.tolist(), *wrong])
        indices, rest = np.delete(np.arange(len(texts)), apart), without(texts, apart)
        parsed = self._usual(tf.constant(rest, tf.string))
        if isinstance(parsed, ParseStop):
            for at in range(0, len(rest), _SLICE):
                yield from self._sifted(rest[at : at + _SLICE], indices[at : at + _SLICE])
        else:
            yield self._judged(parsed, indices)
        yield from self._sorted([texts[row] for row in others.tolist()], others)

    def _judged(self, parsed: Mapping[str, FeatureLists], indices: Int64s) -> DecodedValues:
        refused = list[Refusal]()
        good = np.ones(len(indices), np.bool_)
        read = {source: self._read(source, parsed[name]) for source, name in self._names.items()}
        for source, (_, faults, _) in read.items():
            for reason, bad in faults:
                refused += [Refusal(index, reason, source) for index in indices[good & bad].tolist()]
                good &= ~bad
        columns = {source: one.column for source, one in read.items()}
        lengths = {source: one.lengths for source, one in read.items() if one.lengths is not None}
        return only_good(DecodedValues(indices, columns, _by_index(refused), lengths), good)

    def _read(self, source: str, lists: FeatureLists) -> _Read:
        field = self._fields[source]
        column, faults = _elements(lists.values, field)
        pad = self._pads[source]
        if pad is not None:
            return _padded(FeatureLists(column, lists.lengths), faults, field, pad, self._defaults[source])
        return _fixed(FeatureLists(column, lists.lengths), faults, field, self._defaults[source])

    def _sifted(self, texts: Sequence[bytes], indices: Int64s) -> Iterator[DecodedValues]:
        """Yield what a slice holds: the records that TensorFlow names are left out, and looked at alone."""
        rest = list(range(len(texts)))
        while isinstance(stop := self._usual(tf.constant([texts[row] for row in rest], tf.string)), ParseStop):
            few = len(texts) - len(rest) < len(texts) // _SPARSE
            kinds = None if stop.row is None else self._other_kinds(_features(texts[rest[stop.row]]))
            if stop.row is None or not few or (kinds and self._readable(kinds)):
                yield from self._sorted([texts[row] for row in rest], indices[rest])
                break
            row = rest.pop(stop.row)
            yield self._alone(texts[row], int(indices[row]))
        else:
            yield self._judged(stop, indices[rest])

    def _sorted(self, texts: Sequence[bytes], indices: Int64s) -> Iterator[DecodedValues]:
        """Yield what records hold: those that hold lists of other kinds in the same fields are parsed together."""
        alike: dict[_Kinds | None, list[int]] = {}
        for row, text in enumerate(texts):
            alike.setdefault(self._other_kinds(_features(text)), []).append(row)
        for row in alike.pop(None, []):
            yield self._alone(texts[row], int(indices[row]))
        for kinds, rows in alike.items():
            several, places = [texts[row] for row in rows], indices[rows]
            found = kinds or frozenset()
            read = self._read_or_split if self._readable(found) else self._refused
            yield from read(several, places, found)

    def _refused(self, texts: Sequence[bytes], indices: Int64s, kinds: "_Kinds") -> Iterator[DecodedValues]:
        """Yield the verdicts on records of which a field is a list of a kind that cannot be read.

        That TensorFlow reads it as that kind, and finds elements, is why it refuses it as another.
        """
        parsed = self._with(kinds)(tf.constant(texts, tf.string))
        source = self._first_unreadable(kinds)
        name = self._names[source or ""]
        certain = np.zeros(len(texts), np.bool_) if isinstance(parsed, ParseStop) else parsed[name].lengths > 0
        yield self._none(*(Refusal(index, Reason.WRONG_TYPE, source) for index in indices[certain].tolist()))
        for row in np.flatnonzero(~certain).tolist():
            yield self._alone(texts[row], int(indices[row]))

    def _read_or_split(self, texts: Sequence[bytes], indices: Int64s, kinds: _Kinds) -> Iterator[DecodedValues]:
        parsed = self._with(kinds)(tf.constant(texts, tf.string))
        if not isinstance(parsed, ParseStop):
            yield self._judged(parsed, indices)
        elif len(texts) == 1:
            yield self._alone(texts[0], int(indices[0]))
        else:
            for half in (slice(len(texts) // 2), slice(len(texts) // 2, None)):
                yield from self._read_or_split(texts[half], indices[half], kinds)

    def _alone(self, text: bytes, index: int) -> DecodedValues:
        """Return what a record holds, or the verdict on it where TensorFlow refuses it with all types."""
        one, kinds = tf.constant([text], tf.string), self._other_kinds(_features(text))
        unreadable = self._first_unreadable(kinds or frozenset())
        own = self._plain if unreadable is not None else self._with(kinds or frozenset())
        # Most records have one way to be read. Where there are more, one that is no Example is refused at once.
        ways = {id(way): way for way in (self._usual, self._plain, own)}
        if len(ways) == 1 or not isinstance(NO_FEATURES(one), ParseStop):
            for parse in ways.values():
                if not isinstance(parsed := parse(one), ParseStop):
                    return self._judged(parsed, np.array([index]))
        return self._none(Refusal(index, Reason.MALFORMED if unreadable is None else Reason.WRONG_TYPE, unreadable))

    def _none(self, *refused: Refusal) -> DecodedValues:
        columns = {source: empty_column(field.dtype, (0, *field.shape)) for source, field in self._fields.items()}
        lengths = {source: np.empty(0, np.int64) for source, pad in self._pads.items() if pad is not None}
        return DecodedValues(np.empty(0, np.int64), columns, refused, lengths)

    def _other_kinds(self, features: Mapping[str, Any] | None) -> _Kinds | None:
        """Return the features that are lists of another kind than the schema's; None where the record is no Example."""
        if features is None:
            return None
        found = {name: features[name].WhichOneof("kind") for name in self._kinds if name in features}
        return frozenset((name, kind) for name, kind in found.items() if kind not in {None, self._kinds[name]})

    def _readable(self, kinds: _Kinds) -> bool:
        return self._first_unreadable(kinds) is None

    def _first_unreadable(self, kinds: _Kinds) -> str | None:
        """Return the first field that cannot be read from a list of such a kind; floats are read from integers."""
        other = dict(kinds)
        for source, name in self._names.items():
            if name in other and (self._kinds[name], other[name]) != (FLOATS, INTS):
                return source
        return None


def integers_in(example: bytes) -> frozenset[str]:
    """Return the features of a record that are integers; none where it is no Example."""
    features = _features(example) or {}
    return frozenset(name for name, feature in features.items() if feature.WhichOneof("kind") == INTS)


def _is_example(text: bytes | None) -> bool:
    if not text:
        return False
    try:
        tf.train.Example.FromString(text)
    except DecodeError:
        return False
    return True


def _features(example: bytes) -> Mapping[str, Any] | None:
    """Return the features of a record by name; None where it is no Example."""
    try:
        features: Mapping[str, Any] = tf.train.Example.FromString(example).features.feature
    except DecodeError:
        return None
    return features


def _by_index(refused: Iterable[Refusal]) -> tuple[Refusal, ...]:
    return tuple(sorted(refused, key=lambda refusal: refusal.index))


def _kind(field: Field) -> str:
    if field.dtype == "string":
        return TEXTS
    return FLOATS if field.dtype.startswith("float") else INTS


def _elements(values: Column, field: Field) -> tuple[Column, list[tuple[Reason, Mask]]]:
    """Return the elements of all records in the field's dtype, and which of them are at fault."""
    if field.dtype == "string":
        listed = field.one_of is not None
        denied = words_not_allowed(pa.array(values.tolist(), pa.binary()), field) if listed else None
        return values, [] if denied is None or not denied.any() else [(Reason.NOT_ALLOWED, denied)]
    faults: list[tuple[Reason, Mask]] = []
    if field.dtype == "bool":
        faults.append((Reason.OUT_OF_RANGE, ~np.isin(values, (0, 1))))
        column: Column = values.astype(np.bool_)
    elif field.dtype.startswith("float"):
        finite = np.isfinite(values)
        with np.errstate(over="ignore"):
            column = values.astype(field.numpy_dtype, copy=False)
        if not finite.all():
            faults.append((Reason.NOT_FINITE, ~finite))
        if column.itemsize < values.itemsize:
            faults.append((Reason.OUT_OF_RANGE, finite & ~np.isfinite(column)))
    else:
        limits = np.iinfo(field.dtype)
        # A uint64's limit is no int64, and Example holds int64 only.
        most = min(int(limits.max), np.iinfo(np.int64).max)
        if len(values) and not (limits.min <= values.min() and values.max() <= most):
            faults.append((Reason.OUT_OF_RANGE, np.less(values, limits.min) | np.greater(values, most)))
        column = values.astype(field.numpy_dtype, copy=False)
    faults += broken_by_numbers(column, field)
    return column, [(reason, bad) for reason, bad in faults if bad.any()]


def _fixed(
    lists: FeatureLists, faults: Sequence[tuple[Reason, Mask]], field: Field, default: np.generic | bytes | None
) -> _Read:
    """Return a column of rows of one shape."""
    rows, whole = len(lists.lengths), lists.lengths == field.size
    if whole.all():
        by_row = [(reason, np.logical_or.reduce(bad.reshape(rows, field.size), axis=1)) for reason, bad in faults]
        return _Read(lists.values.reshape(rows, *field.shape), by_row)
    absent = (lists.lengths == 0) & ~whole
    begins = np.cumsum(lists.lengths) - lists.lengths
    column = of_one_length(lists.values, begins, whole, field.size).reshape(rows, *field.shape)
    found = [(Reason.WRONG_SHAPE, ~whole & ~absent), *_of_rows(faults, lists.lengths)]
    if default is None:
        return _Read(column, [(Reason.MISSING, absent), *found])
    column[absent] = default
    return _Read(column, found)


def _padded(
    lists: FeatureLists,
    faults: Sequence[tuple[Reason, Mask]],
    field: Field,
    pad: np.generic | bytes,
    default: np.generic | bytes | None,
) -> _Read:
    """Return a column of lists of any length, padded or cut; elements that are cut off are judged, too."""
    inner = int(np.prod(field.shape[1:], dtype=np.int64))
    uneven = lists.lengths % inner != 0
    found = [(Reason.WRONG_SHAPE, uneven), *_of_rows(faults, lists.lengths)]
    whole = lists.values[np.repeat(~uneven, lists.lengths)] if uneven.any() else lists.values
    values = whole.reshape(-1, *field.shape[1:])
    lengths = np.where(uneven, 0, lists.lengths // inner)
    rows = len(lengths)
    column = empty_column(field.dtype, (rows, *field.shape))
    column[...] = pad
    if len(values) and lengths.max() > field.shape[0]:
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        values = values[np.arange(len(values)) - starts < field.shape[0]]
    column[np.arange(field.shape[0]) < lengths[:, None]] = values
    if default is not None:
        absent = lists.lengths == 0
        column[absent, 0] = default
        lengths[absent] = 1
    return _Read(column, found, lengths)


def _of_rows(faults: Sequence[tuple[Reason, Mask]], lengths: Int64s) -> Iterator[tuple[Reason, Mask]]:
    """Yield which records hold an element that is at fault."""
    ends = np.cumsum(lengths)
    for reason, bad in faults:
        rows = np.zeros(len(lengths), np.bool_)
        rows[ends.searchsorted(np.flatnonzero(bad), "right")] = True
        yield reason, rows
