"""The sources that a decoder reads from a record: each once, checked when the decoder is made.

Pure functions of a schema.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import numpy as np

from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.shared.paths import Envelope, is_envelope, parse
from millrace.pipelines.schema import Column, DType, Field, Schema

_INTEGERS = frozenset({Envelope.TIMESTAMP, Envelope.PARTITION, Envelope.OFFSET})


def distinct_fields(schema: Schema) -> tuple[Field, ...]:
    """Return the fields of the value in order, each source once, even if it is an input and also the label.

    The fields of the envelope are checked too, and left out: no decoder sees them. Raise ConfigError for fields that
    contradict each other or that no decoder can read.
    """
    by_source: dict[str, Field] = {}
    for field in schema.fields:
        first = by_source.setdefault(field.source, field.as_read)
        if not first.reads_like(field):
            raise ConfigError(
                f"records: {field.source!r} is read both as {_described(first)} and as {_described(field.as_read)}; "
                "give both the same"
            )
    if not by_source:
        raise ConfigError("records: the schema has no field; name at least one feature")
    _check_roles(schema)
    for field in by_source.values():
        _check_rules(field)
    fields = tuple(field for field in by_source.values() if not is_envelope(field.source))
    if not fields:
        raise ConfigError("records: no field is read from the value of a record; name at least one")
    return fields


def complaint_about(source: str, dtype: DType, dimensions: int) -> str | None:
    """Return why a source cannot be read as a field of this dtype; None where it can."""
    path = parse(source)
    if path.lists > dimensions:
        return f"{source!r} is in a list; each [] is one dimension of the shape, and this has {dimensions}"
    if path.envelope is not None and dimensions:
        return f"{source!r} is one value; leave the shape out"
    if path.envelope in _INTEGERS and dtype in {"string", "bool"}:
        return f"{source!r} is an integer; give it the dtype of a number, as int64"
    if path.envelope is Envelope.TOPIC and dtype != "string":
        return f"{source!r} is text; give it dtype: string"
    return None


def flat_names(sources: Iterable[str]) -> dict[str, str]:
    """Return the name of each source in a flat format; raise ConfigError where two have the same."""
    names = {source: parse(source).text for source in sources}
    for source, name in names.items():
        if (first := next(other for other, same in names.items() if same == name)) != source:
            raise ConfigError(f"records: {first!r} and {source!r} are the same field, {name!r}; write it once")
    return names


def default_of(field: Field) -> np.generic | bytes | None:
    """Return the value for a missing one, as the column holds it; raise ConfigError if it does not fit the dtype."""
    if field.missing is None:
        return None
    if field.dtype == "string" and isinstance(field.missing, str):
        return field.missing.encode()
    if _fits(field.missing, field.dtype):
        return cast("np.generic", np.dtype(field.dtype).type(field.missing))
    raise ConfigError(f"records: missing: {field.missing!r} of field {field.name!r} is not a {field.dtype}; mend it")


def pad_of(field: Field) -> np.generic | bytes | None:
    """Return the value that fills up shorter lists, as the column holds it; None for a field of one fixed length."""
    if field.pad is None:
        return None
    if not field.shape:
        raise ConfigError(f"records: field {field.name!r} has a pad and no shape; give it the longest length as [N]")
    return default_of(replace(field, missing=field.pad))


def empty_column(dtype: DType, shape: tuple[int, ...]) -> Column:
    """Return a zeroed column of a dtype; the rows are its first axis."""
    return np.zeros(shape, object if dtype == "string" else dtype)


def _fits(value: bool | float | str, dtype: DType) -> bool:
    if isinstance(value, str) or dtype == "string":
        return False
    if isinstance(value, bool) or dtype == "bool":
        return isinstance(value, bool) and dtype == "bool"
    if dtype in ("float16", "float32", "float64"):
        return abs(value) <= float(np.finfo(dtype).max)
    limits = np.iinfo(dtype)
    return isinstance(value, int) and limits.min <= value <= limits.max


def _check_rules(field: Field) -> None:
    if (complaint := complaint_about(field.source, field.dtype, len(field.shape))) is not None:
        raise ConfigError(f"records: field {field.name!r}: {complaint}")
    ordered = field.dtype not in {"string", "bool"}
    bounds = [("min", field.min), ("max", field.max)]
    rules = [(name, bound, ordered) for name, bound in bounds if bound is not None]
    for name, value, sensible in [*rules, *(("one_of", value, True) for value in field.one_of or ())]:
        if not sensible or not (_fits(value, field.dtype) or (field.dtype == "string" and isinstance(value, str))):
            raise ConfigError(f"records: {name}: {value!r} of field {field.name!r} is nothing for a {field.dtype}")


def _check_roles(schema: Schema) -> None:
    weight, time = schema.weight, schema.event_time
    if weight is not None and (weight.shape or weight.dtype == "string"):
        raise ConfigError(f"records.weight: {weight.source!r} is {_described(weight)}; a weight is one number")
    if time is not None and (time.shape or time.dtype != "int64"):
        raise ConfigError(
            f"records.event_time: {time.source!r} is {_described(time)}; it must be one int64, milliseconds since 1970"
        )


def _described(field: Field) -> str:
    shape = f"[{', '.join(map(str, field.shape))}]" if field.shape else ""
    rules = {"missing": field.missing, "min": field.min, "max": field.max, "one_of": field.one_of}
    said = ", ".join(f"{name}: {value!r}" for name, value in rules.items() if value is not None)
    return f"{field.dtype}{shape}" + (f" with {said}" if said else "")
