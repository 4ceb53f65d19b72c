"""What a Protobuf record begins with in Confluent's wire format: which message of which schema it is. Pure."""

import subprocess

from millrace.consumers.errors import ConfigError, NotYetError
from millrace.pipelines.formats.protobuf.descriptors import compiled_texts
from millrace.pipelines.formats.shared.field_fits import LONGEST_DETAIL
from millrace.pipelines.schema import RegisteredSchema

_NUMBER_ENDS = 5
"""Bytes of a zero and the number of the schema, big-endian."""
_MOST_INDEXES, _VARINT = 64, 5

Header = bytes


def described(registered: RegisteredSchema, number: int) -> bytes | str:
    """Return the descriptors of a registered schema; why not, where it is none of Protobuf. Raise NotYetError."""
    if registered.kind != "PROTOBUF":
        return f"schema {number} is of {registered.kind}, not of PROTOBUF"
    name = f"schema-{number}.proto"
    try:
        return compiled_texts({**dict(registered.references), name: registered.text}, name, f"schema {number}")
    except ConfigError as error:
        return str(error)[:LONGEST_DETAIL]
    except (OSError, subprocess.SubprocessError) as error:
        # A full disk or a busy machine says nothing about the schema, so its records wait.
        raise NotYetError(f"schema {number} cannot be compiled now ({type(error).__name__}); is /tmp full?") from None


def header_of(value: bytes) -> Header:
    """Return what a record begins with before its message; nothing where it is not in Confluent's wire format."""
    if value[:1] != b"\0" or len(value) <= _NUMBER_ENDS:
        return b""
    if value[_NUMBER_ENDS] == 0:
        return value[: _NUMBER_ENDS + 1]
    count, at = _zigzag(value, _NUMBER_ENDS)
    if not 0 < count <= _MOST_INDEXES:
        return b""
    for _ in range(count):
        index, at = _zigzag(value, at)
        if index < 0:
            return b""
    return value[:at]


def number_of(header: Header) -> int:
    """Return the number of the schema of a header that was found whole."""
    return int.from_bytes(header[1:_NUMBER_ENDS])


def indexes_of(header: Header) -> tuple[int, ...]:
    """Return the place of the message of a header that was found whole: among the messages, then within those."""
    count, at = _zigzag(header, _NUMBER_ENDS)
    found = list[int]()
    for _ in range(count):
        index, at = _zigzag(header, at)
        found.append(index)
    return tuple(found) or (0,)


def _zigzag(text: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag varint at a place, and the place behind it; -1 where there is none."""
    number = 0
    for taken, code in enumerate(text[at : at + _VARINT]):
        number |= (code & 0x7F) << 7 * taken
        if code < 0x80:
            return (number >> 1) ^ -(number & 1), at + taken + 1
    return -1, at
