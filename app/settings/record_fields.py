"""The settings of one field of a record: its type, its shape, and which values it may hold.

Pure; `app.settings.sections.records` puts fields together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from millrace.consumers.errors import ConfigError
from millrace.consumers.section import Count, Section, SettingError, no_truth_value
from millrace.pipelines import schema
from millrace.pipelines.formats.shared.paths import complaint_about, escaped, parse
from millrace.pipelines.schema import DTYPES, DType

Scalar = bool | int | float | str
Length = Annotated[int, Field(ge=1), BeforeValidator(no_truth_value)]

# What an image may be.
_DTYPES = ("uint8", "float32")
_CHANNELS = (1, 3)
_DIMENSIONS = 3
_MOST_CLASSES = 10_000
_NOTHING_FOR_IT = ("missing", "min", "max", "one_of", "pad", "length", "example", "ragged", "scale")


def depth(value: Any) -> int:
    """Return how many lists lie in each other, by the first element of each."""
    return 1 + (depth(value[0]) if value else 0) if isinstance(value, list) else 0


def _scalar(value: object) -> object:
    if value is not None and not isinstance(value, Scalar):
        raise ValueError("a list or a mapping is no single value; write one number or text")
    return value


def _number(value: object) -> object:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError("this is no number; write one, or null")
    return value


def _source(text: str) -> str:
    try:
        parse(text)
    except ConfigError as error:
        raise ValueError(str(error).partition("field: ")[2]) from error
    return text


Source = Annotated[str, Field(min_length=1), AfterValidator(_source)]
Missing = Annotated[
    Scalar | None,
    PlainValidator(_scalar),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"]}),
]
Bound = Annotated[int | float | None, PlainValidator(_number), WithJsonSchema({"type": ["number", "null"]})]
Example = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": ["string", "number", "boolean", "null"]}, {"type": "array", "items": {}}]}),
]
OneValue = Annotated[Scalar, PlainValidator(_scalar), WithJsonSchema({"type": ["string", "number", "boolean"]})]

_SCALABLE = ("float32", "float64")
_NOTHING: Mapping[str, bool | str] = {"string": "", "bool": False}
"""What a ragged row is filled up with on its way, of dtypes that are no numbers."""
_UNLESS_NULL = frozenset({"min", "max", "one_of", "example", "ahead", "classes", "image", "scale"})
MISSING = "The value to use if the record lacks {}or holds null. Null: such a record is set aside."
MASK = "mask"
"""Stands for a label that a record may lack: the output's weight is 0 for it."""
MIN = "The least value that is learnt from; a record with a smaller one is set aside."
MAX = "The greatest value that is learnt from; a record with a greater one is set aside."


class Ruled(Section):
    """What is not set of the rules is not shown either: a checkpoint compares what is shown."""

    @property
    def written(self) -> DType:
        """The dtype of what a record holds."""
        return "float64"

    @property
    def dimensions(self) -> int:
        """How many dimensions what a record holds has."""
        return len(getattr(self, "shape", ()))

    def fault(self) -> tuple[str, str] | None:
        """Return a setting that is nothing for such a field, and why; None where none is. It is asked first."""
        return None

    @model_serializer(mode="wrap")
    def _rules_that_are_set(self, handler: SerializerFunctionWrapHandler) -> Any:
        values = handler(self)
        return {key: value for key, value in values.items() if value is not None or key not in _UNLESS_NULL}

    @model_validator(mode="after")
    def _source_fits(self) -> Self:
        if (fault := self.fault()) is not None:
            raise SettingError(*fault)
        source = getattr(self, "field", None)
        complaint = None if source is None else complaint_about(source, self.written, self.dimensions)
        if complaint is not None:
            raise SettingError("field", complaint)
        return self


class _Values(Ruled):
    """What a field's values are, and which of them are learnt from."""

    dtype: DType = Field(description="The field's type.", examples=["float32"])
    shape: tuple[Length, ...] = Field((), description="How many elements it holds, by dimension; [] for one value.")
    missing: Missing = Field(None, description=MISSING.format("the field "))
    min: Bound = Field(None, description=MIN)
    max: Bound = Field(None, description=MAX)
    one_of: tuple[OneValue, ...] | None = Field(
        None,
        min_length=1,
        description="The only values that are learnt from; a record with another one is set aside. Texts with the "
        "dtype of an integer: a record holds the text, and the model gets its place in this list, from 0.",
        examples=[["DE", "NO"]],
    )
    example: Example = Field(
        None,
        description="A value that a record may hold, or a list of such values. A start tries the model and preprocess "
        "on it if there is no real record yet; the model does not learn from it. Null: the start makes "
        "values up.",
        examples=["2026-11-22T10:00:00Z"],
    )

    @property
    def varies(self) -> bool:
        """Whether it is a list of varying length, cut at a bound."""
        return False

    @property
    def listed(self) -> tuple[str, ...] | None:
        """The texts whose places in the list the model gets; None where it gets the values themselves."""
        texts = tuple(value for value in self.one_of or () if isinstance(value, str))
        return texts if texts and len(texts) == len(self.one_of or ()) and "int" in self.dtype else None

    @property
    def written(self) -> DType:
        """The dtype of what a record holds."""
        return self.dtype if self.listed is None else "string"

    @property
    def examples(self) -> tuple[Any, ...] | None:
        """The examples, each of the field's shape, or shorter where the field varies; None where there are none."""
        if self.example is None:
            return None
        nested = depth(self.example) > len(self.shape)
        return tuple(self.example) if nested else (self.example,)

    @model_validator(mode="after")
    def _examples_fit(self) -> Self:
        for example in self.examples or ():
            if (complaint := _unlike(example, self.shape, self.written, varies=self.varies)) is not None:
                raise SettingError("example", complaint)
            for value in np.ravel(np.array(example, object)) if self.listed is not None else ():
                self.check_value("example", value)
        if self.examples == ():
            raise SettingError("example", "the list is empty; write a value, or leave it out")
        return self

    @model_validator(mode="after")
    def _rules_fit(self) -> Self:
        self.check_value("missing", self.missing)
        for key, bound in (("min", self.min), ("max", self.max)):
            check_bound(key, bound, self.written)
        check_order(self.min, self.max)
        if unfit := [value for value in self.one_of or () if not fits(value, self.written)]:
            raise SettingError("one_of", f"{unfit[0]!r} does not fit {self.dtype}; list values that do")
        classes = self.listed or ()
        if twice := [text for text in classes if classes.count(text) > 1]:
            raise SettingError("one_of", f"{twice[0]!r} stands there twice; each class has one place")
        if classes and len(classes) - 1 > np.iinfo(self.dtype).max:
            raise SettingError("one_of", f"{len(classes)} classes do not fit {self.dtype}; write int32")
        return self

    def check_value(self, key: str, value: Scalar | None) -> None:
        """Raise SettingError where a value that stands for one of the record's is none that it could hold."""
        if value is None:
            return
        if not fits(value, self.written):
            raise SettingError(key, f"{value!r} does not fit {self.written}; write a value that does, or null")
        if self.listed is not None and value not in self.listed:
            raise SettingError(key, f"{value!r} is none of one_of; write one of those texts, or null")


class _Named(_Values):
    """A field by the model's name for it. A dtype alone is short for a mapping with that dtype."""

    field: Source | None = Field(
        None,
        description="The field's place in the record, if it differs from the model's name: a name, or a path such as "
        "user.age or items[].price. A backslash takes the next character as it is. $key, $header.NAME, "
        "$timestamp, $partition, $offset and $topic are the parts of a Kafka record beside its value.",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"dtype": value} if isinstance(value, str) else value

    @model_serializer(mode="wrap")
    def _shortest_form(self, handler: SerializerFunctionWrapHandler) -> Any:
        values = {key: value for key, value in handler(self).items() if key in self.model_fields_set}
        return values["dtype"] if values.keys() == {"dtype"} else values

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe the short form too."""
        if core["type"] == "model" or handler.mode == "serialization":
            return handler(core)
        return {"anyOf": [{"enum": list(DTYPES), "type": "string"}, handler(core)]}

    def to_field(self, name: str) -> schema.Field:
        """Return the schema's field for the model's name `name`."""
        return _to_field(self, name, self.field or escaped(name))


class FeatureSettings(_Named):
    """One feature, which may be a list of varying length."""

    pad: Missing = Field(
        None,
        description="For a list of varying length: the value that fills shorter lists up to the first dimension of the "
        "shape. Longer lists are cut, and counted as truncated. Null: every list has the length of the shape.",
    )
    length: str | None = Field(
        None,
        min_length=1,
        description="With pad: the name of an additional model input, an int32, that gets the length of each "
        "list before "
        "padding.",
    )
    ragged: bool = Field(
        default=False,
        description="With a shape: the model gets a RaggedTensor, whose lists are cut at the first dimension of the "
        "shape.",
    )
    image: Literal["bytes", "base64"] | None = Field(
        None,
        description="The record holds an image, JPEG or PNG, as bytes or as base64 text. The model gets its pixels, "
        "from 0 to 255, resized to shape: [height, width, channels], with dtype: uint8 or float32. A "
        "record whose image cannot be decoded is set aside. Null: the field is no image.",
        examples=["base64"],
    )
    scale: Literal["running"] | None = Field(
        None,
        description="running: the model gets the value less its mean, divided by its standard deviation, as both "
        "follow the stream; each element by its own. Null: it gets the value as it is.",
        examples=["running"],
    )

    @property
    def written(self) -> DType:
        """The dtype of what a record holds."""
        return super().written if self.image is None else "string"

    @property
    def dimensions(self) -> int:
        """How many dimensions what a record holds has."""
        return super().dimensions if self.image is None else 0

    def fault(self) -> tuple[str, str] | None:
        """Return which setting no image can have, and why; None if there is none, or if it is no image."""
        if self.image is None:
            return None
        if len(self.shape) != _DIMENSIONS or self.shape[2] not in _CHANNELS:
            return "shape", "an image has [height, width, channels], with 1 channel or 3; write that"
        if self.dtype not in _DTYPES:
            return "dtype", f"pixels are from 0 to 255, and this is {self.dtype}; write uint8, or float32"
        others = [key for key in _NOTHING_FOR_IT if getattr(self, key) not in {None, False}]
        return (others[0], "this is nothing for an image; leave it out") if others else None

    @property
    def varies(self) -> bool:
        """Whether it is a list of varying length, cut at a bound."""
        return self.pad is not None or self.ragged

    def to_field(self, name: str) -> schema.Field:
        """Return the schema's field."""
        pad = _placed(self.pad, self.listed)
        pad = pad if pad is not None or not self.ragged else _NOTHING.get(self.dtype, 0)
        whole = super().to_field(name)
        examples = whole.example
        if self.varies and examples is not None:
            filling = np.full(self.shape[1:], pad, object).tolist()
            examples = tuple([*example, *[filling] * (self.shape[0] - len(example))] for example in examples)
        scaled = None if self.scale is None else self.shape
        return replace(
            whole, pad=pad, length=self.length, ragged=self.ragged, example=examples, image=self.image, scaled=scaled
        )

    @model_validator(mode="after")
    def _length_varies_within_a_bound(self) -> Self:
        key = "ragged" if self.ragged else "pad"
        if self.varies and not self.shape:
            raise SettingError(key, "a list of varying length needs a bound; write shape: [N], its greatest length")
        if self.ragged and len(self.shape) > 1:
            raise SettingError(key, "a ragged feature is a list of single values; write shape: [N], or pad it")
        self.check_value("pad", self.pad)
        if self.scale is not None and self.varies:
            raise SettingError(
                "scale", f"a list of one length can be scaled, and this has {key}; leave one of them out"
            )
        if self.scale is not None and self.dtype not in _SCALABLE:
            raise SettingError("scale", f"what is scaled is no {self.dtype} any more; write dtype: float32, or float64")
        if self.length is not None and (self.pad is None or self.ragged):
            raise SettingError("length", "this tells the lengths of a padded list; give it a pad, or leave length out")
        return self


class _Label(_Values):
    """What a model predicts is of one shape; what tells of varying lengths is refused as what it is."""

    missing: Missing = Field(
        None,
        description=f"{MISSING.format('the field ')} {MASK}: it is learnt for the other outputs, and the "
        "weight of this one is 0.",
    )

    ahead: Count | None = Field(
        None,
        ge=1,
        le=10_000,
        description="With windows: the label is that of a later record of the same key, this many records after the "
        "newest of the sequence. Null: the label is that of the newest record.",
    )

    classes: Count | None = Field(
        None,
        ge=2,
        le=_MOST_CLASSES,
        description="The record holds a text, and each text that comes becomes a class: the model gets its number from "
        "0, in the sequence in which they came. At most this many; a record of a further one is set aside. Null: the "
        "classes are known, or the label is no class.",
        examples=[100],
    )

    @property
    def written(self) -> DType:
        """The dtype of what a record holds."""
        return super().written if self.classes is None else "string"

    def fault(self) -> tuple[str, str] | None:
        """Return which setting no label can have whose classes appear, and why; None if there is none."""
        if self.classes is None:
            return None
        if self.one_of is not None:
            return "classes", "one_of lists the classes; leave one of the two out"
        if "int" not in self.dtype or self.classes - 1 > np.iinfo(self.dtype).max:
            return (
                "dtype",
                f"the model gets the numbers of {self.classes} classes, and this is {self.dtype}; write int32",
            )
        return ("shape", "a class is one text; leave it out") if self.shape else None

    @property
    def masked(self) -> bool:
        """Whether a record without it is learnt for the other outputs."""
        return self.missing == MASK

    def check_value(self, key: str, value: Scalar | None) -> None:
        """Raise SettingError as for any field; one that is masked has to have room for a mark."""
        if key != "missing" or value != MASK:
            super().check_value(key, value)
        elif self.classes is not None:
            raise SettingError(key, f"classes number the texts that come; list them in one_of to write {MASK}")
        elif self.listed is not None and MASK in self.listed:
            raise SettingError(key, f"{MASK} is one of one_of, and means that the label is missing; rename the class")
        elif self.dtype == "string":
            raise SettingError(
                key, f"a text cannot be masked; list the classes in one_of, with dtype: int32, to write {MASK}"
            )
        elif self.dtype == "bool":
            raise SettingError(key, f"a bool cannot be masked; write a dtype of numbers to write {MASK}")

    def labelled(self, field: schema.Field) -> schema.Field:
        """Return a field of the schema with what labels alone have."""
        field = replace(field, ahead=self.ahead or 0, masked=self.masked)
        if self.missing == MASK:
            field = replace(field, missing=None)
        if self.classes is None:
            return field
        return replace(field, dtype="string", appearing=schema.Appearing(most=self.classes, dtype=self.dtype))

    @model_validator(mode="before")
    @classmethod
    def _numbered(cls, value: Any) -> Any:
        numbered = isinstance(value, Mapping) and value.get("classes") is not None and "dtype" not in value
        return {**value, "dtype": "int32"} if numbered else value

    @model_validator(mode="before")
    @classmethod
    def _of_one_length(cls, value: Any) -> Any:
        for key in ("pad", "length", "ragged"):
            if isinstance(value, Mapping) and key in value:
                raise SettingError(key, "a label cannot vary in length, features alone can; leave it out")
        return value


class LabelSettings(_Label, _Named):
    """One label of several, by the model's name for it."""

    def to_field(self, name: str) -> schema.Field:
        """Return the schema's field for the model's name `name`."""
        return self.labelled(super().to_field(name))


class OneLabelSettings(_Label):
    """A single label, named by its field."""

    field: Source = Field(description="The field's place in the record: a name, or a path.", examples=["clicked"])
    dtype: DType = Field("float32", description="The field's type.")

    def to_field(self) -> schema.Field:
        """Return the schema's field."""
        return self.labelled(_to_field(self, self.field, self.field))


def _to_field(values: _Values, name: str, source: str) -> schema.Field:
    classes = values.listed
    return schema.Field(
        name=name,
        source=source,
        dtype=values.dtype,
        shape=values.shape,
        missing=values.missing if values.missing == MASK else _placed(values.missing, classes),
        min=values.min,
        max=values.max,
        one_of=values.one_of if classes is None else tuple(range(len(classes))),
        classes=classes,
        example=_placed(values.examples, classes),
    )


def _placed(value: Any, classes: tuple[str, ...] | None) -> Any:
    """Return what the model gets for a value, or lists of values: the place of a class, or the value itself."""
    if classes is None or value is None:
        return value
    if isinstance(value, list | tuple):
        return type(value)(_placed(one, classes) for one in value)
    return classes.index(value)


def check_bound(key: str, bound: float | None, dtype: DType) -> None:
    """Raise SettingError where a bound is none for values of a dtype."""
    if bound is None:
        return
    if dtype in {"string", "bool"}:
        raise SettingError(key, f"a {dtype} has no order; list its values in one_of, or leave {key} out")
    if not fits(bound, dtype):
        raise SettingError(key, f"{bound!r} does not fit {dtype}; write a value that does, or null")


def check_order(low: float | None, high: float | None) -> None:
    """Raise SettingError where nothing lies between two bounds."""
    if low is not None and high is not None and low > high:
        raise SettingError("min", f"{low!r} is above max, which is {high!r}; nothing would be learnt")


def _unlike(example: Any, shape: Sequence[int], dtype: DType, *, varies: bool) -> str | None:
    """Say in what an example differs from the values of a field; None where it does not."""
    if not shape:
        suits = isinstance(example, Scalar) and fits(example, dtype)
        return None if suits else f"{example!r} does not fit {dtype}; write a value that does, or a list of such values"
    if not isinstance(example, list):
        return f"{example!r} is no list of shape {list(shape)}; write one"
    if len(example) > shape[0] or (len(example) < shape[0] and not varies):
        return f"a list of {len(example)} elements does not fit the shape, whose list has {shape[0]}"
    inside = (_unlike(element, shape[1:], dtype, varies=False) for element in example)
    return next((complaint for complaint in inside if complaint is not None), None)


def fits(value: Scalar, dtype: DType) -> bool:
    """Return whether a value fits a dtype."""
    if dtype in {"string", "bool"}:
        return isinstance(value, str if dtype == "string" else bool)
    if isinstance(value, bool | str):
        return False
    if dtype.startswith("float"):
        return math.isfinite(value) and abs(value) <= float(np.finfo(dtype).max)
    limits = np.iinfo(dtype)
    return isinstance(value, int) and int(limits.min) <= value <= int(limits.max)
