"""The Protobuf decoder beside a slow one of another make, and what it says of descriptors that do not fit."""

import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.consumers.errors import ConfigError, NotYetError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.protobuf.decoder import ProtobufDecoder
from millrace.pipelines.formats.shared.descriptors import compiled_texts, descriptor_set
from millrace.pipelines.formats.shared.paths import parse
from millrace.pipelines.schema import Field, RegisteredSchema, Schema
from tests.pipelines.formats.decoder_conformance import Outcome, mutated, outcomes, same
from tests.pipelines.formats.protobuf.protobuf_verdicts import (
    CASES,
    ORDER,
    ORDERS,
    PROTOBUF,
    REGISTRY_SCHEMA,
    SCHEMA,
    Registry,
    framed,
)

HERE = Path(__file__).parent


def plainly(record: bytes) -> Outcome:
    """Return what becomes of an order, by protobuf's reading of it and one element at a time."""
    try:
        order = ORDER.FromString(record)
    except DecodeError:
        return Reason.MALFORMED, None
    row: dict[str, object] = {}
    for field in SCHEMA.fields:
        value = found(order, parse(field.source).names, field)
        if value is None or (value == [] and field.pad is None):
            if field.missing is None:
                return Reason.MISSING, field.source
            default = plain(field.missing)
            rest = [plain(field.pad)] * (field.shape[0] - 1) if field.pad is not None else []
            row[field.source] = cast(field, [default, *rest] if rest else default if field.pad is None else [default])
            continue
        reasons = {judged(element, field) for element in (value if field.shape else [value])}
        if field.shape and field.pad is None and len(value) != field.shape[0]:
            return Reason.WRONG_SHAPE, field.source
        if {float("inf"), float("-inf")} & set(value if field.shape else [value]):
            return Reason.NOT_FINITE, field.source
        for reason in (Reason.OUT_OF_RANGE, Reason.NOT_FINITE, Reason.NOT_ALLOWED):
            if reason in reasons:
                return reason, field.source
        if field.pad is not None:
            value = (value + [plain(field.pad)] * field.shape[0])[: field.shape[0]]
        row[field.source] = cast(field, value)
    return row


def found(message: Any, names: tuple[str, ...], field: Field) -> Any:
    """Return a value, a list of them, or None where it is absent."""
    name, *rest = names
    one = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if one.message_type is not None and one.message_type.GetOptions().map_entry:
        key: Any = int(rest[0]) if name == "users" else rest[0]
        if key not in value:
            return None
        return found(value[key], tuple(rest[1:]), field) if rest[1:] else value[key]
    if one.is_repeated:
        return [element(each, one, rest, field) for each in value]
    if one.has_presence and not message.HasField(name):
        return None
    return element(value, one, rest, field)


def element(value: Any, one: Any, rest: list[str], field: Field) -> Any:
    if rest:
        return found(value, tuple(rest), field)
    if one.message_type is not None:
        if one.message_type.name in {"Timestamp", "Duration"}:
            whole, rest_ms = value.seconds * 1000, value.nanos / 1e6
            return whole + (math.floor(rest_ms) if one.message_type.name == "Timestamp" else int(rest_ms))
        return value.value
    if one.enum_type is not None and field.dtype == "string":
        known = one.enum_type.values_by_number
        return (known[value].name if value in known else str(value)).encode()
    return value.encode() if isinstance(value, str) else value


def plain(value: object) -> object:
    return value.encode() if isinstance(value, str) else value


def cast(field: Field, value: Any) -> object:
    return (
        np.full(field.shape, value, field.numpy_dtype).tolist()
        if field.shape
        else np.array(value, field.numpy_dtype).tolist()
    )


def judged(value: Any, field: Field) -> Reason | None:
    if isinstance(value, bytes):
        return Reason.NOT_ALLOWED if field.one_of and value.decode() not in field.one_of else None
    if math.isnan(value):
        return Reason.NOT_FINITE
    if field.source == "at" and not -62135596800000 <= value < 253402300800000:
        return Reason.OUT_OF_RANGE
    if field.dtype.startswith(("int", "uint")) and not np.iinfo(field.dtype).min <= value <= np.iinfo(field.dtype).max:
        return Reason.OUT_OF_RANGE
    with np.errstate(over="ignore"):
        rounded = np.array(value, field.numpy_dtype)
    if not np.isfinite(rounded) or (field.max is not None and rounded > field.max):
        return Reason.OUT_OF_RANGE
    return Reason.NOT_ALLOWED if field.one_of and rounded not in field.one_of else None


TEXT = st.sampled_from(["", "a", "DE", "é"])
INT32 = st.sampled_from([0, 1, 3, -1, 120, 121, 2**31 - 1, -(2**31)])
DOUBLE = st.sampled_from([0.0, -0.0, 1.5, 1e39, -1e300, float("nan"), float("inf")])
FLOAT = st.sampled_from([0.0, -0.0, 1.5, 3e38, float("nan"), float("-inf")])
USER = st.fixed_dictionaries({}, optional={"age": INT32, "name": TEXT, "tags": st.lists(TEXT, max_size=3)})
TIME = st.fixed_dictionaries(
    {"seconds": st.sampled_from([0, -1, 1_700_000_000, 10**12]), "nanos": st.sampled_from([0, 1, 999_999_999])}
)
ORDER_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": st.sampled_from([0, 1, -(2**63), 2**63 - 1]),
    "price": FLOAT,
    "user": USER,
    "items": st.lists(st.fixed_dictionaries({}, optional={"price": DOUBLE, "id": INT32}), max_size=3),
    "counts": st.dictionaries(st.sampled_from(["clicks", "views"]), DOUBLE, max_size=2),
    "users": st.dictionaries(st.sampled_from([3, 4]), USER, max_size=2),
    "land": st.sampled_from([0, 1, 2, 7]),
    "from": st.sampled_from([0, 2, -3]),
    "at": TIME,
    "took": st.fixed_dictionaries({"seconds": st.sampled_from([0, 1, 5]), "nanos": st.sampled_from([0, 500_000_000])}),
    "tip": st.fixed_dictionaries({}, optional={"value": DOUBLE}),
    "blob": st.sampled_from([b"", b"\xff"]),
    "x": st.lists(FLOAT, max_size=3),
    "big": st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1]),
    "seen": st.booleans(),
    "wide": DOUBLE,
    "level": INT32,
    "lands": st.lists(st.sampled_from([0, 1, 9]), max_size=3),
}
PAID: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"coins": INT32}),
    st.fixed_dictionaries({"card": TEXT}),
    st.fixed_dictionaries({"by": USER}),
)
ORDERS_OF = st.builds(
    lambda fields, paid: ORDER(**fields, **paid).SerializeToString() + b"\xf8\x3f\x07",
    st.fixed_dictionaries({}, optional=ORDER_FIELDS),
    PAID,
)


@pytest.mark.parametrize("name", ["at", "took"])
def test_a_time_that_comes_twice_is_merged_as_protobuf_merges_it(name: str) -> None:
    first, second = (ORDER(**{name: part}).SerializeToString() for part in ({"seconds": 5}, {"nanos": 2_000_000}))
    for record in (first + second, first + ORDER(**{name: {}}).SerializeToString(), second + first):
        (outcome,) = outcomes(PROTOBUF.decoder, [record])
        assert same(outcome, plainly(record))


@settings(max_examples=100)
@given(records=st.lists(st.one_of(ORDERS_OF, st.builds(bytes.__add__, ORDERS_OF, ORDERS_OF)), max_size=6))
def test_orders_are_decoded_as_protobuf_reads_them_field_by_field(records: list[bytes]) -> None:
    for record, outcome in zip(records, outcomes(PROTOBUF.decoder, records), strict=True):
        assert same(outcome, plainly(record)), ORDER.FromString(record)


@settings(max_examples=100)
@given(data=st.data())
@pytest.mark.slow
def test_a_mutated_order_that_protobuf_reads_is_decoded_as_it_reads_it(data: st.DataObject) -> None:
    whole = [case.value for case in CASES if case.value and len(case.value) < 200]
    records = data.draw(st.lists(mutated(whole), max_size=8))
    for record, outcome in zip(records, outcomes(PROTOBUF.decoder, records), strict=True):
        if plainly(record) != (Reason.MALFORMED, None) and record:
            assert same(outcome, plainly(record)), record


def test_a_field_of_number_zero_in_an_unknown_group_is_skipped_as_protobuf_skips_it() -> None:
    group = varint(99 << 3 | 3)
    record = group + bytes.fromhex("0110ff93ebdc030807") + varint(99 << 3 | 4)
    records = [ORDER(price=1.5).SerializeToString() + record, record]
    assert [ORDER.FromString(one).price for one in records] == [1.5, 0]
    for one, outcome in zip(records, outcomes(PROTOBUF.decoder, records), strict=True):
        assert same(outcome, plainly(one))


def unknown(random: Random, depth: int = 0) -> bytes:
    """Return a field that an order has not, or something like one: any wire type, groups with the end of another."""
    number = random.choice([50, 51, 99, 18_999, 2**28, 2**29 - 1, 0, *([] if depth else [2**29, 2**31])])
    wire = random.choice([0, 1, 2, 3, 3, 3, 4, 5, 6, 7] if random.random() < 0.3 else [0, 1, 2, 3, 3, 5])
    head = varint(number << 3 | wire)
    if wire == 0:
        return head + varint(random.getrandbits(random.choice([7, 40, 64, 66, 71])))
    if wire == 2:
        body = random.randbytes(random.randrange(4))
        return head + varint(len(body) + (random.random() < 0.05)) + body
    if wire == 3:
        body = b"".join(unknown(random, depth + 1) for _ in range(random.randrange(3) if depth < 5 else 0))
        end = random.choices([varint(number << 3 | 4), varint(number + 1 << 3 | 4), b""], [18, 1, 1])
        return head + body + end[0]
    return head + random.randbytes({1: 8, 5: 4}.get(wire, 0))


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def test_an_order_with_unknown_fields_is_refused_if_and_only_if_protobuf_refuses_it() -> None:
    random, records = Random(5), list[bytes]()
    for _ in range(2000):
        order, user = ORDER(id=1, x=[1.0, 2.0]).SerializeToString(), ORDER(user={"age": 3}).SerializeToString()
        inside = unknown(random, depth=1)
        user = user[:1] + varint(len(user) - 2 + len(inside)) + user[2:] + inside
        packed = b"\x82\x01" + varint(length := random.choice([4, 8, 8, 5])) + bytes(length)
        records.append(order + random.choice([unknown(random), unknown(random), user, packed]))
    # In chunks as small as a record's fault and its neighbours, and as large as a fetch.
    for size in (2000, 40):
        found = [one for at in range(0, 2000, size) for one in outcomes(PROTOBUF.decoder, records[at : at + size])]
        assert [one == (Reason.MALFORMED, None) for one in found] == [refused(record) for record in records]
    assert 500 < sum(map(refused, records)) < 1500


def refused(record: bytes) -> bool:
    try:
        ORDER.FromString(record)
    except DecodeError:
        return True
    return False


@pytest.mark.parametrize("bad", [b"\xff", b"\x0a", CASES[3].value])
@pytest.mark.parametrize("share", [0.001, 0.03, 0.5, 1.0])
def test_in_a_flood_of_bad_records_the_good_ones_are_kept(bad: bytes, share: float) -> None:
    generator = np.random.default_rng(3)
    good = ORDER(id=1).SerializeToString()
    values = [bad if generator.random() < share else good for _ in range(1000)]
    found = PROTOBUF.decoder.decode(values)
    assert found.kept.tolist() == [index for index, value in enumerate(values) if value == good]
    assert {refusal.reason for refusal in found.refused} <= {Reason.MALFORMED}


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (Field(name="a", source="prise", dtype="float32"), "shop.Order has no 'prise'; it has id, price, user"),
        (Field(name="a", source="user.old", dtype="float32"), "shop.User has no 'old'; it has age, name, tags"),
        (Field(name="a", source="price", dtype="int32"), "shop.Order.price is a float, which is no int32"),
        (Field(name="a", source="card", dtype="float32"), "shop.Order.card is a string, which is no float32"),
        (Field(name="a", source="seen", dtype="float32"), "shop.Order.seen is a bool, which is no float32"),
        (Field(name="a", source="id", dtype="string"), "shop.Order.id is a int64, which is no string"),
        (Field(name="a", source="user", dtype="string"), "is a shop.User, which is no string"),
        (Field(name="a", source="price.net", dtype="float32"), "is a float, which has no fields"),
        (Field(name="a", source="counts", dtype="float32"), "is a map; name one of its keys, as in counts.KEY"),
        (Field(name="a", source="users.x.age", dtype="int32"), "'x' is no key of shop.Order.users"),
        (Field(name="a", source="x", dtype="float32"), r"is a list of one dimension; write \[\] after it"),
        (Field(name="a", source="price", dtype="float32", shape=(2,)), "shop.Order.price is no list"),
        (Field(name="a", source="x", dtype="float32", shape=(2, 2)), "is a list of one dimension"),
    ],
)
def test_a_field_that_can_never_be_read_is_a_setting_error(field: Field, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ProtobufDecoder(Schema(features=(field,)), descriptors=ORDERS, message="Order")


def test_a_message_cannot_be_read_whole_and_in_parts() -> None:
    at, seconds = Field(name="a", source="at", dtype="int64"), Field(name="b", source="at.seconds", dtype="int64")
    decoder = ProtobufDecoder(Schema(features=(seconds,)), descriptors=ORDERS, message="Order")
    assert decoder.decode([ORDER(at={"seconds": 5}).SerializeToString()]).columns["at.seconds"].tolist() == [5]
    for fields in ((at, seconds), (seconds, at)):
        with pytest.raises(ConfigError, match="also read as"):
            ProtobufDecoder(Schema(features=fields), descriptors=ORDERS, message="Order")


def test_a_message_is_found_by_its_whole_name_by_its_end_or_as_the_only_one() -> None:
    schema = Schema(features=(Field(name="x", source="x", dtype="int64"),))
    one = compiled_texts({"a.proto": 'syntax = "proto3"; package p.q; message M { int64 x = 1; }'}, "a.proto", "test")
    for name in (None, "M", "q.M", "p.q.M"):
        found = ProtobufDecoder(schema, descriptors=one, message=name).decode([b"\x08\x05"])
        assert found.columns["x"].tolist() == [5]
    with pytest.raises(ConfigError, match=r"has shop.User, shop.Item, shop.Order; name the one of the records"):
        ProtobufDecoder(schema, descriptors=ORDERS)
    with pytest.raises(ConfigError, match="'Ordre' is none, or more than one, of them"):
        ProtobufDecoder(schema, descriptors=ORDERS, message="Ordre")


def test_proto2_tells_absent_from_zero_and_its_defaults_are_absent() -> None:
    text = 'syntax = "proto2"; message M { required int64 x = 1; optional int32 y = 2 [default = 5]; }'
    described = compiled_texts({"a.proto": text}, "a.proto", "test")
    schema = Schema(features=tuple(Field(name=name, source=name, dtype="int64") for name in "xy"))
    found = outcomes(ProtobufDecoder(schema, descriptors=described), [b"\x10\x00", b"\x08\x00", b"\x08\x00\x10\x00"])
    assert found == [(Reason.MISSING, "x"), (Reason.MISSING, "y"), {"x": 0, "y": 0}]


class Counted(Registry):
    """A registry that counts what it is asked, and does not know one schema yet."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.away = list[int](), True

    def get(self, number: int) -> RegisteredSchema | None:
        """Return a schema, or None; raise NotYetError while it is away."""
        self.asked.append(number)
        if number == 1 and self.away:
            raise NotYetError("schema 1 is not known yet")
        return super().get(number)


def test_records_wait_for_a_schema_that_is_not_known_yet_and_each_is_asked_for_once() -> None:
    registry = Counted()
    decoder = ProtobufDecoder(REGISTRY_SCHEMA, schemas=registry)
    values = [framed(1, b"\x02\x02", b""), framed(2, b"\0", b""), framed(7, b"\0", b""), framed(1, b"\x02\x10", b"")]
    with pytest.raises(NotYetError):
        decoder.decode(values)
    assert set(registry.asked) == {1, 2, 7}
    registry.away, registry.asked = False, []
    for _ in range(3):
        found = decoder.decode(values)
        assert found.kept.tolist() == [0, 1]
        assert [(one.index, one.reason) for one in found.refused] == [(2, Reason.UNKNOWN_SCHEMA), (3, Reason.MALFORMED)]
    assert registry.asked == [1, 7, 7, 7]


def test_a_file_that_is_no_descriptor_is_a_setting_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: no such file"):
        descriptor_set(tmp_path / "a.desc")
    (tmp_path / "a.desc").write_bytes(b"{}")
    with pytest.raises(ConfigError, match="is no descriptor set; write one by `protoc --include_imports"):
        descriptor_set(tmp_path / "a.desc")
    (tmp_path / "a.proto").write_text('syntax = "proto3"; message M { int64 x = 1 }')
    with pytest.raises(ConfigError, match=r"does not compile: a.proto:1:4\d: Expected"):
        descriptor_set(tmp_path / "a.proto")
    (tmp_path / "a.proto").write_text('syntax = "proto3"; import "b.proto"; message M { B x = 1; }')
    with pytest.raises(ConfigError, match=r"b\.proto: File not found"):
        descriptor_set(tmp_path / "a.proto")


def test_a_set_without_its_imports_is_a_setting_error() -> None:
    whole = descriptor_pb2.FileDescriptorSet.FromString(ORDERS)
    alone = descriptor_pb2.FileDescriptorSet(file=[whole.file[-1]]).SerializeToString()
    with pytest.raises(ConfigError, match=r"it is incomplete: .*; write it by `protoc --include_imports`"):
        ProtobufDecoder(SCHEMA, descriptors=alone, message="Order")
    assert descriptor_set(HERE / "order.proto") == ORDERS


def test_schemas_import_what_nobody_registers() -> None:
    text = (
        'syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";'
        'import "google/type/money.proto"; import "google/protobuf/timestamp.proto";'
        'message M { option (confluent.message_meta).doc = "a click"; confluent.type.Decimal exact = 1;'
        " google.type.Money price = 2; google.protobuf.Timestamp at = 3; }"
    )
    registry = Registry()
    registry.schemas[1] = RegisteredSchema("PROTOBUF", text)
    fields = (Field(name="units", source="price.units", dtype="int64"), Field(name="at", source="at", dtype="int64"))
    decoder = ProtobufDecoder(Schema(features=fields), schemas=registry)
    found = decoder.decode([framed(1, b"\0", b"\x12\x02\x10\x07\x1a\x02\x08\x02")])
    assert {name: column.tolist() for name, column in found.columns.items()} == {"price.units": [7], "at": [2000]}


@pytest.mark.parametrize("name", ["/tmp/outside.proto", "../outside.proto", "a/../../outside.proto"])
def test_no_name_that_a_registry_gives_leads_out_of_the_folder(name: str) -> None:
    with pytest.raises(ConfigError, match="is no name to import a file by"):
        compiled_texts({name: 'syntax = "proto3";'}, name, "schema 1")


def test_a_renamed_field_is_found_by_the_number_that_the_settings_know(tmp_path: Path) -> None:
    registry, known = Registry(), tmp_path / "click.proto"
    head = 'syntax = "proto3"; package s; '
    known.write_text(head + "message U { int32 age = 2; } message C { int32 price = 1; map<string, U> users = 3; }")
    registry.schemas[1] = RegisteredSchema(
        "PROTOBUF", head + "message V { int32 years = 2; } message C { int64 cost = 1; map<string, V> people = 3; }"
    )
    registry.schemas[2] = RegisteredSchema("PROTOBUF", head + "message C { int32 cost = 4; int32 price = 5; }")
    fields = (
        Field(name="price", source="price", dtype="float32"),
        Field(name="age", source="users.x.age", dtype="int32", missing=-1),
    )
    decoder = ProtobufDecoder(Schema(features=fields), file=known, message="C", schemas=registry)
    found = decoder.decode(
        [framed(1, b"\x02\x02", b"\x08\x07\x1a\x07\x0a\x01x\x12\x02\x10\x09"), framed(2, b"\0", b"\x28\x01")]
    )
    assert {name: column.tolist() for name, column in found.columns.items()} == {"price": [7.0], "users.x.age": [9]}
    assert [(one.reason, one.detail) for one in found.refused] == [
        (Reason.MISSING, "s.C has no 'price', which has the number 1; it has cost, price")
    ]
    assert [fit.fields["users.x.age"].place for fit, _ in found.schemas] == ["people.x.years", None]
    hour = Field(name="hour", source="hour", dtype="int32")
    with pytest.raises(ConfigError, match="has no 'hour'"):
        ProtobufDecoder(Schema(features=(hour,)), file=known, message="C", schemas=registry)
