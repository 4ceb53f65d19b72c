"""Random records by a schema, for a proof on a user's model. Some of them no schema admits.

Values are tame, so that most models accept them: numbers from 0 to 1, integers 0 or 1, short texts. A pool of records
is drawn once, and the stream draws from the pool. Pure; runs on the writer's thread.
"""

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any

import numpy as np

from millrace.app.tools.traffic.single_writer import ExpectedPosition, Verdict
from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import PLAIN_CSV
from millrace.pipelines.formats.shared.paths import Envelope, PathStep, distinct_fields, flat_names, parse, steps_of
from millrace.pipelines.schema import Column, CsvLayout, Field, Schema
from millrace.training.model.probes.probe_batches import keeping_rules

_POOL = 256
_TEXTS = 8
_BAD = 0.005
"""The share of records that must be set aside."""


_NEVER_ADMITTED = b"\0\n\xff"
"""At the end of a record: a byte too many, no JSON, two rows."""


class Generated:
    """A stream of a schema's records."""

    def __init__(
        self, form: str, schema: Schema, seed: int, layout: CsvLayout = PLAIN_CSV, *, framed: bool = False
    ) -> None:
        """Draw the pool. ConfigError where records of this format cannot be generated.

        `framed`: whether a record begins with the number of a schema in a registry.
        """
        if form not in {*_RENDERED, "csv"}:
            raise ConfigError(
                f"records.format: {form!r} is one that no records can be made up for; prove json, csv or raw"
            )
        if framed:
            raise ConfigError(
                "records.registry: no records can be made up that begin with the number of a schema there; for a proof "
                "copy the config, and leave the registry out of the copy"
            )
        _require_no_envelope(schema)
        if (image := next((field for field in schema.features if field.image is not None), None)) is not None:
            raise ConfigError(
                f"records.features: {image.name!r} is an image, and none can be made up; for a proof copy the config, "
                "and leave `image` out of the copy"
            )
        render = partial(_csv, layout) if form == "csv" else _RENDERED[form]
        numbers, fields = np.random.default_rng(seed), distinct_fields(schema)
        labels = {field.source for field in schema.labels}
        columns = {field.source: _column(field, schema, numbers, label=field.source in labels) for field in fields}
        self._pool = [render(fields, {source: column[at] for source, column in columns.items()}) for at in range(_POOL)]

    def draw(self, place: ExpectedPosition, random: Random) -> tuple[bytes | None, Verdict]:  # noqa: ARG002 - a stream's signature
        """Draw one record and its verdict."""
        value = random.choice(self._pool)
        if random.random() >= _BAD:
            return value, None
        return random.choice([(None, Reason.EMPTY), (value + _NEVER_ADMITTED, Reason.MALFORMED)])


def _require_no_envelope(schema: Schema) -> None:
    for field in schema.fields:
        if parse(field.source).envelope in {Envelope.KEY, Envelope.HEADER} and field.missing is None:
            raise ConfigError(
                f"records: {field.name!r} is {field.source}, and records that are made up have values alone; give it a "
                "missing value for a proof"
            )


def _column(field: Field, schema: Schema, random: np.random.Generator, *, label: bool) -> Column:
    shape = (_POOL, *field.shape)
    if schema.event_time is not None and field.source == schema.event_time.source:
        return np.full(shape, _now(schema.event_time))
    if field.example is not None:
        examples = np.array(field.example, None if field.dtype == "string" else field.dtype)
        return np.resize(examples, shape)
    if field.one_of is not None or field.min is not None or field.max is not None:
        kept = keeping_rules(field, shape, random)
        return kept if field.dtype != "string" else np.char.decode(kept.astype(bytes))
    if field.dtype == "string":
        return np.char.add("text-", random.integers(0, _TEXTS, shape).astype(str))
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


def _json(fields: tuple[Field, ...], row: Mapping[str, Any]) -> bytes:
    record: dict[str, Any] = {}
    for field in fields:
        _put(record, steps_of(field), row[field.source].tolist())
    return json.dumps(record).encode()


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


def _raw(fields: tuple[Field, ...], row: Mapping[str, Any]) -> bytes:
    values = (np.asarray(row[field.source]) for field in fields)
    return b"".join(value.astype(value.dtype.newbyteorder("<")).tobytes() for value in values)


def _csv(layout: CsvLayout, fields: tuple[Field, ...], row: Mapping[str, Any]) -> bytes:
    names = flat_names(row)
    texts = {names[field.source]: list(map(str, np.ravel(row[field.source]).tolist())) for field in fields}
    if layout.lists is not None:
        texts = {name: [layout.lists.join(each)] for name, each in texts.items()}
    columns = texts if layout.columns is None else layout.columns
    return layout.delimiter.join(text for name in columns for text in texts.get(name, [""])).encode()


_RENDERED: Mapping[str, Callable[[tuple[Field, ...], Mapping[str, Any]], bytes]] = {"json": _json, "raw": _raw}
