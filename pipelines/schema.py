"""The schema: the fields of a record, for decoding, for the dataset's `output_signature` and for the docs.

Owns the description only. Used on any thread; TensorFlow is not imported here.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

DType = Literal[
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool", "string"
]
DTYPES: tuple[str, ...] = get_args(DType)
RAGGED = ".lengths"
"""The suffix of the feature with the row lengths of a ragged one; the model takes both as one RaggedTensor."""
PRESENT = ".present"
"""The suffix of the column that says which rows have a label that a record may lack."""
_NO_NUMBER = math.nan
_NO_TEXT = "\x00none"
Column = npt.NDArray[np.generic]
"""One field's values, the rows first. Strings are object arrays of `bytes`."""


TimeUnit = Literal["ms", "s", "us", "ns", "iso8601"]
_READ_AS: dict[TimeUnit, DType] = {"s": "float64", "iso8601": "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFormat:
    """How a record has a time that is no integer of milliseconds, and which times are learnt from."""

    unit: TimeUnit
    """Since 1970, or a text as ISO 8601 has it."""
    zone: str | None = None
    """Where a text without a zone was written; None refuses one."""
    min: int | None = None
    max: int | None = None
    """Bounds of the time, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appearing:
    """That a label's texts become classes as they come, numbered from 0."""

    most: int
    """How many there may be."""
    dtype: DType
    """The dtype of the numbers, which the model gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a record."""

    name: str
    """The model's name for it: an input, an output, or the role itself (`weight`, `event_time`)."""
    source: str
    """The record's name for it."""
    dtype: DType
    shape: tuple[int, ...] = ()
    missing: bool | int | float | str | None = None
    """The value for a record that lacks the field or holds null; None refuses such a record."""
    min: int | float | None = None
    max: int | float | None = None
    """The least and the greatest value that a record may hold. They do not apply to the value of `missing`."""
    one_of: tuple[bool | int | float | str, ...] | None = None
    """The only values that a record may hold. They do not apply to the value of `missing`."""

    pad: bool | int | float | str | None = None
    """The value that fills shorter lists up to `shape[0]`; longer lists are cut. None where all have that length."""
    length: str | None = None
    """The name of one more feature, with the number of elements of each row; None for no such feature."""
    ragged: bool = False
    """Whether the model gets a RaggedTensor, not padded rows."""

    classes: tuple[str, ...] | None = None
    """The texts that a record holds, whose indices the model gets; its dtype and rules are those of the indices."""
    time: TimeFormat | None = None
    """Of an event time: how the record has it; None where that is the int64 of milliseconds itself."""

    image: Literal["bytes", "base64"] | None = None
    """How a record has a JPEG or a PNG, whose pixels, 0 to 255, the model gets by this shape: height, width, channels.

    None where the field is no image.
    """

    appearing: Appearing | None = None
    """Of a label: that its texts get numbers when blocks are made of them; None where rows have what is decoded."""

    scaled: tuple[int, ...] | None = None
    """The shape of a record's value, each element of which is scaled by running statistics; None for no such feature.

    With windows `shape` has the steps of the sequence in front.
    """

    masked: bool = False
    """Of a label: whether a record without it is learnt all the same, for the other outputs."""

    ahead: int = 0
    """Of a label, with windows: how many records of the same key after the newest of a window it comes."""

    example: tuple[Any, ...] | None = None
    """Values that a record may hold, each of the field's shape: to try the model on before there is a record."""

    @property
    def lengths(self) -> "Field | None":
        """The feature with the lengths of the rows; None where the dataset has none."""
        name = self.name + RAGGED if self.ragged else self.length
        return None if name is None else Field(name=name, source=self.source, dtype="int32", min=0, max=self.shape[0])

    @property
    def mask(self) -> "Field | None":
        """The column that says which rows have this label; None where each has it."""
        return (
            Field(name=self.name + PRESENT, source=self.source, dtype="bool", ahead=self.ahead) if self.masked else None
        )

    @property
    def stand_in(self) -> Any:
        """A value that a record may hold, for a row that has none."""
        if self.one_of is not None:
            return self.one_of[0]
        if self.dtype == "string":
            return b""
        low, high = self.min, self.max
        return low if low is not None and low > 0 else high if high is not None and high < 0 else 0

    def reads_like(self, other: "Field") -> bool:
        """Return whether both read the same column, with the same verdicts, from a field of a record."""
        one, same = self.as_read, other.as_read
        names = ("name", "length", "ragged", "appearing", "scaled", "ahead", "example")
        aside = {key: getattr(same, key) for key in names}
        return replace(one, **aside) == same

    @property
    def as_read(self) -> "Field":
        """The field as a decoder reads it from a record: itself, unless it holds texts of classes or another time.

        One that may be missing has a mark in its place, which no record may hold.
        """
        if self.masked:
            return replace(_marked(replace(self, masked=False, ahead=0).as_read), masked=True)
        if self.classes is not None:
            missing, pad = self._text_of(self.missing), self._text_of(self.pad)
            listed = self.classes
            return replace(self, dtype="string", classes=None, one_of=listed, example=None, missing=missing, pad=pad)
        if self.image is not None:
            return replace(self, dtype="string", shape=(), image=None)
        if self.time is not None:
            return replace(self, dtype=_READ_AS.get(self.time.unit, "int64"), time=None, min=None, max=None)
        return self

    @property
    def as_learnt(self) -> "Field":
        """The field as the model gets it: itself, unless its texts get numbers."""
        if self.appearing is None:
            return self
        most, dtype = self.appearing.most, self.appearing.dtype
        return replace(self, dtype=dtype, appearing=None, missing=None, example=None, min=0, max=most - 1)

    def _text_of(self, index: bool | float | str | None) -> str | None:
        return None if index is None or self.classes is None else self.classes[int(index)]

    @property
    def numpy_dtype(self) -> np.dtype[np.generic]:
        """The dtype of its column."""
        return np.dtype(object) if self.dtype == "string" else np.dtype(self.dtype)

    @property
    def size(self) -> int:
        """The number of elements of one row."""
        return int(np.prod(self.shape, dtype=np.int64))


def _marked(field: Field) -> Field:
    """Return the field with a mark as its `missing`: NaN, a text that is not listed, or an end of the integers."""
    if field.dtype == "string":
        return replace(field, missing=_NO_TEXT)
    if "int" not in field.dtype:
        return replace(field, missing=_NO_NUMBER)
    limits = np.iinfo(field.dtype)
    if limits.min < 0:
        least = int(limits.min) + 1
        return replace(field, missing=int(limits.min), min=least if field.min is None else max(least, field.min))
    most = int(limits.max) - 1
    return replace(field, missing=int(limits.max), max=most if field.max is None else min(most, field.max))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """All the fields of a record, by role."""

    features: tuple[Field, ...]
    labels: tuple[Field, ...] = ()
    weight: Field | None = None
    event_time: Field | None = None
    """An int64 of milliseconds since 1970."""
    key: Field | None = None
    """What labels that come later are found by; None where they are in the record."""
    slices: tuple[Field, ...] = ()
    """What live scores are shown by; the model does not get it."""

    @property
    def inputs(self) -> tuple[Field, ...]:
        """The features as the dataset has them: lengths are features too."""
        lengths = (field.lengths for field in self.features)
        return self.features + tuple(field for field in lengths if field is not None)

    @property
    def targets(self) -> tuple[Field, ...]:
        """The labels as the dataset has them: which rows have a label that they may lack is a column too."""
        masks = (label.mask for label in self.labels)
        return self.labels + tuple(mask for mask in masks if mask is not None)

    @property
    def row_nbytes(self) -> int:
        """The memory of a decoded row, bytes; texts count by the references to them."""
        return sum(math.prod(field.shape) * field.numpy_dtype.itemsize for field in (*self.inputs, *self.targets))

    @property
    def as_learnt(self) -> "Schema":
        """The schema of the rows as the model gets them."""
        return replace(self, labels=tuple(label.as_learnt for label in self.labels))

    @property
    def fields(self) -> tuple[Field, ...]:
        """Every field, features first: the order of a raw record's bytes."""
        extra = tuple(field for field in (self.weight, self.event_time, self.key) if field is not None)
        return self.features + self.labels + extra + self.slices


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a registry."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """The schemas that it goes by, each with the name by which it is known, in an order in which they can be read."""


class Schemas(Protocol):
    """What gives schemas by their numbers, on any thread."""

    def get(self, number: int) -> RegisteredSchema | None:
        """Return a schema; None where it is certain that there is none. Raise NotYetError while it is not known."""
        ...
