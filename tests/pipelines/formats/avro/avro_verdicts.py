"""The verdicts of Avro, as data: what the tests ask for and `docs/verdicts.md` prints."""

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

import fastavro

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.avro.decoder import AvroDecoder
from millrace.pipelines.schema import Field, RegisteredSchema, Schema
from tests.pipelines.formats.decoder_conformance import Case, Conformance, Outcome

_MALFORMED = (Reason.MALFORMED, None)
_USER = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "age", "type": "int"}, {"name": "score", "type": ["null", "double"]}],
}
_ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "price", "type": "double"}, {"name": "name", "type": "string"}],
}
WRITER: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "price", "type": "double"},
        {"name": "count", "type": "long"},
        {"name": "hour", "type": ["null", "int"]},
        {"name": "seen", "type": "boolean"},
        {"name": "ad", "type": "string"},
        {"name": "land", "type": {"type": "enum", "name": "Land", "symbols": ["DE", "NO", "SE"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "paid", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "any", "type": ["null", "long", "double", "string"]},
        {"name": "pair", "type": {"type": "array", "items": "float"}},
        {"name": "user", "type": ["null", _USER]},
        {"name": "items", "type": {"type": "array", "items": _ITEM}},
        {"name": "sizes", "type": {"type": "map", "values": "long"}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
_PARSED = fastavro.parse_schema(json.loads(json.dumps(WRITER)))
_READ_RAW = {"decimal", "timestamp-micros"}

AVRO_SCHEMA = Schema(
    features=(
        Field(name="price", source="price", dtype="float32"),
        Field(name="count", source="count", dtype="uint8"),
        Field(name="hour", source="hour", dtype="int32", missing=7),
        Field(name="seen", source="seen", dtype="bool"),
        Field(name="ad", source="ad", dtype="string"),
        Field(name="land", source="land", dtype="string", one_of=("DE", "NO")),
        Field(name="hash", source="hash", dtype="string"),
        Field(name="paid", source="paid", dtype="float64", max=100),
        Field(name="at", source="at", dtype="int64"),
        Field(name="any", source="any", dtype="float32", missing=-1.0),
        Field(name="pair", source="pair", dtype="float32", shape=(2,)),
        Field(name="age", source="user.age", dtype="uint8", missing=0),
        Field(name="score", source="user.score", dtype="float16", missing=0.5),
        Field(name="prices", source="items[].price", dtype="float32", shape=(3,), pad=-1.0),
        Field(name="names", source="items[].name", dtype="string", shape=(3,), pad=""),
        Field(name="size", source="sizes.xl", dtype="int64", missing=0),
    ),
)
_VALUE: dict[str, Any] = {
    "price": 1.5,
    "count": 3,
    "hour": 12,
    "seen": True,
    "ad": "b",
    "land": "NO",
    "hash": b"\0\1\2\xff",
    "paid": 12.34,
    "at": 1_700_000_000_000_001,
    "any": None,
    "pair": [1.0, 2.5],
    "user": {"age": 30, "score": 0.25},
    "items": [{"price": 2.0, "name": "x"}],
    "sizes": {"xl": 4, "m": 2},
    "note": "n",
}
_ROW: dict[str, object] = {
    "price": 1.5,
    "count": 3,
    "hour": 12,
    "seen": True,
    "ad": b"b",
    "land": b"NO",
    "hash": b"\0\1\2\xff",
    "paid": 12.34,
    "at": 1_700_000_000_000_001,
    "any": -1.0,
    "pair": [1.0, 2.5],
    "user.age": 30,
    "user.score": 0.25,
    "items[].price": [2.0, -1.0, -1.0],
    "items[].name": [b"x", b"", b""],
    "sizes.xl": 4,
}


def avro(schema: Any = _PARSED, **values: Any) -> bytes:
    """Return a record of these values, the others being good."""
    return b"".join(_parts(schema, values))


def _parts(schema: Any, values: Mapping[str, Any]) -> list[bytes]:
    """Return the bytes of each field; a value that is bytes already, of a field that holds none, is taken as it is."""
    named: dict[str, Any] = {}
    fastavro.parse_schema(json.loads(json.dumps(WRITER)), named)
    parts = []
    for field in schema["fields"]:
        value = values.get(field["name"], _VALUE[field["name"]])
        if field["name"] not in {"hash"} and isinstance(value, bytes):
            parts.append(value)
            continue
        out = io.BytesIO()
        kind = field["type"]
        if isinstance(kind, dict) and kind.get("logicalType") in _READ_RAW:
            kind = kind["type"]
            value = round(value * 100).to_bytes(5, "big", signed=True) if field["name"] == "paid" else value
        fastavro.schemaless_writer(out, fastavro.parse_schema(kind, named), value)
        parts.append(out.getvalue())
    return parts


def _with(**values: object) -> Outcome:
    return {**_ROW, **{source.replace("__", "."): value for source, value in values.items()}}


def _number(value: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    return out.getvalue()


_GOOD = avro()
_LONGEST = b"\xff" * 10 + b"\0"

AVRO_CASES = (
    Case("no value", None, (Reason.EMPTY, None)),
    Case("an empty value", b"", (Reason.EMPTY, None)),
    Case("one record", _GOOD, _with()),
    Case("a byte too few", _GOOD[:-1], _MALFORMED),
    Case("a byte too many", _GOOD + b"\0", _MALFORMED),
    Case("two records", _GOOD * 2, _MALFORMED),
    Case("the first byte alone", _GOOD[:1], _MALFORMED),
    Case("text", b'{"price": 1.5}', _MALFORMED),
    Case("an object container file", b"Obj\x01" + _GOOD, _MALFORMED),
    Case("a number of more than ten bytes", avro(count=_LONGEST), _MALFORMED),
    Case("a number beyond 64 bits", avro(count=b"\xff" * 9 + b"\x02"), _MALFORMED),
    Case("an `int` beyond 32 bits", avro(hour=b"\x02" + _number(2**31)), _MALFORMED),
    Case("a number written longer than need be", avro(count=b"\x86\x00"), _with()),
    Case("a bool byte that is neither 0 nor 1", avro(seen=b"\x02"), _MALFORMED),
    Case("a branch that the union does not have", avro(any=_number(4)), _MALFORMED),
    Case("a branch below zero", avro(any=_number(-1)), _MALFORMED),
    Case("a symbol that the enum does not have", avro(land=_number(3)), _MALFORMED),
    Case("a length below zero", avro(ad=_number(-2)), _MALFORMED),
    Case("a length beyond the record", avro(ad=_number(2**40)), _MALFORMED),
    Case("more items than the record has bytes", avro(pair=_number(2**40)), _MALFORMED),
    Case("bytes that are not UTF-8", avro(ad=_number(1) + b"\xff"), _MALFORMED),
    Case("bytes that are not UTF-8, where nobody asked", avro(note=b"\x02" + _number(1) + b"\xff"), _with()),
    Case("text beyond ASCII", avro(ad="é😀"), _with(ad="é😀".encode())),
    Case("an empty text", avro(ad=""), _with(ad=b"")),
    Case("a field null, with a `missing` value", avro(hour=None), _with(hour=7)),
    Case("an integer of a union, for a float", avro(any=2), _with(any=2.0)),
    Case("a float of a union, for a float", avro(any=b"\x04" + struct.pack("<d", 0.5)), _with(any=0.5)),
    Case("text of a union, for a float", avro(any="2"), (Reason.WRONG_TYPE, "any")),
    Case("a record null", avro(user=None), _with(user__age=0, user__score=0.5)),
    Case("a field of a record null", avro(user={"age": 1, "score": None}), _with(user__age=1, user__score=0.5)),
    Case("an integer beyond its dtype", avro(count=256), (Reason.OUT_OF_RANGE, "count")),
    Case("a negative integer for an unsigned one", avro(count=-1), (Reason.OUT_OF_RANGE, "count")),
    Case(
        "an integer of a record beyond its dtype",
        avro(user={"age": 300, "score": None}),
        (Reason.OUT_OF_RANGE, "user.age"),
    ),
    Case("a number beyond float32", avro(price=1e39), (Reason.OUT_OF_RANGE, "price")),
    Case("a number beyond float16", avro(user={"age": 1, "score": 65520.0}), (Reason.OUT_OF_RANGE, "user.score")),
    Case("NaN", avro(price=float("nan")), (Reason.NOT_FINITE, "price")),
    Case("an infinity", avro(price=float("-inf")), (Reason.NOT_FINITE, "price")),
    Case("NaN in a list", avro(pair=[1.0, float("nan")]), (Reason.NOT_FINITE, "pair")),
    Case("a decimal above its `max`", avro(paid=100.01), (Reason.OUT_OF_RANGE, "paid")),
    Case("a decimal below zero", avro(paid=-0.05), _with(paid=-0.05)),
    Case("a symbol that `one_of` does not list", avro(land="SE"), (Reason.NOT_ALLOWED, "land")),
    Case("too few elements", avro(pair=[1.0]), (Reason.WRONG_SHAPE, "pair")),
    Case("too many elements", avro(pair=[1.0, 2.0, 3.0]), (Reason.WRONG_SHAPE, "pair")),
    Case(
        "elements in two blocks",
        avro(pair=_number(1) + struct.pack("<f", 1.0) + _number(1) + struct.pack("<f", 2.5) + b"\0"),
        _with(),
    ),
    Case(
        "elements in a block that says its size",
        avro(pair=_number(-2) + _number(8) + struct.pack("<2f", 1.0, 2.5) + b"\0"),
        _with(),
    ),
    Case("lists of records, padded", avro(items=[]), _with(**{"items[].price": [-1.0] * 3, "items[].name": [b""] * 3})),
    Case(
        "lists of records, cut",
        avro(items=[{"price": float(at), "name": str(at)} for at in range(5)]),
        _with(**{"items[].price": [0.0, 1.0, 2.0], "items[].name": [b"0", b"1", b"2"]}),
    ),
    Case(
        "a bad element where the list is cut",
        avro(items=[{"price": 1e39 if at == 4 else 1.0, "name": ""} for at in range(5)]),
        (Reason.OUT_OF_RANGE, "items[].price"),
    ),
    Case("a key that a map lacks", avro(sizes={"m": 1}), _with(sizes__xl=0)),
    Case("two fields at fault: the schema's first", avro(count=256, land="SE"), (Reason.OUT_OF_RANGE, "count")),
)


# With a registry: three versions of one schema, and others.

FIRST: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "cost", "type": "int"}, {"name": "ad", "type": "string"}, {"name": "old", "type": "long"}],
}
SECOND: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "hour", "type": "int", "default": 0},
        {"name": "price", "type": "double", "aliases": ["cost"]},
        {"name": "ad", "type": "string"},
    ],
}
OTHERWISE: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "price", "type": "string"}, {"name": "ad", "type": {"type": "array", "items": "string"}}],
}
REFERRING: dict[str, Any] = {
    "type": "record",
    "name": "Referring",
    "fields": [{"name": "price", "type": "float"}, {"name": "ad", "type": "Ad"}],
}
AD: dict[str, Any] = {"type": "enum", "name": "Ad", "symbols": ["x", "b"]}
READER: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "price", "type": "double", "aliases": ["cost"]},
        {"name": "ad", "type": "string"},
        {"name": "hour", "type": "int", "default": 23},
    ],
}


class Registry:
    """Schemas by number, in memory."""

    def __init__(self) -> None:
        self.schemas: dict[int, RegisteredSchema] = {
            1: RegisteredSchema("AVRO", json.dumps(FIRST)),
            2: RegisteredSchema("AVRO", json.dumps(SECOND)),
            3: RegisteredSchema("AVRO", json.dumps(OTHERWISE)),
            4: RegisteredSchema("AVRO", json.dumps(REFERRING), (("Ad", json.dumps(AD)),)),
            5: RegisteredSchema("PROTOBUF", "message M {}"),
            6: RegisteredSchema("AVRO", '{"type": "record"}'),
        }

    def get(self, number: int) -> RegisteredSchema | None:
        """Return a schema, or None."""
        return self.schemas.get(number)


def framed(number: int, schema: Any, value: Any) -> bytes:
    """Return a record in Confluent's wire format."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + struct.pack(">I", number) + out.getvalue()


REGISTRY_SCHEMA = Schema(
    features=(
        Field(name="price", source="price", dtype="float32"),
        Field(name="ad", source="ad", dtype="string"),
        Field(name="hour", source="hour", dtype="int32", missing=7),
    )
)
_FRAMED = framed(2, SECOND, {"hour": 3, "price": 1.5, "ad": "b"})
REGISTRY_CASES = (
    Case("no value", None, (Reason.EMPTY, None)),
    Case("an empty value", b"", (Reason.EMPTY, None)),
    Case("one record", _FRAMED, {"price": 1.5, "ad": b"b", "hour": 3}),
    Case("a record without the zero and the schema's number", _FRAMED[5:], _MALFORMED),
    Case("another first byte", b"\1" + _FRAMED[1:], _MALFORMED),
    Case("less than five bytes", _FRAMED[:4], _MALFORMED),
    Case("nothing after the schema's number", _FRAMED[:5], _MALFORMED),
    Case("a byte too few", _FRAMED[:-1], _MALFORMED),
    Case("a byte too many", _FRAMED + b"\0", _MALFORMED),
    Case("two records", _FRAMED * 2, _MALFORMED),
    Case(
        "a field renamed, promoted and added since, by the reader's schema",
        framed(1, FIRST, {"cost": 2, "ad": "b", "old": 9}),
        {"price": 2.0, "ad": b"b", "hour": 23},
    ),
    Case(
        "a schema that refers to another one",
        framed(4, [AD, REFERRING], ("Referring", {"price": 0.5, "ad": "b"}))[:5]
        + framed(4, [AD, REFERRING], ("Referring", {"price": 0.5, "ad": "b"}))[6:],
        {"price": 0.5, "ad": b"b", "hour": 23},
    ),
    Case(
        "a schema with another type there", framed(3, OTHERWISE, {"price": "1", "ad": []}), (Reason.WRONG_TYPE, "price")
    ),
    Case("a schema that the registry does not have", b"\0\0\0\0\7" + _FRAMED[5:], (Reason.UNKNOWN_SCHEMA, None)),
    Case("a schema of another format", b"\0\0\0\0\5" + _FRAMED[5:], (Reason.UNKNOWN_SCHEMA, None)),
    Case("a schema that is none", b"\0\0\0\0\6" + _FRAMED[5:], (Reason.UNKNOWN_SCHEMA, None)),
)

AVRO = Conformance(
    name="avro",
    decoder=AvroDecoder(AVRO_SCHEMA, json.dumps(WRITER), "click.avsc"),
    cases=AVRO_CASES,
)
AVRO_REGISTRY = Conformance(
    name="avro with a registry",
    decoder=AvroDecoder(REGISTRY_SCHEMA, json.dumps(READER), "reader.avsc", Registry()),
    cases=REGISTRY_CASES,
)
