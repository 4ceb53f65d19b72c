"""Protobuf messages as Python objects, as the decoder reads them, for a look at a few. Pure."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.draft import DraftSample, Look, ReadRow, Row, fitting
from millrace.pipelines.formats.shared.descriptors import (
    described,
    descriptor_set,
    header_of,
    indexes_of,
    message_at,
    message_of,
    number_of,
)

_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TIMES = frozenset({"google.protobuf.Timestamp", "google.protobuf.Duration"})
_UNREAD = frozenset({f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue", "Empty")})
_DEEPEST = 8


def protobuf_look(sample: DraftSample) -> Look | None:
    """Return the look at messages that a registry, or a file, describes; None where they are none of them."""
    if sample.registered:
        return _registered_look(sample)
    assert sample.hints.file is not None
    try:
        descriptor = message_of(descriptor_set(sample.hints.file), sample.hints.message)
    except ConfigError as error:
        said = str(error).replace("records.protobuf.descriptor", "--schema")
        raise ConfigError(said.replace("records.protobuf.message", "--message")) from None
    section = {"protobuf": {"descriptor": sample.hints.written, "message": descriptor.full_name}}
    nullable = frozenset(nullable_in_message(descriptor))
    return fitting("protobuf", sample, message_reader(descriptor), section, nullable)


def _registered_look(sample: DraftSample) -> Look | None:
    compiled = {number: described(one, number) for number, one in sample.registered.items()}
    messages, readers = dict[bytes, Any](), dict[bytes, ReadRow]()
    for header in {header_of(value) for value in sample.values}:
        descriptors = compiled.get(number_of(header)) if header else None
        message = message_at(descriptors, indexes_of(header)) if isinstance(descriptors, bytes) else None
        if message is not None:
            messages[header], readers[header] = message, message_reader(message)

    def read(value: bytes) -> Row | None:
        header = header_of(value)
        return readers[header](value[len(header) :]) if header in readers else None

    nullable = frozenset(names for message in messages.values() for names in nullable_in_message(message))
    return fitting("protobuf", sample, read, {}, nullable)


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
