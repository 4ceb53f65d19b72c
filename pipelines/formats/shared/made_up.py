"""Made-up records of a schema, for a proof on a user's model and for the conformance of a format.

Values are tame, so that most models accept them: numbers from 0 to 1, integers 0 or 1, short texts. Pure.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.paths import Envelope, PathStep, distinct_fields, parse, steps_of
from millrace.pipelines.schema import Column, Field, Schema

_TEXTS = 8


def made_up_columns(schema: Schema, random: np.random.Generator, count: int) -> Mapping[str, Column]:
    """Return `count` values of each field by source, as a record has them: texts as str. Raise ConfigError."""
    for field in schema.fields:
        if parse(field.source).envelope in {Envelope.KEY, Envelope.HEADER} and field.missing is None:
            raise ConfigError(
                f"records: {field.name!r} is {field.source}, and records that are made up have values alone; give it a "
                "missing value for a proof"
            )
    if (image := next((field for field in schema.features if field.image is not None), None)) is not None:
        raise ConfigError(
            f"records.features: {image.name!r} is an image, and none can be made up; for a proof copy the config, "
            "and leave `image` out of the copy"
        )
    labels = {field.source for field in schema.labels}
    return {
        field.source: _column(field, schema, random, count, label=field.source in labels)
        for field in distinct_fields(schema)
    }


def made_up_records(schema: Schema, random: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Return the same values as records: mappings and lists in each other, as the sources name them."""
    columns = {source: column.tolist() for source, column in made_up_columns(schema, random, count).items()}
    steps = {field.source: steps_of(field) for field in distinct_fields(schema)}
    records = list[dict[str, Any]]()
    for row in range(count):
        record: dict[str, Any] = {}
        for source, column in columns.items():
            _put(record, steps[source], column[row])
        records.append(record)
    return records


def keeping_rules(field: Field, shape: tuple[int, ...], random: np.random.Generator) -> Column:
    """Make up values that `one_of` lists, or numbers of [0, 1] moved into the bounds of `min` and `max`."""
    if field.one_of is not None:
        return of_dtype(field, field.one_of)[random.integers(0, len(field.one_of), shape)]
    made_up = random.integers(0, 2, shape) if field.numpy_dtype.kind in "iu" else random.uniform(0.05, 0.95, shape)
    return within(made_up, field).astype(field.numpy_dtype)


def of_dtype(field: Field, values: Any) -> Column:
    """Return values of any depth as an array of the field's dtype; a text as UTF-8."""
    if field.dtype != "string":
        return np.array(values, field.numpy_dtype)
    texts = np.array(values, object)
    flat = [text.encode() for text in texts.ravel().tolist()]
    texts.ravel()[:] = flat
    return texts


def within(made_up: npt.NDArray[np.float64] | Int64s, field: Field) -> Column:
    """Move and squeeze numbers of [0, 1] as little as the field's bounds require."""
    low, high = field.min, field.max
    span = 1 if low is None or high is None else min(1, high - low)
    start = 0 if high is None else min(0, high - span)
    moved: Column = made_up * span + (start if low is None else max(start, low))
    return moved


def _column(field: Field, schema: Schema, random: np.random.Generator, count: int, *, label: bool) -> Column:
    shape = (count, *field.shape)
    if schema.event_time is not None and field.source == schema.event_time.source:
        return np.full(shape, _now(schema.event_time))
    if field.example is not None:
        return np.resize(np.array(field.example, None if field.dtype == "string" else field.dtype), shape)
    if field.one_of is not None or field.min is not None or field.max is not None:
        kept = keeping_rules(field, shape, random)
        return kept if field.dtype != "string" else np.char.decode(kept.astype(bytes))
    if field.dtype == "string":
        most = _TEXTS if field.appearing is None else min(_TEXTS, field.appearing.most)
        return np.char.add("text-", random.integers(0, most, shape).astype(str))
    if field.dtype.startswith("float") and not label:
        return random.uniform(0.1, 1.0, shape).astype(field.dtype)
    return random.integers(0, 2, shape).astype(field.dtype)


def _now(field: Field) -> int | float | str:
    """Return the time as a record has it."""
    unit = "ms" if field.time is None else field.time.unit
    if unit == "iso8601":
        return datetime.now(UTC).isoformat()
    now_ns = time.time_ns()
    return now_ns / 1e9 if unit == "s" else now_ns // {"ms": 1_000_000, "us": 1000, "ns": 1}[unit]


def _put(record: dict[str, Any], steps: tuple[PathStep, ...], value: Any) -> None:
    """Put a value where the steps lead to, beside what is there already."""
    here, *rest = steps
    record[here.name] = _with(record.get(here.name), here.lists, tuple(rest), value) if rest else value


def _with(there: Any, lists: int, rest: tuple[PathStep, ...], value: Any) -> Any:
    if not lists:
        inner: dict[str, Any] = {} if there is None else there
        _put(inner, rest, value)
        return inner
    return [_with(old, lists - 1, rest, new) for old, new in zip(there or [None] * len(value), value, strict=True)]
