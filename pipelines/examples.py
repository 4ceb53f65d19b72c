"""`tf.train.Example` records: TensorFlow parses a chunk at a time, and numpy judges what it found.

Every feature is parsed as a list of any length, so that a record which lacks one, or holds another number of elements,
is refused by itself. A record of another type, or one that is no Example, makes TensorFlow refuse the whole chunk: its
records are then looked at one by one. An integer stands for a float where the schema says float, as in JSON.

Features are found by a field's path as one text. TensorFlow does not tell an empty list from an absent feature: both
are absent, except that a feature with `pad` is an empty list. Runs on threads of tf.data, and holds no state.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf
from google.protobuf.message import DecodeError

from consumers.reasons import Reason
from consumers.records import Int64s
from pipelines.decoders.protocol import DecodedValues, Refusal
from pipelines.decoders.rules import broken_by_numbers, words_not_allowed
from pipelines.decoders.sources import default_of, distinct_fields, empty_column, flat_names, pad_of
from pipelines.schema import Column, Field, Schema

Mask = npt.NDArray[np.bool_]
_FLOAT, _INT, _BYTES = "float_list", "int64_list", "bytes_list"
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
        self._usual = self._kinds | dict.fromkeys(floats & set(integers), _INT)

    @property
    def schema(self) -> Schema:
        """The schema that the decoder follows."""
        return self._schema

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none; a tensor of texts is taken as it is."""
        texts: Any = values if tf.is_tensor(values) else tf.constant([value or b"" for value in values], tf.string)
        indices = np.arange(len(values))
        filled = tf.strings.length(texts).numpy() > 0
        refused = [Refusal(index, Reason.EMPTY) for index in np.flatnonzero(~filled).tolist()]
        if refused:
            texts, indices = tf.boolean_mask(texts, filled), indices[filled]
        parsed = _parse(texts, self._usual)
        if parsed is None:
            texts, indices, wrong = self._one_by_one(texts.numpy(), indices)
            refused += wrong
            parsed = _parse(texts, self._kinds)
            assert parsed is not None, "each of these records was parsed before"
        return self._judged(parsed, indices, refused)

    def _judged(self, parsed: Mapping[str, _Lists], indices: Int64s, refused: list[Refusal]) -> DecodedValues:
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
            refused=tuple(sorted(refused, key=lambda refusal: refusal.index)),
            lengths={source: one.lengths[good] for source, one in read.items() if one.lengths is not None},
        )

    def _read(self, source: str, lists: _Lists) -> _Read:
        field = self._fields[source]
        column, faults = _elements(lists.values, field)
        pad = self._pads[source]
        if pad is not None:
            return _padded(_Lists(column, lists.lengths), faults, field, pad, self._defaults[source])
        return _fixed(_Lists(column, lists.lengths), faults, field, self._defaults[source])

    def _one_by_one(self, texts: Column, indices: Int64s) -> tuple[Any, Int64s, list[Refusal]]:
        """Return the records that parse, spelt as the schema has them, and a refusal for each other one."""
        good, kept, refused = list[bytes](), list[int](), list[Refusal]()
        for text, index in zip(texts.tolist(), indices.tolist(), strict=True):
            spelt = self._spelt(text)
            if isinstance(spelt, bytes):
                good.append(spelt)
                kept.append(index)
            else:
                refused.append(Refusal(index, *spelt))
        return tf.constant(good, tf.string), np.array(kept, np.int64), refused

    def _spelt(self, text: bytes) -> bytes | tuple[Reason, str | None]:
        try:
            example = tf.train.Example.FromString(text)
        except DecodeError:
            return Reason.MALFORMED, None
        for source, name in self._names.items():
            kind, feature = self._kinds[name], example.features.feature.get(name)
            found = None if feature is None else feature.WhichOneof("kind")
            if feature is None or found is None or found == kind:
                continue
            if (kind, found) != (_FLOAT, _INT):
                return Reason.WRONG_TYPE, source
            numbers = list(feature.int64_list.value)
            feature.float_list.value.extend(numbers)
        spelt: bytes = example.SerializeToString()
        return spelt


def integers_in(example: bytes) -> frozenset[str]:
    """Return the features of a record that are integers; none where it is no Example."""
    try:
        features = tf.train.Example.FromString(example).features.feature
    except DecodeError:
        return frozenset()
    return frozenset(name for name, feature in features.items() if feature.WhichOneof("kind") == _INT)


def _kind(field: Field) -> str:
    if field.dtype == "string":
        return _BYTES
    return _FLOAT if field.dtype.startswith("float") else _INT


def _parse(texts: Any, kinds: Mapping[str, str]) -> dict[str, _Lists] | None:
    """Return the features of all records; None where TensorFlow refuses one of them."""
    wanted = {name: tf.io.RaggedFeature(_TYPES[kind], row_splits_dtype=tf.int64) for name, kind in kinds.items()}
    try:
        parsed = tf.io.parse_example(texts, wanted)
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):  # the latter where TensorFlow's text quotes bytes
        return None
    return {
        name: _Lists(lists.values.numpy(), np.diff(lists.row_splits.numpy()).astype(np.int64))
        for name, lists in parsed.items()
    }


def _elements(values: Column, field: Field) -> tuple[Column, list[tuple[Reason, Mask]]]:
    """Return the elements of all records in the field's dtype, and which of them are at fault."""
    if field.dtype == "string":
        denied = words_not_allowed(pa.array(values.tolist(), pa.binary()), field)
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
    values = lists.values[np.repeat(~uneven, lists.lengths)].reshape(-1, *field.shape[1:])
    lengths = np.where(uneven, 0, lists.lengths // inner)
    rows = len(lengths)
    column = empty_column(field.dtype, (rows, *field.shape))
    column[...] = pad
    owners = np.repeat(np.arange(rows), lengths)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = places < field.shape[0]
    column[owners[kept], places[kept]] = values[kept]
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
