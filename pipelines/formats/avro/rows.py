"""Avro values as Python objects, as the decoder reads them: by fastavro, for a look at a few. Pure."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import fastavro

from millrace.pipelines.formats.avro.writer_schema import parsed
from millrace.pipelines.formats.draft import DraftSample, Look, ReadRow, Row, fitting

_DEEPEST, _HEADER = 8, 5


def avro_look(sample: DraftSample) -> Look | None:
    """Return the look at values of the schemas of a registry, or of a file; None where they are none of them."""
    section = {} if sample.hints.file is None else {"avro": {"schema_file": sample.hints.written}}
    if sample.registered:
        texts = {number: (one.text, [text for _, text in one.references]) for number, one in sample.registered.items()}
        readers = {number: avro_reader(text, f"schema {number}", more) for number, (text, more) in texts.items()}

        def read(value: bytes) -> Row | None:
            reader = readers.get(int.from_bytes(value[1:_HEADER])) if value[:1] == b"\0" else None
            return None if reader is None else reader(value[_HEADER:])

        nullable = frozenset[tuple[str, ...]]().union(*(nullable_in_avro(text, more) for text, more in texts.values()))
        return fitting("avro", sample, read, section, nullable)
    written = (sample.described or b"").decode("utf-8", "replace")
    return fitting(
        "avro", sample, avro_reader(written, f"--schema: {sample.hints.file}"), section, nullable_in_avro(written)
    )


def avro_reader(text: str, what: str, references: Sequence[str] = ()) -> ReadRow:
    """Return what reads values of a schema. Raise ConfigError where it is none, as `what` is then said not to be."""
    parsed(text, what, references)
    named: dict[str, Any] = {}
    for reference in references:
        fastavro.parse_schema(_stored(json.loads(reference)), named_schemas=named)
    schema = fastavro.parse_schema(_stored(json.loads(text)), named_schemas=named)

    def read(value: bytes) -> Row | None:
        source = io.BytesIO(value)
        try:
            row = fastavro.schemaless_reader(source, schema, None)
        except Exception:  # noqa: BLE001 - of bytes that are something else fastavro raises whatever it meets
            return None
        whole = source.tell() == len(value)
        return {name: _plain(inside) for name, inside in row.items()} if whole and isinstance(row, dict) else None

    return read


def nullable_in_avro(text: str, references: Sequence[str] = ()) -> frozenset[tuple[str, ...]]:
    """Return where a schema allows a null, or a key of a map to be absent, by names from the outermost on."""
    schema, named = parsed(text, "it", references)
    return frozenset(_nullable(schema, named, ()))


def _nullable(schema: Any, named: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(schema, str):
        schema = named.get(schema, schema)
    if isinstance(schema, list):
        if "null" in schema and names:
            yield names
        for branch in schema:
            yield from _nullable(branch, named, names)
    elif isinstance(schema, dict) and schema["type"] == "map":
        yield names
    elif isinstance(schema, dict) and schema["type"] == "record" and len(names) < _DEEPEST:
        for field in schema["fields"]:
            yield from _nullable(field["type"], named, (*names, field["name"]))


def _stored(schema: Any) -> Any:
    """Return a schema without logical types, decimals left out: a decoder reads times as the integers that they are."""
    if isinstance(schema, dict):
        kept = schema.get("logicalType") == "decimal"
        return {key: _stored(inside) for key, inside in schema.items() if kept or key != "logicalType"}
    return [_stored(one) for one in schema] if isinstance(schema, list) else schema


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {name: _plain(inside) for name, inside in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
