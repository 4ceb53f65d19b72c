"""Avro schemas: fastavro reads them, with the schemas that they refer to, and they become nodes. Pure functions.

For a look at a few records, fastavro also reads values as Python objects, as the decoder reads them.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import fastavro
from fastavro.schema import UnknownType

from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.avro.nodes import (
    AvroArray,
    AvroBackReference,
    AvroField,
    AvroMap,
    AvroNode,
    AvroRecord,
    AvroScalar,
    AvroUnion,
)
from millrace.pipelines.formats.avro.plans import Known
from millrace.pipelines.formats.draft import DraftSample, Look, ReadRow, Row, fitting

_DEEPEST_of_rows, _HEADER = 8, 5


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
    elif isinstance(schema, dict) and schema["type"] == "record" and len(names) < _DEEPEST_of_rows:
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


_DEEPEST = 16
"""Names of one path. A type that holds itself has no last one."""
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def parsed(text: str | bytes, what: str, references: Sequence[str] = ()) -> tuple[Any, Mapping[str, Any]]:
    """Return a schema and the named types that it uses. `references`: the schemas that it goes by, in their order.

    Raise ConfigError, which says what `what` is not, where fastavro does not take it.
    """
    named: dict[str, Any] = {}
    try:
        for reference in references:
            fastavro.parse_schema(json.loads(reference), named_schemas=named)
        schema = fastavro.parse_schema(json.loads(text), named_schemas=named)
    except RecursionError:
        raise _too_deep(what) from None
    except Exception as error:  # noqa: BLE001 - fastavro raises of many types, of KeyError and TypeError too
        why = str(error).split("\n", maxsplit=1)[0]
        if isinstance(error, UnknownType):
            why = f"it names the type {why}, which it does not define"
        raise ConfigError(f"{what} is no Avro schema: {why}; mend it") from None
    return schema, named


def _too_deep(what: str) -> ConfigError:
    return ConfigError(f"{what} is no Avro schema that can be read: it is nested too deeply; mend it")


def node_of(schema: Any, named: Mapping[str, Any], what: str) -> AvroNode:
    """Return the node of a parsed schema. Raise ConfigError, which names `what`, where it is nested too deeply."""
    try:
        return _Compiler(named).node(schema)
    except RecursionError:
        raise _too_deep(what) from None


class _Compiler:
    """Makes nodes, each named type once."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._made: dict[str, AvroNode] = {}
        self._open: set[str] = set()

    def node(self, schema: Any) -> AvroNode:
        """Return the node of a schema."""
        if isinstance(schema, list):
            return AvroUnion(tuple(map(self.node, schema)))
        if isinstance(schema, str):
            return self._by_name(schema) if schema in self._named else AvroScalar(schema, _SIZES.get(schema))
        return self._by_kind(schema, schema["type"])

    def _by_kind(self, schema: Mapping[str, Any], kind: Any) -> AvroNode:
        if kind in ("record", "error", "enum", "fixed"):
            return self._made.get(schema["name"]) or self._named_type(schema)
        if kind == "array":
            return AvroArray(self.node(schema["items"]))
        if kind == "map":
            return AvroMap(self.node(schema["values"]))
        if not isinstance(kind, str) or kind in self._named:
            return self.node(kind)
        return AvroScalar(kind, _SIZES.get(kind), schema.get("logicalType"), schema.get("scale", 0))

    def _by_name(self, name: str) -> AvroNode:
        return self._made.get(name) or self._named_type(self._named[name])

    def _named_type(self, schema: Mapping[str, Any]) -> AvroNode:
        name, kind = schema["name"], schema["type"]
        if name in self._open:
            return AvroBackReference(name, self._made)
        self._open.add(name)
        node: AvroNode
        if kind == "enum":
            node = AvroScalar("enum", symbols=tuple(schema["symbols"]))
        elif kind == "fixed":
            node = AvroScalar("fixed", schema["size"], schema.get("logicalType"), schema.get("scale", 0))
        else:
            fields = tuple(
                AvroField(each["name"], tuple(each.get("aliases", ())), self.node(each["type"]))
                for each in schema["fields"]
            )
            sizes = [each.node.size for each in fields]
            node = AvroRecord(fields, None if None in sizes else sum(size for size in sizes if size is not None))
        self._open.discard(name)
        self._made[name] = node
        return node


def known_of(schema: Any, named: Mapping[str, Any]) -> dict[tuple[str, ...], Known]:
    """Return what a reader's schema says of its fields, by their names from the outermost on."""
    known: dict[tuple[str, ...], Known] = {}
    _learn(schema, named, (), known)
    return known


def _default(field: Mapping[str, Any], named: Mapping[str, Any]) -> Any:
    """Return the default of a field; that of a union is of its first branch."""
    default, kind = field.get("default"), field["type"]
    kind = kind[0] if isinstance(kind, list) and kind else kind
    kind = named.get(kind, kind) if isinstance(kind, str) else kind
    kind = kind["type"] if isinstance(kind, Mapping) else kind
    return default.encode("latin-1") if isinstance(default, str) and kind in {"bytes", "fixed"} else default


def _learn(schema: Any, named: Mapping[str, Any], trail: tuple[str, ...], known: dict[tuple[str, ...], Known]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _learn(branch, named, trail, known)
    elif isinstance(schema, str):
        if schema in named:
            _learn(named[schema], named, trail, known)
    elif schema["type"] in {"array", "map"}:
        _learn(schema.get("items", schema.get("values")), named, trail, known)
    elif schema["type"] in {"record", "error"} and len(trail) < _DEEPEST:
        for field in schema["fields"]:
            names = (*trail, field["name"])
            known.setdefault(names, Known(tuple(field.get("aliases", ())), _default(field, named)))
            _learn(field["type"], named, names, known)
