"""`tf.train.Example` records: TensorFlow parses a chunk at a time, and numpy judges what it found.

Every feature is parsed as a list of any length, so that a record which lacks one, or holds another number of elements,
is refused by itself. A record of another type, or one that is no Example, makes TensorFlow refuse the whole chunk. Its
records are then sorted by what protobuf reads in each: those that hold integers where the schema says float are parsed
together as such, and those with a fault alone. Protobuf only proposes: a record is refused if and only if TensorFlow
refuses its own bytes alone, with every type that it may hold.

Features are found by a field's path as one text. TensorFlow does not tell an empty list from an absent feature: both
are absent, except that a feature with `pad` is an empty list. Runs on the decode pool's threads and on those of
tf.data, and holds no state.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf
from google.protobuf.message import DecodeError

from consumers.reasons import Reason
from consumers.records import Int64s
from pipelines.decoders.pieces import together
from pipelines.decoders.protocol import DecodedValues, Refusal
from pipelines.decoders.rules import broken_by_numbers, words_not_allowed
from pipelines.decoders.sources import default_of, distinct_fields, empty_column, flat_names, pad_of
from pipelines.schema import Column, Field, Schema

Mask = npt.NDArray[np.bool_]
_FLOAT, _INT, _BYTES = "float_list", "int64_list", "bytes_list"
_AT_ROW = re.compile(r"Index: (\d+)\.")
_SLICE = 512
"""Records of which those with a fault are searched for at once: each that is found costs to parse half of them."""
_SPARSE = 24
"""If more than one record in this many is at fault, to look at all costs less than to parse again after each."""
_FEATURES_TAG, _MORE, _LONGEST, _FAR = 0x0A, 0x80, 4, 3
"""How an Example begins: its one field, whose length takes some bytes, of which all but the last are 0x80 or more."""
_TYPES = {_FLOAT: tf.float32, _INT: tf.int64, _BYTES: tf.string}


class _Lists(NamedTuple):
    """A feature of all records of a chunk."""

    values: Column
    lengths: Int64s


class _Read(NamedTuple):
    """A field of all records: its column, which records are at fault, and the lengths where they vary."""

    column: Column
    faults: Sequence[tuple[Reason, Mask]]
    lengths: Int64s | None = None


class _ParseStop(NamedTuple):
    """TensorFlow has refused a chunk."""

    row: int | None
    """The row that it names, if it does: a hint, never a verdict."""


class _Parser:
    """Parses features of given kinds by TensorFlow's operation, which is prepared once."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._names = tuple(kinds)
        self._types = [_TYPES[kind] for kind in kinds.values()]
        self._splits = [tf.int64] * len(kinds)

    @cached_property
    def _keys(self) -> tuple[Any, Any]:
        """No names, and the names, as tensors: to make them at each call costs more than a short chunk does."""
        return tf.constant([], tf.string), tf.constant(self._names, tf.string)

    def __call__(self, texts: Any) -> dict[str, _Lists] | _ParseStop:
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
            return _ParseStop(row if row < len(texts) else None)
        except UnicodeDecodeError:  # TensorFlow's text quotes bytes
            return _ParseStop(None)
        lists = zip(self._names, parsed.ragged_values, parsed.ragged_row_splits, strict=True)
        return {name: _Lists(values.numpy(), np.diff(splits.numpy())) for name, values, splits in lists}


_NO_FEATURES = _Parser({"": _INT})
"""Asks for next to nothing: what it refuses, any other refuses too, for it is no Example."""


class ExampleDecoder:
    """Decodes serialised `tf.train.Example`s."""

    def __init__(self, schema: Schema, integers: Collection[str] = ()) -> None:
        """`integers` names float fields that are mostly stored as integers, which are then parsed as such at once."""
        self._schema = schema
        self._fields = {field.source: field for field in distinct_fields(schema)}
        self._defaults = {source: default_of(field) for source, field in self._fields.items()}
        self._pads = {source: pad_of(field) for source, field in self._fields.items()}
        self._names = flat_names(self._fields)
        self._kinds = {name: _kind(self._fields[source]) for source, name in self._names.items()}
        floats = {name for name, kind in self._kinds.items() if kind == _FLOAT}
        self._plain = _Parser(self._kinds)
        self._usual = self._with(floats & set(integers))

    @property
    def schema(self) -> Schema:
        """The schema that the decoder follows."""
        return self._schema

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none; a tensor of texts is taken as it is."""
        given: Any = values
        texts: Any = given.numpy().tolist() if tf.is_tensor(given) else given
        indices, refused = np.arange(len(texts)), list[Refusal]()
        framed = _framed(texts)
        if not framed.all():
            unframed = [(index, texts[index]) for index in np.flatnonzero(~framed).tolist()]
            wrong = {index: _unread(text) for index, text in unframed if not text or _features(text) is None}
            refused = [Refusal(index, reason) for index, reason in wrong.items()]
            if wrong:
                indices = np.setdiff1d(indices, np.array([*wrong], np.int64))
                texts = [texts[index] for index in indices.tolist()]
        parsed = self._usual(tf.constant(texts, tf.string))
        pieces = self._pieces(texts, indices) if isinstance(parsed, _ParseStop) else [self._judged(parsed, indices)]
        return _in_order(pieces, refused)

    def _judged(self, parsed: Mapping[str, _Lists], indices: Int64s) -> DecodedValues:
        refused = list[Refusal]()
        good = np.ones(len(indices), np.bool_)
        read = {source: self._read(source, parsed[name]) for source, name in self._names.items()}
        for source, (_, faults, _) in read.items():
            for reason, bad in faults:
                refused += [Refusal(index, reason, source) for index in indices[good & bad].tolist()]
                good &= ~bad
        every = bool(good.all())
        return DecodedValues(
            kept=indices if every else indices[good],
            columns={source: one.column if every else one.column[good] for source, one in read.items()},
            refused=tuple(refused),
            lengths={source: one.lengths[good] for source, one in read.items() if one.lengths is not None},
        )

    def _read(self, source: str, lists: _Lists) -> _Read:
        field = self._fields[source]
        column, faults = _elements(lists.values, field)
        pad = self._pads[source]
        if pad is not None:
            return _padded(_Lists(column, lists.lengths), faults, field, pad, self._defaults[source])
        return _fixed(_Lists(column, lists.lengths), faults, field, self._defaults[source])

    def _pieces(self, texts: Sequence[bytes], indices: Int64s) -> list[DecodedValues]:
        """Return what the records of a chunk hold, or why not, in pieces of any order."""
        pieces = [self._none()]
        for at in range(0, len(texts), _SLICE):
            pieces += self._sifted(texts[at : at + _SLICE], indices[at : at + _SLICE])
        return pieces

    def _sifted(self, texts: Sequence[bytes], indices: Int64s) -> Iterator[DecodedValues]:
        """Yield what a slice holds: the records that TensorFlow names are left out, and looked at alone."""
        rest = list(range(len(texts)))
        while isinstance(stop := self._usual(tf.constant([texts[row] for row in rest], tf.string)), _ParseStop):
            few = len(texts) - len(rest) < len(texts) // _SPARSE
            if stop.row is None or not few or self._floats_as_integers(_features(texts[rest[stop.row]])):
                yield from self._sorted([texts[row] for row in rest], indices[rest])
                break
            row = rest.pop(stop.row)
            yield self._alone(texts[row], int(indices[row]))
        else:
            yield self._judged(stop, indices[rest])

    def _sorted(self, texts: Sequence[bytes], indices: Int64s) -> Iterator[DecodedValues]:
        """Yield what records hold: those that hold integers in the same float fields are parsed together."""
        alike: dict[frozenset[str] | None, list[int]] = {}
        for row, text in enumerate(texts):
            alike.setdefault(self._floats_as_integers(_features(text)), []).append(row)
        for row in alike.pop(None, []):
            yield self._alone(texts[row], int(indices[row]))
        for integers, rows in alike.items():
            yield from self._read_or_split([texts[row] for row in rows], indices[rows], self._with(integers or ()))

    def _read_or_split(self, texts: Sequence[bytes], indices: Int64s, parse: _Parser) -> Iterator[DecodedValues]:
        parsed = parse(tf.constant(texts, tf.string))
        if not isinstance(parsed, _ParseStop):
            yield self._judged(parsed, indices)
        elif len(texts) == 1:
            yield self._alone(texts[0], int(indices[0]))
        else:
            for half in (slice(len(texts) // 2), slice(len(texts) // 2, None)):
                yield from self._read_or_split(texts[half], indices[half], parse)

    def _alone(self, text: bytes, index: int) -> DecodedValues:
        """Return what a record holds, or the verdict on it where TensorFlow refuses it with all types."""
        one, features = tf.constant([text], tf.string), _features(text)
        if not isinstance(_NO_FEATURES(one), _ParseStop):
            for parse in (self._usual, self._plain, self._with(self._floats_as_integers(features) or ())):
                if not isinstance(parsed := parse(one), _ParseStop):
                    return self._judged(parsed, np.array([index]))
        return self._none(Refusal(index, *self._fault(features)))

    def _none(self, *refused: Refusal) -> DecodedValues:
        columns = {source: empty_column(field.dtype, (0, *field.shape)) for source, field in self._fields.items()}
        lengths = {source: np.empty(0, np.int64) for source, pad in self._pads.items() if pad is not None}
        return DecodedValues(np.empty(0, np.int64), columns, refused, lengths)

    def _with(self, integers: Collection[str]) -> "_Parser":
        return _Parser(self._kinds | dict.fromkeys(integers, _INT)) if integers else self._plain

    def _floats_as_integers(self, features: Mapping[str, Any] | None) -> frozenset[str] | None:
        """Return the float features that are stored as integers; None where the record has a fault."""
        if features is None:
            return None
        integers = set[str]()
        for name, kind in self._kinds.items():
            found = features[name].WhichOneof("kind") if name in features else None
            if found is not None and found != kind:
                if (kind, found) != (_FLOAT, _INT):
                    return None
                integers.add(name)
        return frozenset(integers)

    def _fault(self, features: Mapping[str, Any] | None) -> tuple[Reason, str | None]:
        """Return the verdict on a record that TensorFlow refuses."""
        for source, name in self._names.items() if features is not None else ():
            found = features[name].WhichOneof("kind") if features is not None and name in features else None
            if found not in {None, self._kinds[name]} and (self._kinds[name], found) != (_FLOAT, _INT):
                return Reason.WRONG_TYPE, source
        return Reason.MALFORMED, None


def integers_in(example: bytes) -> frozenset[str]:
    """Return the features of a record that are integers; none where it is no Example."""
    features = _features(example) or {}
    return frozenset(name for name, feature in features.items() if feature.WhichOneof("kind") == _INT)


def _framed(texts: Sequence[bytes | None]) -> Mask:
    """Return which texts are one field of the Example and nothing else, by its length, without a length far beyond it.

    TensorFlow is lenient in this: it reads some that were cut short.
    """
    there = cast("Sequence[bytes]", texts) if all(texts) else [text or b"" for text in texts]
    lengths = np.fromiter(map(len, there), np.int64, len(there))
    codes = np.frombuffer(b"".join([*there, bytes(_LONGEST + 1)]), np.uint8)
    at = np.cumsum(lengths) - lengths
    framed: Mask = codes[at] == _FEATURES_TAG
    more, said, taken = framed, np.ones(len(texts), np.int64), 0
    while more.any() and taken < _LONGEST:
        code = codes[at + taken + 1].astype(np.int64)
        said += np.where(more, 1 + ((code % _MORE) << 7 * taken), 0)
        more, taken = more & (code >= _MORE), taken + 1
    framed &= ~more & (said == lengths)
    # A list that states a length far beyond the record ends the process inside of TensorFlow. Three bytes of 0x80 or
    # more behind such a tag may be one: few records have them by chance, and of those protobuf is asked first.
    tags = np.flatnonzero(codes[:-_FAR] == _FEATURES_TAG)
    for behind in range(1, _FAR + 1):
        tags = tags[codes[tags + behind] >= _MORE]
    owners = np.searchsorted(at, tags, side="right") - 1
    framed[owners[tags + _FAR < (at + lengths)[owners]]] = False
    return framed


def _unread(text: bytes | None) -> Reason:
    return Reason.MALFORMED if text else Reason.EMPTY


def _features(example: bytes) -> Mapping[str, Any] | None:
    """Return the features of a record by name; None where it is no Example."""
    try:
        features: Mapping[str, Any] = tf.train.Example.FromString(example).features.feature
    except DecodeError:
        return None
    return features


def _in_order(pieces: Sequence[DecodedValues], refused: Sequence[Refusal]) -> DecodedValues:
    """Join the pieces of a chunk, and sort their rows and refusals."""
    every = [*refused, *(refusal for piece in pieces for refusal in piece.refused)]
    joined = together(pieces, tuple(sorted(every, key=lambda refusal: refusal.index)))
    if len(pieces) == 1:
        return joined
    order = np.argsort(joined.kept)
    return replace(
        joined,
        kept=joined.kept[order],
        columns={source: column[order] for source, column in joined.columns.items()},
        lengths={source: lengths[order] for source, lengths in joined.lengths.items()},
    )


def _kind(field: Field) -> str:
    if field.dtype == "string":
        return _BYTES
    return _FLOAT if field.dtype.startswith("float") else _INT


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
            column = values.astype(field.numpy_dtype)
        faults += [(Reason.NOT_FINITE, ~finite), (Reason.OUT_OF_RANGE, finite & ~np.isfinite(column))]
    else:
        limits = np.iinfo(field.dtype)
        # A uint64's limit is no int64, and Example holds int64 only.
        most = min(int(limits.max), np.iinfo(np.int64).max)
        within = np.greater_equal(values, limits.min) & np.less_equal(values, most)
        faults.append((Reason.OUT_OF_RANGE, ~within))
        column = values.astype(field.numpy_dtype)
    faults += broken_by_numbers(column, field)
    return column, [(reason, bad) for reason, bad in faults if bad.any()]


def _fixed(
    lists: _Lists, faults: Sequence[tuple[Reason, Mask]], field: Field, default: np.generic | bytes | None
) -> _Read:
    """Return a column of rows of one shape."""
    rows, whole = len(lists.lengths), lists.lengths == field.size
    if whole.all():
        by_row = [(reason, np.logical_or.reduce(bad.reshape(rows, field.size), axis=1)) for reason, bad in faults]
        return _Read(lists.values.reshape(rows, *field.shape), by_row)
    absent = (lists.lengths == 0) & ~whole
    column = empty_column(field.dtype, (rows, *field.shape))
    column[whole] = lists.values[np.repeat(whole, lists.lengths)].reshape(-1, *field.shape)
    found = [(Reason.WRONG_SHAPE, ~whole & ~absent), *_of_rows(faults, lists.lengths)]
    if default is None:
        return _Read(column, [(Reason.MISSING, absent), *found])
    column[absent] = default
    return _Read(column, found)


def _padded(
    lists: _Lists,
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
    owners = np.repeat(np.arange(len(lengths)), lengths)
    for reason, bad in faults:
        rows = np.zeros(len(lengths), np.bool_)
        rows[owners[bad]] = True
        yield reason, rows
