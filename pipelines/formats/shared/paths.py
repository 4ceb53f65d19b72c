"""The syntax of sources: where in a record, or beside it, a field's value is.

`user.age` is a field of a nested record, or the key of a map. `items[].price` is a value of each element of a list:
each `[]` is one dimension of the field's shape, and those at the end may be left out. A backslash takes the next
character as it is. `$value` is the whole value, where that is one text. `$key`, `$timestamp`, `$partition`, `$offset`,
`$topic` and `$header.NAME` are what Kafka has beside the value: the envelope. A flat format, as CSV, has no nesting:
there a path is the text of one name.

A decoder reads each source once, and checks it when it is made (`distinct_fields`); of a nested record the fields ask
for a tree of the names on their paths (`asked_of`). Pure; imports no pyarrow.
"""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

import numpy as np

from millrace.consumers.errors import ConfigError
from millrace.pipelines.schema import Column, DType, Field, Schema

_TOKEN = re.compile(r"\\(?P<taken>.)|(?P<each>\[\])|(?P<dot>\.)|(?P<plain>[^\\.\[\]]+)|(?P<wrong>.)", re.DOTALL)
VALUE = "$value"
"""The source of the whole value, of records that are one value."""
_SPECIAL = re.compile(r"[\\.\[\]]")


class Envelope(StrEnum):
    """What Kafka has beside the value of a record."""

    KEY = "$key"
    TIMESTAMP = "$timestamp"
    PARTITION = "$partition"
    OFFSET = "$offset"
    TOPIC = "$topic"
    HEADER = "$header"


@dataclass(frozen=True, slots=True)
class PathStep:
    """A name, and how many lists its value is in."""

    name: str
    lists: int = 0


@dataclass(frozen=True, slots=True)
class Path:
    """A source that was parsed. `str` spells it as a source again."""

    steps: tuple[PathStep, ...]
    """The names from the outermost on; for a header its own name, for the rest of the envelope none."""
    envelope: Envelope | None = None
    """What of the envelope it is; None for a path into the value."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names alone."""
        return tuple(step.name for step in self.steps)

    @property
    def lists(self) -> int:
        """How many dimensions it has by its own account; the field's shape may have more."""
        return sum(step.lists for step in self.steps)

    @property
    def text(self) -> str:
        """The name by which a flat format knows it: nothing escaped, and without the `[]` at the end."""
        if self.envelope is not None:
            return str(self)
        *outer, last = self.steps
        return ".".join([*(step.name + "[]" * step.lists for step in outer), last.name])

    def __str__(self) -> str:
        if self.envelope is not None:
            # In the name of a header only a backslash is special.
            return ".".join([self.envelope, *(name.replace("\\", "\\\\") for name in self.names)])
        text = ".".join(_SPECIAL.sub(r"\\\g<0>", step.name) + "[]" * step.lists for step in self.steps)
        return "\\" + text if text.startswith("$") else text


def parse(source: str) -> Path:
    """Return the path that a source spells. Raise ConfigError, one line, where it spells none."""
    if source == VALUE:
        return Path((PathStep(VALUE),))
    if source.startswith("$"):
        return _beside(source)
    steps: list[PathStep] = []
    for name in _names(source):
        if not name.name:
            raise _unclear(source, "a name is empty; write one on each side of a dot, or \\. for a dot in a name")
        steps.append(name)
    return Path(tuple(steps))


def escaped(name: str) -> str:
    """Return the source of the field that has exactly this name, dots and all."""
    return str(Path((PathStep(name),)))


def is_envelope(source: str) -> bool:
    """Return whether a source is what Kafka has beside the value."""
    return source.startswith("$") and source != VALUE


def _beside(source: str) -> Path:
    kind, dot, name = source.partition(".")
    if kind not in set(Envelope):
        raise _unclear(
            source, f"a record has no {kind} beside its value; write one of {', '.join(Envelope)}.NAME, or \\{source}"
        )
    if (kind == Envelope.HEADER) != bool(name) or (dot and not name):
        raise _unclear(
            source, "a header has a name, and nothing else here has; write $header.NAME, or the rest without a dot"
        )
    return Path((PathStep(re.sub(r"\\(.)", r"\1", name, flags=re.DOTALL)),) if name else (), Envelope(kind))


def _names(source: str) -> list[PathStep]:
    steps, name, lists = list[PathStep](), "", 0
    for token in _TOKEN.finditer(source):
        if token["wrong"] is not None:
            raise _unclear(
                source, f"{token['wrong']!r} stands alone; write [] for each element of a list, or \\{token['wrong']}"
            )
        if token["each"] is not None:
            if not name:
                raise _unclear(source, "[] follows the name of a list; write the name before it, or \\[\\]")
            lists += 1
        elif token["dot"] is not None:
            steps.append(PathStep(name, lists))
            name, lists = "", 0
        elif lists:
            raise _unclear(source, "a dot must follow []; write it, as in items[].price")
        else:
            name += token["taken"] or token["plain"]
    return [*steps, PathStep(name, lists)]


def _unclear(source: str, why: str) -> ConfigError:
    return ConfigError(f"records: field: {source!r} is no path: {why}")


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
    # The roles of weight and event time, and then the rules of each field.
    weight, time = schema.weight, schema.event_time
    if weight is not None and (weight.shape or weight.dtype == "string"):
        raise ConfigError(f"records.weight: {weight.source!r} is {_described(weight)}; a weight is one number")
    if time is not None and (time.shape or time.dtype != "int64"):
        raise ConfigError(
            f"records.event_time: {time.source!r} is {_described(time)}; it must be one int64, milliseconds since 1970"
        )
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
    # NaN is the mark of a label that is missing.
    if _fits(field.missing, field.dtype) or (field.masked and "float" in field.dtype):
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


def _described(field: Field) -> str:
    shape = f"[{', '.join(map(str, field.shape))}]" if field.shape else ""
    rules = {"missing": field.missing, "min": field.min, "max": field.max, "one_of": field.one_of}
    said = ", ".join(f"{name}: {value!r}" for name, value in rules.items() if value is not None)
    return f"{field.dtype}{shape}" + (f" with {said}" if said else "")


@dataclass(slots=True)
class AskedField:
    """What is asked of the value under one name."""

    source: str
    """The first source that asks for it, by the schema's order: it is named where the value is at fault as a whole."""
    lists: int
    """How many lists are around each record, or around each element of the field."""
    leaf: Field | None = None
    """The field that is read from it; None where it is a record."""
    members: dict[str, "AskedField"] = dataclasses.field(default_factory=dict)
    """What is asked of the record, by name."""


def asked_of(fields: Iterable[Field]) -> dict[str, AskedField]:
    """Return what is asked of a record, by name. Raise ConfigError where two fields cannot both be read."""
    asked: dict[str, AskedField] = {}
    for one in fields:
        names, (*outer, last) = asked, steps_of(one)
        for step in outer:
            node = names.setdefault(step.name, AskedField(one.source, step.lists))
            _agree(node.leaf is None and node.lists == step.lists, node, one)
            names = node.members
        node = names.setdefault(last.name, AskedField(one.source, last.lists, one))
        _agree(node.leaf is not None and (node.leaf.dtype, node.lists) == (one.dtype, last.lists), node, one)
    return asked


def steps_of(one: Field) -> tuple[PathStep, ...]:
    """Return the steps to a field, with all the lists that it is in by its shape, the last ones around its elements."""
    path = parse(one.source)
    *outer, last = path.steps
    return (*outer, PathStep(last.name, len(one.shape) - path.lists + last.lists))


def _agree(agreed: bool, node: AskedField, one: Field) -> None:
    if not agreed:
        raise ConfigError(
            f"records: {node.source!r} and {one.source!r} do not agree on what the record holds there: a value, a "
            "record, or a list of how many dimensions; mend one of them"
        )
