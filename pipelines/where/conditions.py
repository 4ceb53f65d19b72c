"""Conditions: what a field must hold for a record to be learnt from. The settings of `records.where`, and their truth.

A condition stands for a field of the value, by the same paths as the fields of `records.features`, or for what Kafka
has beside it: `$key`, `$header.NAME` and so on. `$schema` is the name of the schema of a registry that wrote the
record, or of its Protobuf message. Pure; runs on any thread.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from millrace.consumers.errors import ConfigError
from millrace.consumers.section import Section, SettingError
from millrace.pipelines import schema
from millrace.pipelines.formats.shared.paths import complaint_about, is_envelope, parse
from millrace.pipelines.schema import Column, DType, Schema

SCHEMA = "$schema"
"""The source of the name of the schema, or the message, that wrote a record."""
Mask = npt.NDArray[np.bool_]
_SCALARS = {"type": ["string", "number", "boolean"]}
_WHOLE = 2**53
"""Integers up to here are exact as float64, in which bounds are compared."""


def _value(value: object) -> object:
    if not isinstance(value, bool | int | float | str):
        raise ValueError("this is no single value; write one text, number or truth value")  # noqa: TRY004 - pydantic collects ValueErrors
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"no record that is learnt holds {value!r}; write a finite number")
    return value


def _number(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_WHOLE <= value <= _WHOLE:
        raise ValueError(f"{value!r} is no bound; write a number between -2^53 and 2^53")
    return value


def _place(text: str) -> str:
    if text != SCHEMA:
        try:
            parse(text)
        except ConfigError as error:
            raise ValueError(str(error).partition("field: ")[2]) from error
    return text


def _listed(value: object) -> object:
    return [value] if isinstance(value, bool | int | float | str) else value


Value = Annotated[bool | int | float | str, PlainValidator(_value), WithJsonSchema(_SCALARS)]
Values = Annotated[
    tuple[Value, ...] | None, BeforeValidator(_listed), WithJsonSchema({"type": "array", "items": _SCALARS})
]
Bound = Annotated[float | None, PlainValidator(_number), WithJsonSchema({"type": ["number", "null"]})]
Place = Annotated[str, Field(min_length=1), AfterValidator(_place)]


class WhereCondition(Section):
    """What one field must hold. A value alone, or a list of values, is short for a mapping with `one_of`."""

    one_of: Values = Field(
        None, min_length=1, description="The values that match, also without this name: `type: [impression, view]`."
    )
    none_of: Values = Field(
        None,
        alias="not",
        min_length=1,
        description="The values that do not match; all others do, and so does a record that lacks the field.",
        examples=["heartbeat"],
    )
    min: Bound = Field(None, description="The least number that matches.")
    max: Bound = Field(None, description="The greatest number that matches.")
    present: bool | None = Field(
        None,
        strict=True,
        description="true: a record matches that has the field, and no null in it. false: one that lacks it matches.",
    )
    dtype: DType | None = Field(
        None,
        description="The type by which the field is read. Null: that of the field of `records` that reads the same "
        "place, or that of the values here; with bounds float64.",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping) else {"one_of": value}

    @model_validator(mode="after")
    def _says_something_whole(self) -> Self:
        values = self._values
        if not values and self.min is None and self.max is None and self.present is None:
            raise ValueError("this asks for nothing; write a value, a list, not, min, max or present")
        if self.present is False and (values or self.min is not None or self.max is not None):
            raise SettingError("present", "a field that must be absent has no value; leave the values and bounds out")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise SettingError("min", f"{self.min!r} is above max, which is {self.max!r}; no record would match")
        if len({_kind(value) for value in values}) > 1:
            raise ValueError("the values are of several kinds; list texts alone, numbers alone, or truth values alone")
        if (self.min is not None or self.max is not None) and values and _kind(values[0]) != "float64":
            raise ValueError("bounds are for numbers, and a value listed here is none; leave one of them out")
        return self

    @model_serializer
    def _shortest_form(self) -> Any:
        """Write the condition as people do: a value, a list, or what is set."""
        spelt: dict[str, Any] = {"one_of": self.one_of, "not": self.none_of, "min": self.min, "max": self.max}
        spelt |= {"present": self.present, "dtype": self.dtype}
        said = {key: value for key, value in spelt.items() if value is not None}
        values = {key: _alone([*value]) if isinstance(value, tuple) else value for key, value in said.items()}
        return values["one_of"] if values.keys() == {"one_of"} else values

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe the short forms too."""
        if core["type"] == "model" or handler.mode == "serialization":
            return handler(core)
        return {"anyOf": [_SCALARS, {"type": "array", "items": _SCALARS}, handler(core)]}

    @property
    def _values(self) -> tuple[bool | int | float | str, ...]:
        return (*(self.one_of or ()), *(self.none_of or ()))

    @property
    def if_absent(self) -> bool:
        """Whether a record matches that lacks the field."""
        return self.one_of is None and self.min is None and self.max is None and not self.present

    @property
    def texts(self) -> frozenset[bytes] | None:
        """The texts that alone match, or alone do not; None where the condition is about anything else."""
        listed = (self.one_of if self.none_of is None else self.none_of if self.one_of is None else None) or ()
        values = [value.encode() for value in listed if isinstance(value, str)]
        return frozenset(values) if values else None

    @property
    def of_other_texts(self) -> bool:
        """Whether a text matches that is not listed."""
        return self.one_of is None

    @property
    def examples(self) -> tuple[bool | int | float | str, ...]:
        """Values that match, and one at least that does not; none where any value does."""
        values = self._values
        if self.min is not None or self.max is not None:
            low = self.min if self.min is not None else self.max
            high = self.max if self.max is not None else self.min
            return (low, high, low - 1, high + 1)  # type: ignore[operator,return-value]  # one of them is there
        if not values:
            return ()
        first = values[0]
        if isinstance(first, bool):
            return (True, False)
        other = "something else" if isinstance(first, str) else max(float(value) for value in values) + 1
        return (*values, int(other) if isinstance(first, int) else other)

    def holds(self, column: Column) -> Mask:
        """Return which values of a column match; `present` is about others."""
        match = np.ones(len(column), np.bool_)
        if self.one_of is not None:
            match &= _among(column, self.one_of)
        if self.none_of is not None:
            match &= ~_among(column, self.none_of)
        if self.min is not None:
            match &= np.greater_equal(column, self.min)
        if self.max is not None:
            match &= np.less_equal(column, self.max)
        return match if self.present is not False else np.zeros(len(column), np.bool_)

    def field(self, source: str, whole: Schema) -> schema.Field:
        """Return the field that is read for the condition, beside those of a schema. Raise ConfigError."""
        read = next((field.as_read for field in whole.fields if field.source == source), None)
        values, place = self._values, f"records.where: {source!r}"
        kind, bound = _kind(values[0]) if values else None, self.max if self.min is None else self.min
        if read is not None and self.dtype not in {None, read.dtype}:
            raise ConfigError(f"{place} is read as {read.dtype} for {read.name!r}; leave dtype: {self.dtype} out")
        dtype: DType | None
        if read is not None:
            dtype, shape = read.dtype, read.shape
        else:
            shape = ()
            whole_numbers = bound is None and all(isinstance(value, int) for value in values)
            guess: DType | None = "int64" if kind == "float64" and whole_numbers else kind
            guess = "float64" if bound is not None else guess
            dtype = self.dtype or guess or ("string" if is_envelope(source) else None)
            if dtype is None:
                raise ConfigError(f"{place} is no field of `records`: say its type, as in dtype: int64")
        if shape and (values or bound is not None):
            raise ConfigError(
                f"{place} is a list of shape {list(shape)}, and values are compared with one; use present"
            )
        numeric = dtype not in {"string", "bool"}
        if (kind not in {None, "float64" if numeric else dtype}) or (not numeric and bound is not None):
            wrong = values[0] if values else bound
            raise ConfigError(f"{place} is read as {dtype}, and {wrong!r} is none; mend the value, or the dtype")
        if numeric and "int" in dtype and any(isinstance(value, float) and value % 1 for value in values):
            raise ConfigError(f"{place} is read as {dtype}, which is never {values[0]!r}; write whole numbers")
        if (complaint := complaint_about(source, dtype, len(shape))) is not None:
            raise ConfigError(f"{place}: {complaint}")
        pad = None if read is None else read.pad
        return schema.Field(name=source, source=source, dtype=dtype, shape=shape, pad=pad)


def _kind(value: bool | float | str) -> DType:
    return "string" if isinstance(value, str) else "bool" if isinstance(value, bool) else "float64"


def _alone(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _among(column: Column, values: tuple[bool | int | float | str, ...]) -> Mask:
    if column.dtype == object:
        texts = {str(value).encode() for value in values}
        return np.fromiter(map(texts.__contains__, column.tolist()), np.bool_, len(column))
    found = np.zeros(len(column), np.bool_)
    for value in values:
        # As a number of the column's dtype: 0.1 matches the float32 nearest to it.
        found |= np.equal(column, np.asarray(value).astype(column.dtype) if column.dtype.kind == "f" else value)
    return found
