"""The verdicts on Protobuf records, as data."""

import struct
from pathlib import Path
from typing import Any

from google.protobuf import message_factory

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.protobuf.decoder import ProtobufDecoder
from millrace.pipelines.formats.shared.descriptors import descriptor_set, message_of
from millrace.pipelines.schema import Field, RegisteredSchema, Schema
from tests.pipelines.formats.decoder_conformance import Case, Conformance, Outcome

ORDERS = descriptor_set(Path(__file__).with_name("order.proto"))
SCHEMA = Schema(
    features=(
        Field(name="price", source="price", dtype="float32", missing=-1.0),
        Field(name="age", source="user.age", dtype="uint8", missing=0, max=120),
        Field(name="name", source="user.name", dtype="string", missing="-"),
        Field(name="tags", source="user.tags", dtype="string", shape=(2,), pad="", missing="none"),
        Field(name="prices", source="items[].price", dtype="float32", shape=(2,), pad=0.0),
        Field(name="ids", source="items[].id", dtype="int64", shape=(2,), missing=0),
        Field(name="clicks", source="counts.clicks", dtype="float64", missing=0.0),
        Field(name="third", source="users.3.age", dtype="int32", missing=-1),
        Field(name="coins", source="coins", dtype="float32", missing=-1.0),
        Field(name="card", source="card", dtype="string", missing="-"),
        Field(name="land", source="land", dtype="string", one_of=("DE", "NO", "NOWHERE")),
        Field(name="from", source="from", dtype="int32", missing=-1),
        Field(name="lands", source="lands[]", dtype="string", shape=(2,), missing="-"),
        Field(name="took", source="took", dtype="float32", missing=0.0),
        Field(name="tip", source="tip", dtype="float32", missing=-1.0),
        Field(name="blob", source="blob", dtype="string"),
        Field(name="x", source="x", dtype="float32", shape=(2,), missing=0.0),
        Field(name="big", source="big", dtype="int64"),
        Field(name="seen", source="seen", dtype="bool", missing=False),
        Field(name="wide", source="wide", dtype="float32", missing=0.0),
        Field(name="level", source="level", dtype="int8", one_of=(-1, 3), missing=0),
    ),
    labels=(Field(name="id", source="id", dtype="int64"),),
    event_time=Field(name="event_time", source="at", dtype="int64", missing=0),
)
_DEFAULTS: dict[str, object] = {
    "price": -1.0,
    "user.age": 0,
    "user.name": b"-",
    "user.tags": [b"none", b""],
    "items[].price": [0.0, 0.0],
    "items[].id": [0, 0],
    "counts.clicks": 0.0,
    "users.3.age": -1,
    "coins": -1.0,
    "card": b"-",
    "land": b"NOWHERE",
    "from": -1,
    "lands[]": [b"-", b"-"],
    "took": 0.0,
    "tip": -1.0,
    "blob": b"",
    "x": [0.0, 0.0],
    "big": 0,
    "seen": False,
    "wide": 0.0,
    "level": 0,
    "id": 1,
    "at": 0,
}
ORDER: Any = message_factory.GetMessageClass(message_of(ORDERS, "shop.Order"))


def _with(**values: object) -> Outcome:
    by_name = {field.name: field.source for field in SCHEMA.fields}
    return {**_DEFAULTS, **{by_name[name]: value for name, value in values.items()}}


def order(**values: object) -> bytes:
    """Return an order with these fields."""
    made: bytes = ORDER(**{"id": 1, **values}).SerializeToString()
    return made


_MALFORMED = (Reason.MALFORMED, None)
_CARD, _COINS = order(card="gold"), order(coins=3)

CASES = (
    Case("no value", None, (Reason.EMPTY, None)),
    Case("an empty value", b"", (Reason.EMPTY, None)),
    Case("one message", order(price=1.5), _with(price=1.5)),
    Case("a message cut short", order(blob=b"abc")[:-1], _MALFORMED),
    Case("bytes that are no message", b"\xff\xff\xff", _MALFORMED),
    Case("text", b'{"id": 1}', _MALFORMED),
    Case("text that is not UTF-8", order(card="gold").replace(b"gold", b"g\xffld"), _MALFORMED),
    Case("the same in a field that nobody reads", order(other="gold").replace(b"gold", b"g\xffld"), _with()),
    Case("fields that the descriptor has not", order() + b"\xf8\x3f\x07", _with()),
    Case("two messages are one, by Protobuf's own rule", order(price=1.5) + order(id=2), _with(price=1.5, id=2)),
    Case("a byte too many", order() + b"\0", _MALFORMED),
    Case("a group that the descriptor has not", order() + b"\x9b\x06\x08\x07\x9c\x06", _with()),
    Case("the end of another group", order() + b"\x9b\x06\x94\x06", _MALFORMED),
    Case("the end of another group in a message in a message", order() + b"\x1a\x04\x9b\x06\x94\x06", _MALFORMED),
    Case("groups in groups, without an end", b"\x0b" * 200_000, _MALFORMED),
    Case("groups in groups, 200 deep", order() + b"\x9b\x06" * 200 + b"\x9c\x06" * 200, _MALFORMED),
    Case("a wire type that there is not", order() + b"\x9e\x06\x07", _MALFORMED),
    Case("the field number 0", order() + b"\0\1", _MALFORMED),
    Case("the field number 0 in a message in a message", order() + b"\x1a\2\0\1", _MALFORMED),
    Case("a field number beyond 29 bits", order() + b"\x80\x80\x80\x80\x10\1", _MALFORMED),
    Case("a packed list that ends within an element", order() + b"\x82\x01\x05\0\0\0\0\0", _MALFORMED),
    Case("a field that tells absent from zero, zero", order(price=0.0, level=3), _with(price=0.0, level=3)),
    Case("a field that does not, absent", order(), _with()),
    Case("a message in a message", order(user={"age": 30, "name": "b"}), _with(age=30, name=b"b", tags=[b"", b""])),
    Case("a list in a message", order(user={"tags": ["a", "b", "c"]}), _with(tags=[b"a", b"b"])),
    Case(
        "messages in a list",
        order(items=[{"price": 1.5, "id": -1}, {"price": 2.5}]),
        _with(prices=[1.5, 2.5], ids=[-1, 0]),
    ),
    Case("too few messages in a list of a fixed shape", order(items=[{"id": 1}]), (Reason.WRONG_SHAPE, "items[].id")),
    Case("a key of a map", order(counts={"views": 3.0, "clicks": 4.0}), _with(clicks=4.0)),
    Case("a map without the key", order(counts={"views": 3.0}), _with()),
    Case("a key twice: the later", order(counts={"clicks": 3.0}) + order(counts={"clicks": 4.0}), _with(clicks=4.0)),
    Case("a key of a map without its message", order() + b"\x32\x02\x08\x03", _with(third=0)),
    Case("a message under a number of a map", order(users={3: {"age": 7}, 4: {"age": 8}}), _with(third=7)),
    Case("a member of a oneof, zero", order(coins=0), _with(coins=0.0)),
    Case("two members of a oneof: the later", _CARD + _COINS, _with(coins=3.0)),
    Case("a member that nobody reads, after another", _CARD + order(by={"age": 3}), _with()),
    Case("an enum", order(land=2), _with(land=b"NO")),
    Case("an enum's number that has no name", order(land=7), (Reason.NOT_ALLOWED, "land")),
    Case("an enum as a number", order(**{"from": 2}), _with(**{"from": 2})),
    Case("a list of enums", order(lands=[1, 9]), _with(lands=[b"DE", b"9"])),
    Case("a Timestamp, in milliseconds", order(at={"seconds": -1, "nanos": 999_999_999}), _with(event_time=-1)),
    Case("a Timestamp after the year 9999", order(at={"seconds": 10**12}), (Reason.OUT_OF_RANGE, "at")),
    Case("a Duration, in milliseconds", order(took={"seconds": 1, "nanos": 500_000_000}), _with(took=1500.0)),
    Case("a wrapped number, zero", order(tip={"value": 0.0}), _with(tip=0.0)),
    Case("bytes, any", order(blob=b"\xff\0"), _with(blob=b"\xff\0")),
    Case("a list of the right length", order(x=[1.0, 2.5]), _with(x=[1.0, 2.5])),
    Case("too many elements", order(x=[1.0, 2.0, 3.0]), (Reason.WRONG_SHAPE, "x")),
    Case("an empty list, with a `missing` value", order(x=[]), _with()),
    Case("an integer beyond int64", order(big=2**63), (Reason.OUT_OF_RANGE, "big")),
    Case("the greatest int64", order(big=2**63 - 1), _with(big=2**63 - 1)),
    Case("an integer beyond its dtype", order(level=128), (Reason.OUT_OF_RANGE, "level")),
    Case("a negative integer for an unsigned one", order(user={"age": -1}), (Reason.OUT_OF_RANGE, "user.age")),
    Case("a number above its `max`", order(user={"age": 121}), (Reason.OUT_OF_RANGE, "user.age")),
    Case("a number that `one_of` does not list", order(level=4), (Reason.NOT_ALLOWED, "level")),
    Case("a number beyond float32", order(wide=1e39), (Reason.OUT_OF_RANGE, "wide")),
    Case("an infinity", order(wide=float("-inf")), (Reason.NOT_FINITE, "wide")),
    Case("NaN in a list", order(x=[1.0, float("nan")]), (Reason.NOT_FINITE, "x")),
    Case("true", order(seen=True), _with(seen=True)),
    Case("two fields at fault: the schema's first", order(level=4, x=[1.0]), (Reason.WRONG_SHAPE, "x")),
)

PROTOBUF = Conformance(
    name="protobuf", decoder=ProtobufDecoder(SCHEMA, descriptors=ORDERS, message="Order"), cases=CASES
)

# With a registry: versions of a message among others, and messages in messages.
FIRST = """
syntax = "proto3"; package shop;
message Other { string price = 1; }
message Click { optional float price = 1; string ad = 2; message Seen { optional double price = 1; string ad = 3; } }
"""
SECOND = """
syntax = "proto3"; package shop; import "land.proto";
message Click { optional double price = 1; string ad = 2; optional int64 hour = 4; Land land = 5; }
"""
LAND = 'syntax = "proto3"; package shop; message Land { string name = 1; }'
OTHERWISE = 'syntax = "proto3"; message Click { repeated float price = 1; string ad = 2; }'


class Registry:
    """Schemas by number, in memory."""

    def __init__(self) -> None:
        self.schemas: dict[int, RegisteredSchema] = {
            1: RegisteredSchema("PROTOBUF", FIRST),
            2: RegisteredSchema("PROTOBUF", SECOND, (("land.proto", LAND),)),
            3: RegisteredSchema("PROTOBUF", OTHERWISE),
            4: RegisteredSchema("AVRO", '"string"'),
            5: RegisteredSchema("PROTOBUF", 'syntax = "proto3"; message {'),
        }

    def get(self, number: int) -> RegisteredSchema | None:
        """Return a schema, or None."""
        return self.schemas.get(number)


def framed(number: int, indexes: bytes, value: bytes) -> bytes:
    """Return a record in Confluent's wire format."""
    return b"\0" + struct.pack(">I", number) + indexes + value


REGISTRY_SCHEMA = Schema(
    features=(
        Field(name="price", source="price", dtype="float32", missing=-1.0),
        Field(name="ad", source="ad", dtype="string"),
        Field(name="hour", source="hour", dtype="int32", missing=7),
        Field(name="land", source="land.name", dtype="string", missing="-"),
    )
)
_PRICED = b"\x0d\x00\x00\xc0\x3f\x12\x01b"  # a float of 1.5 and "b"
_DOUBLED = b"\x09" + struct.pack("<d", 2.5) + b"\x12\x01b\x20\x03\x2a\x04\x0a\x02NO"
_READ: dict[str, object] = {"price": 1.5, "ad": b"b", "hour": 7, "land.name": b"-"}
_UNKNOWN = (Reason.UNKNOWN_SCHEMA, None)
_FRAMED = framed(1, b"\x02\x02", _PRICED)
REGISTRY_CASES = (
    Case("no value", None, (Reason.EMPTY, None)),
    Case("an empty value", b"", (Reason.EMPTY, None)),
    Case("the second message of a schema", _FRAMED, _READ),
    Case(
        "the first message, by a zero alone",
        framed(2, b"\0", _DOUBLED),
        {**_READ, "price": 2.5, "hour": 3, "land.name": b"NO"},
    ),
    Case(
        "the first message, by its index",
        framed(2, b"\x02\x00", _DOUBLED),
        {**_READ, "price": 2.5, "hour": 3, "land.name": b"NO"},
    ),
    Case(
        "a message in a message",
        framed(1, b"\x04\x02\x00", b"\x09" + struct.pack("<d", 0.5) + b"\x1a\x01c"),
        {**_READ, "price": 0.5, "ad": b"c"},
    ),
    Case("a message of zeros, which takes no bytes", framed(2, b"\0", b""), {**_READ, "price": -1.0, "ad": b""}),
    Case("a record without the zero and the schema's number", _PRICED, _MALFORMED),
    Case("another first byte", b"\1" + _FRAMED[1:], _MALFORMED),
    Case("less than five bytes", _FRAMED[:4], _MALFORMED),
    Case("nothing after the schema's number", _FRAMED[:5], _MALFORMED),
    Case("fewer indexes than there should be", framed(1, b"\x06\x02", b""), _MALFORMED),
    Case("a number of indexes below zero", framed(1, b"\x01\x02", _PRICED), _MALFORMED),
    Case("an index where there is no message", framed(1, b"\x02\x08", _PRICED), _MALFORMED),
    Case("a byte too few", _FRAMED[:-1], _MALFORMED),
    Case("another type there", framed(1, b"\0", b"\x0a\x011"), (Reason.WRONG_TYPE, "price")),
    Case("a list there", framed(3, b"\0", b"\x12\x01b"), (Reason.WRONG_TYPE, "price")),
    Case("a schema that the registry does not have", framed(7, b"\0", _PRICED), _UNKNOWN),
    Case("a schema of another format", framed(4, b"\0", _PRICED), _UNKNOWN),
    Case("a schema that does not compile", framed(5, b"\0", _PRICED), _UNKNOWN),
)
PROTOBUF_REGISTRY = Conformance(
    name="protobuf with a registry",
    decoder=ProtobufDecoder(REGISTRY_SCHEMA, schemas=Registry()),
    cases=REGISTRY_CASES,
)
