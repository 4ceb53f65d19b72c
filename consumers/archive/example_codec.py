"""A record as a tf.train.Example, in the wire format of Protocol Buffers, and back. Pure; runs anywhere.

The features: `offset` and `timestamp` (int64), `key` and `value` (bytes; absent where the record has none), and
`header_names` and `header_values` (bytes lists of one length; absent where there are none). `header_nulls` (int64) says
which of the values are null, and is absent where none is. Written by hand, because the class Example is TensorFlow's,
which the archiver does not load: it would take seconds and half a gigabyte.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from millrace.consumers.records import Headers

_BYTES_LIST, _INT64_LIST = 1, 3
"""The fields of a Feature."""
_LENGTH_DELIMITED = 2
"""The wire type of bytes, texts, messages and packed numbers."""


class ArchivedRecord(NamedTuple):
    """A record and where it was."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def encode(record: ArchivedRecord) -> bytes:
    """Return the record as a serialized tf.train.Example."""
    features = [_numbers(b"offset", [record.offset]), _numbers(b"timestamp", [record.timestamp_ms])]
    if record.key is not None:
        features.append(_texts(b"key", [record.key]))
    if record.value is not None:
        features.append(_texts(b"value", [record.value]))
    if record.headers:
        # Kafka permits null, which aiokafka gives as None though its type says bytes.
        values: list[Any] = [value for _, value in record.headers]
        features.append(_texts(b"header_names", [name.encode() for name, _ in record.headers]))
        features.append(_texts(b"header_values", [value or b"" for value in values]))
        if nulls := [at for at, value in enumerate(values) if value is None]:
            features.append(_numbers(b"header_nulls", nulls))
    return _field(1, b"".join(_field(1, feature) for feature in features))


def decode(raw: bytes) -> ArchivedRecord:
    """Return the record of a serialized tf.train.Example. Raises ValueError where it is none of ours."""
    texts: dict[bytes, list[bytes]] = {}
    numbers: dict[bytes, list[int]] = {}
    for _, features in _fields(raw):
        for _, entry in _fields(features):
            (_, name), (_, feature) = _fields(entry)
            for kind, held in _fields(feature):
                if kind == _INT64_LIST:
                    numbers[name] = [number for _, packed in _fields(held) for number in _varints(packed)]
                else:
                    texts[name] = [value for _, value in _fields(held)]
    values: list[Any] = texts.get(b"header_values", [])
    for at in numbers.get(b"header_nulls", ()):
        if not 0 <= at < len(values):
            raise ValueError(f"an Example has no header {at}, which it says is null")
        values[at] = None
    try:
        return ArchivedRecord(
            offset=numbers[b"offset"][0],
            timestamp_ms=numbers[b"timestamp"][0],
            key=texts[b"key"][0] if b"key" in texts else None,
            value=texts[b"value"][0] if b"value" in texts else None,
            headers=tuple(zip((name.decode() for name in texts.get(b"header_names", ())), values, strict=True)),
        )
    except LookupError as error:
        raise ValueError(f"an Example has no feature {error}") from error


def _numbers(name: bytes, numbers: Sequence[int]) -> bytes:
    return _feature(name, _INT64_LIST, _field(1, b"".join(map(_varint, numbers))))


def _texts(name: bytes, texts: Sequence[bytes]) -> bytes:
    return _feature(name, _BYTES_LIST, b"".join(_field(1, text) for text in texts))


def _feature(name: bytes, kind: int, held: bytes) -> bytes:
    return _field(1, name) + _field(2, _field(kind, held))


def _field(number: int, held: bytes) -> bytes:
    return bytes((number << 3 | _LENGTH_DELIMITED,)) + _varint(len(held)) + held


def _varint(number: int) -> bytes:
    number &= 2**64 - 1  # a negative number is written as its two's complement
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        length, at = _read_varint(raw, at)
        if tag & 7 != _LENGTH_DELIMITED or at + length > len(raw):
            raise ValueError("the bytes are not an Example of the archive")
        yield tag >> 3, raw[at : at + length]
        at += length


def _varints(raw: bytes) -> Iterator[int]:
    at = 0
    while at < len(raw):
        number, at = _read_varint(raw, at)
        yield number - 2**64 if number >= 2**63 else number


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(raw):
            raise ValueError("the bytes of an Example end too soon")
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
