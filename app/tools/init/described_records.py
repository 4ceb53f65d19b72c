"""Records that a schema describes: one of a registry, by the number that they begin with, or one of a file."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from millrace.app.tools.init.avro_rows import avro_reader, nullable_in_avro
from millrace.app.tools.init.protobuf_rows import message_reader, nullable_in_message
from millrace.app.tools.init.record_look import ENOUGH, Look, ReadRow, Row, SchemaHints, fitting
from millrace.consumers.errors import ConfigError, NotYetError
from millrace.pipelines.formats.protobuf.descriptors import (
    described,
    descriptor_set,
    header_of,
    indexes_of,
    message_at,
    message_of,
    number_of,
)
from millrace.pipelines.schema import RegisteredSchema

_HEADER = 5
_FORMATS = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json"}
_MOST_SCHEMAS, _GREATEST = 50, 1 << 24
"""Of a topic's first records, and the greatest number that a registry has given out so far, by far."""
_FILE = "--schema"


def schema_numbers(values: Sequence[bytes]) -> list[int]:
    """Return the numbers of the schemas of records in Confluent's wire format, the most frequent first; none of others.

    Such a record is a zero byte, the number of a schema, and a value.
    """
    numbers = Counter(int.from_bytes(value[1:_HEADER]) for value in values if value[:1] == b"\0" and len(value) > 5)
    few = len(numbers) <= _MOST_SCHEMAS and all(0 < number < _GREATEST for number in numbers)
    return [number for number, _ in numbers.most_common()] if few and numbers.total() >= ENOUGH * len(values) else []


def look_by_registry(
    values: Sequence[bytes], beside: Sequence[Row], numbers: Sequence[int], hints: SchemaHints
) -> Look:
    """Return the look at records of these schemas. Raise ConfigError where the registry is not named, or lacks them."""
    shown = ", ".join(map(str, numbers[:3])) + ", …" * (len(numbers) > 3)
    if hints.schemas is None:
        raise ConfigError(
            f"the records begin as Confluent's wire format does, with a zero byte and a schema's number ({shown}); "
            "name the schema registry that knows it: --registry http://HOST:8081"
        )
    found = {number: _registered(hints, number) for number in numbers}
    known = {number: one for number, one in found.items() if one is not None}
    if not known:
        raise ConfigError(
            f"--registry: {', '.join(hints.registry)} has no schema {shown}, with which the records begin; name the "
            "registry that their producer writes to"
        )
    kind = next(iter(known.values())).kind
    if kind not in _FORMATS:
        raise ConfigError(f"the registry's schema {shown} is of {kind}, which is not read; AVRO, PROTOBUF and JSON are")
    known = {number: one for number, one in known.items() if one.kind == kind}
    read = _READERS[kind](known)
    section: dict[str, Any] = {"registry": {"url": list(hints.registry)}}
    if kind == "AVRO" and hints.file is not None:
        section["avro"] = {"schema_file": hints.written}
    look = fitting(_FORMATS[kind], values, beside, read, section)
    if look is None:
        raise ConfigError(f"most records are no {kind.title()} values of the schemas that they begin with ({shown})")
    return replace(look, nullable=frozenset(_nullable(kind, known, values)))


def look_by_file(values: Sequence[bytes], beside: Sequence[Row], hints: SchemaHints) -> Look:
    """Return the look at records that the schema of a file describes. Raise ConfigError where they are none of it."""
    assert hints.file is not None
    try:
        text = hints.file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{_FILE}: {hints.file} cannot be read: {(error.strerror or 'no reason given').lower()}"
        ) from None
    section: dict[str, Any]
    if hints.file.suffix == ".avsc" or text.lstrip()[:1] in {b"{", b"["}:
        form, section = "avro", {"avro": {"schema_file": hints.written}}
        written = text.decode("utf-8", "replace")
        read = avro_reader(written, f"{_FILE}: {hints.file}")
        nullable = nullable_in_avro(written)
    else:
        form = "protobuf"
        try:
            descriptor = message_of(descriptor_set(hints.file), hints.message)
        except ConfigError as error:
            said = str(error).replace("records.protobuf.descriptor", _FILE)
            raise ConfigError(said.replace("records.protobuf.message", "--message")) from None
        section, read = (
            {"protobuf": {"descriptor": hints.written, "message": descriptor.full_name}},
            message_reader(descriptor),
        )
        nullable = frozenset(nullable_in_message(descriptor))
    look = fitting(form, values, beside, read, section)
    if look is None:
        framed = schema_numbers(values) and "; they begin with a schema's number, so name the registry with --registry"
        raise ConfigError(
            f"{_FILE}: most of the records are no values of {hints.file}{framed or '; name the schema that wrote them'}"
        )
    return replace(look, nullable=nullable)


def _nullable(kind: str, schemas: dict[int, RegisteredSchema], values: Sequence[bytes]) -> Iterator[tuple[str, ...]]:
    if kind == "AVRO":
        for one in schemas.values():
            yield from nullable_in_avro(one.text, [text for _, text in one.references])
    elif kind == "PROTOBUF":
        message_by = _messages(schemas)
        for header in {header_of(value) for value in values}:
            if (message := message_by(header)) is not None:
                yield from nullable_in_message(message)


def _registered(hints: SchemaHints, number: int) -> RegisteredSchema | None:
    assert hints.schemas is not None
    try:
        return hints.schemas.get(number)
    except NotYetError as error:
        raise NotYetError(f"--registry: {error}") from None


def _avro(schemas: dict[int, RegisteredSchema]) -> ReadRow:
    readers = {
        number: avro_reader(one.text, f"schema {number}", [text for _, text in one.references])
        for number, one in schemas.items()
    }

    def read(value: bytes) -> Row | None:
        reader = readers.get(int.from_bytes(value[1:_HEADER])) if value[:1] == b"\0" else None
        return None if reader is None else reader(value[_HEADER:])

    return read


def _protobuf(schemas: dict[int, RegisteredSchema]) -> ReadRow:
    message_by, readers = _messages(schemas), dict[bytes, ReadRow | None]()

    def read(value: bytes) -> Row | None:
        header = header_of(value)
        if header not in readers:
            message = message_by(header)
            readers[header] = None if message is None else message_reader(message)
        reader = readers[header]
        return None if reader is None else reader(value[len(header) :])

    return read


def _messages(schemas: dict[int, RegisteredSchema]) -> Callable[[bytes], Any]:
    """Return what finds the message of a header; it gives None where there is none."""
    compiled = {number: described(one, number) for number, one in schemas.items()}

    def message_by(header: bytes) -> Any:
        descriptors = compiled.get(number_of(header)) if header else None
        return message_at(descriptors, indexes_of(header)) if isinstance(descriptors, bytes) else None

    return message_by


def _json(_schemas: dict[int, RegisteredSchema]) -> ReadRow:
    def read(value: bytes) -> Row | None:
        try:
            row = json.loads(value[_HEADER:])
        except (ValueError, RecursionError):
            return None
        return row if isinstance(row, dict) and value[:1] == b"\0" else None

    return read


_READERS: dict[str, Callable[[dict[int, RegisteredSchema]], ReadRow]] = {
    "AVRO": _avro,
    "PROTOBUF": _protobuf,
    "JSON": _json,
}
