"""Protobuf messages as Python objects, as the decoder reads them, for a look at a few. Pure."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from millrace.app.tools.init.record_look import ReadRow, Row

_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TIMES = frozenset({"google.protobuf.Timestamp", "google.protobuf.Duration"})
_UNREAD = frozenset({f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue", "Empty")})
_DEEPEST = 8


def message_reader(descriptor: Any) -> ReadRow:
    """Return what reads messages of a type."""
    message = GetMessageClass(descriptor)

    def read(value: bytes) -> Row | None:
        try:
            return _fields(message.FromString(value), 0)
        except (DecodeError, RecursionError):
            return None

    return read


def nullable_in_message(descriptor: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield where a message tells absent from zero, and where its maps are, by names from the outermost on."""
    for field in descriptor.fields:
        inside, kind = (*names, field.name), field.message_type
        if field.has_presence or (kind is not None and kind.GetOptions().map_entry):
            yield inside
        elif kind is not None and not field.is_repeated and len(names) < _DEEPEST:
            yield from nullable_in_message(kind, inside)


def _fields(message: Any, depth: int) -> dict[str, Any]:
    return {one.name: _field(message, one, depth) for one in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any, depth: int) -> Any:
    """Return what a field holds; None where it is absent, or can never be read."""
    kind = field.message_type
    if field.type == FieldDescriptor.TYPE_GROUP or (
        kind is not None and (kind.full_name in _UNREAD or depth > _DEEPEST)
    ):
        return None
    value = getattr(message, field.name)
    if kind is not None and kind.GetOptions().map_entry:
        inside = kind.fields_by_name["value"]
        return {_key(key): _one(value[key], inside, depth) for key in value} or None
    if field.is_repeated:
        return [_one(one, field, depth) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(value, field, depth)


def _one(value: Any, field: Any, depth: int) -> Any:
    kind, enum = field.message_type, field.enum_type
    if enum is not None:
        named = enum.values_by_number.get(value)
        return str(value) if named is None else named.name
    if kind is None:
        return value
    if kind.full_name in _TIMES:
        return value.seconds * 1000 + value.nanos // 1_000_000
    return value.value if kind.full_name in _WRAPPERS else _fields(value, depth + 1)


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
