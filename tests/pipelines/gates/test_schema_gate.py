"""New schemas on a topic: each is reported once with what it changes, and one that cannot be read is held."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.formats.avro.decoder import AvroDecoder
from millrace.pipelines.formats.json.framed import FramedJsonDecoder
from millrace.pipelines.formats.protobuf.decoder import ProtobufDecoder
from millrace.pipelines.formats.shared.protocol import changes, in_a_sentence
from millrace.pipelines.gates.schema_gate import NewSchema, SchemaGate
from millrace.pipelines.registry.schemas import KeptSchemas
from millrace.pipelines.schema import Field, RegisteredSchema, Schema
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.training.ledger.ledger import Skip
from tests.pipelines.formats.avro.avro_verdicts import Registry, framed
from tests.pipelines.formats.protobuf.protobuf_verdicts import framed as framed_message
from tests.pipelines.stream.test_decode import chunk_of

pytestmark = pytest.mark.row(39)

FIELDS = (
    Field(name="price", source="price", dtype="float32"),
    Field(name="hour", source="hour", dtype="float32", missing=-1),
    Field(name="old", source="old", dtype="float32", missing=0),
)
ROWS = {"cost": 2, "price": 2, "hour": 3, "old": 4, "other": "x"}


def record(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, **(kind if isinstance(kind, dict) else {"type": kind})} for name, kind in types.items()]
    return {"type": "record", "name": "Click", "fields": fields}


WRITERS = {
    1: record(cost="int", old="long"),
    2: record(cost="int", old="long", hour="int"),
    3: record(price={"type": "double", "aliases": ["cost"]}, hour="int"),
    4: record(price="float", hour="int", other="string"),
    5: record(price="string", hour="int"),
    6: record(hour="int"),
}
READER = record(price={"type": "double", "aliases": ["cost"]})


class Stream:
    """Chunks of records of some schemas, which come to a gate."""

    def __init__(self, folder: Path | None, *, holds: bool = True) -> None:
        registry = Registry()
        registry.schemas = {number: RegisteredSchema("AVRO", json.dumps(each)) for number, each in WRITERS.items()}
        self.decoder = AvroDecoder(Schema(features=FIELDS), json.dumps(READER), "reader.avsc", registry)
        self.reports: list[NewSchema] = []
        self.gate = SchemaGate(KeptSchemas(folder), self.reports.append, holds=holds)

    def comes(self, *numbers: int, start: int = 0, skips: Sequence[Skip] = ()) -> bool:
        values = []
        for number in numbers:
            row = {each["name"]: ROWS[each["name"]] for each in WRITERS[number]["fields"]}
            row |= {"price": "much"} if number == 5 else {}
            values.append(framed(number, WRITERS[number], row))
        if skips:
            self.gate.begin({}, skips)
        return self.gate.admits(decode_chunk(chunk_of(values, start), self.decoder))

    @property
    def said(self) -> list[tuple[int, int | None, int, str]]:
        return [
            (new.fit.number, None if new.before is None else new.before.number, new.offset, in_a_sentence(new.changes))
            for new in self.reports
        ]


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path)


def test_each_schema_is_reported_once_with_what_changes_for_the_fields(stream: Stream) -> None:
    assert stream.comes(1, 1, 2, start=10)
    assert stream.comes(3, 2, 4, start=20)
    assert stream.comes(1, 2, 3, 4, start=30)
    assert stream.said == [
        (1, None, 10, "'price' is read from cost; 'hour' is not in it, its `missing` value is used"),
        (2, 1, 12, "'hour' is added (int)"),
        (
            3,
            2,
            20,
            "'price' is renamed from cost to price; 'price' is promoted from int to double; "
            "'old' is not in it, its `missing` value is used",
        ),
        (4, 3, 22, "'price' changes its type from double to float"),
    ]


def test_a_restart_reports_no_schema_again_and_compares_with_those_before(stream: Stream, tmp_path: Path) -> None:
    assert stream.comes(1, 2)
    again = Stream(tmp_path)
    assert again.comes(1, 2, 3)
    assert [(number, before) for number, before, _, _ in again.said] == [(3, 2)]


@pytest.mark.parametrize(
    "damage", [b"{half", b'{"kept": {"schemas": []}, "sha256": ""}', b'{"kept": 5, "sha256": "a"}']
)
def test_a_damaged_list_of_what_was_reported_stops_nothing(stream: Stream, tmp_path: Path, damage: bytes) -> None:
    assert stream.comes(1)
    (tmp_path / "reported.json").write_bytes(damage)
    again = Stream(tmp_path)
    assert again.comes(1)
    assert [number for number, *_ in again.said] == [1]
    assert Stream(tmp_path).comes(1)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (5, "at clicks:3:41 schema 5 does not give the field 'price': the schema has a value of type string"),
        (6, "at clicks:3:41 schema 6 does not give the field 'price': the schema has no field 'price'; it has hour"),
    ],
)
def test_a_schema_that_cannot_be_read_is_held_until_somebody_lets_it_pass(
    stream: Stream, number: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert stream.comes(4, start=30)
    assert not stream.comes(4, number, start=40)
    held = stream.gate.held()
    assert held is not None
    assert held.fix is not None
    assert held.why == says
    assert "Mend the field 'price' in `records`" in held.fix
    assert "millrace resume -c CONFIG" in held.fix
    assert [message for message in caplog.messages if says in message] == [
        f"the learning is paused: {held.why}. {held.fix}"
    ]
    assert not stream.comes(4, start=50)
    assert stream.gate.let_pass({})
    assert stream.comes(4, number, start=40)
    assert stream.comes(number, start=60)
    assert not stream.comes(11 - number, start=70)


def test_a_stream_that_begins_again_judges_the_same_records_again(stream: Stream) -> None:
    assert not stream.comes(5)
    stream.gate.begin({})
    assert stream.gate.held() is None
    assert not stream.comes(5)


def test_records_that_are_skipped_hold_nothing(stream: Stream) -> None:
    skip = Skip(order="skip-1", reason="bad", partition=Partition("clicks", 3), start=0, end=2)
    assert stream.comes(5, 5, 4, skips=[skip])
    assert not stream.comes(5, 5, 5, skips=[skip])


def test_a_record_at_fault_by_itself_holds_nothing(stream: Stream) -> None:
    value = framed(4, WRITERS[4], ROWS | {"price": float("nan")})
    decoded = decode_chunk(chunk_of([value, value[:-1], b"\0\0\0\0\x63x"]), stream.decoder)
    assert [(one.reason, one.schema, one.detail) for one in decoded.refused] == [
        (Reason.NOT_FINITE, 4, None),
        (Reason.MALFORMED, 4, None),
        (Reason.UNKNOWN_SCHEMA, 99, "the registry has no schema 99"),
    ]
    assert stream.gate.admits(decoded)


def test_with_set_aside_it_reports_and_holds_nothing() -> None:
    stream = Stream(None, holds=False)
    assert stream.comes(5, 6)
    assert [in_a_sentence(new.changes) for new in stream.reports][1] == (
        "'price' cannot be read: the schema has no field 'price'; it has hour"
    )


PROTO = 'syntax = "proto3"; package shop; message Click {{ {} }}'
MESSAGES = {
    1: "int32 price = 1; int64 old = 2;",
    2: "int64 price = 1; int64 old = 2; int32 hour = 3;",
    3: "int64 price = 1;",
    4: "int64 amount = 1;",
    5: "string price = 1;",
}


@pytest.mark.parametrize(
    ("number", "detail", "reason"),
    [
        (4, "shop.Click has no 'price'; it has amount", Reason.MISSING),
        (5, "shop.Click.price is a string, which is no float32; change the dtype", Reason.WRONG_TYPE),
    ],
)
def test_messages_of_new_schemas_are_reported_and_held_in_the_same_way(
    number: int, detail: str, reason: Reason
) -> None:
    registry = Registry()
    texts = {each: PROTO.format(MESSAGES[each]) for each in (1, 2, 3, number)}
    registry.schemas = {each: RegisteredSchema("PROTOBUF", text) for each, text in texts.items()}
    decoder = ProtobufDecoder(Schema(features=FIELDS), schemas=registry)
    reports: list[NewSchema] = []
    gate = SchemaGate(KeptSchemas(None), reports.append)

    def comes(*numbers: int) -> Decoded:
        values = [framed_message(each, b"\0", b"\x08\x01" if each < 5 else b"\x0a\x01x") for each in numbers]
        return decode_chunk(chunk_of(values), decoder)

    assert gate.admits(comes(1, 2, 3))
    assert [in_a_sentence(changes(new.before, new.fit)) for new in reports[1:]] == [
        "'price' is promoted from int32 to int64; 'hour' is added (int32)",
        "'hour' is not in it, its `missing` value is used; 'old' is not in it, its `missing` value is used",
    ]
    decoded = comes(3, number)
    assert [(one.reason, one.schema, one.detail) for one in decoded.refused] == [(reason, number, detail)]
    assert not gate.admits(decoded)


def test_json_schemas_are_reported_by_their_titles_and_hold_nothing() -> None:
    registry = Registry()
    texts = {
        1: '{"title": "Click"}',
        2: '{"title": "Click", "$id": "x"}',
        3: '{"title": 5, "$id": "urn:y"}',
        4: "[" * 9000,
    }
    registry.schemas = {number: RegisteredSchema("JSON", text) for number, text in texts.items()}
    registry.schemas[9] = RegisteredSchema("AVRO", '"string"')
    decoder = FramedJsonDecoder(Schema(features=FIELDS), registry)
    reports: list[NewSchema] = []
    gate = SchemaGate(KeptSchemas(None), reports.append)

    def framed_json(number: int, text: bytes) -> bytes:
        return b"\0" + number.to_bytes(4) + text

    values = [framed_json(number, b'{"price": 1}') for number in (9, 1, 2, 1, 8, 3, 4)]
    decoded = decode_chunk(chunk_of([None, framed_json(1, b""), *values], 10), decoder)
    assert [one.reason for one in decoded.refused if one.offset > 11] == [Reason.UNKNOWN_SCHEMA] * 2
    assert gate.admits(decoded)
    assert gate.admits(decode_chunk(chunk_of([framed_json(2, b"{}")], 20), decoder))
    said = [(new.fit.number, new.fit.name, new.before and new.before.number, new.offset) for new in reports]
    assert said == [(1, "Click", None, 13), (2, "Click", 1, 14), (3, "urn:y", None, 17), (4, "an object", None, 18)]
    assert {new.sentence for new in reports} == {
        "JSON is read by the names in `records`, so what it changes for them is not compared"
    }
