"""Avro schemas: fastavro reads them, with the schemas that they refer to, and they become nodes. Pure functions."""

import json
from collections.abc import Mapping, Sequence
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
        raise ConfigError(f"{what} is no Avro schema: {_why(error)}; mend it") from None
    return schema, named


def _too_deep(what: str) -> ConfigError:
    return ConfigError(f"{what} is no Avro schema that can be read: it is nested too deeply; mend it")


def _why(error: Exception) -> str:
    said = str(error).split("\n", maxsplit=1)[0]
    return f"it names the type {said}, which it does not define" if isinstance(error, UnknownType) else said


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
