"""`records.where`: which records of a topic with several kinds are learnt from, and the outcome of the others."""

import csv
import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from millrace.app.settings.sections.records import RecordsSettings, to_decoder
from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.files.shard_files import ChunkFiles
from millrace.pipelines.files.visits import Refusals
from millrace.pipelines.formats import format_of, make_decoder
from millrace.pipelines.formats.avro import AvroSettings
from millrace.pipelines.formats.csv import CsvSettings
from millrace.pipelines.formats.json.glance import JsonGlance
from millrace.pipelines.formats.protobuf import ProtobufSettings
from millrace.pipelines.formats.row_format import RowFormat
from millrace.pipelines.gates.flood import judged
from millrace.pipelines.schema import Field, RegisteredSchema, Schema
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.pipelines.where.conditions import WhereCondition
from millrace.pipelines.where.selection import selecting, some_matching
from millrace.training.ledger.ledger import Ledger, Skip
from tests.pipelines.formats.avro.avro_verdicts import Registry, framed
from tests.pipelines.formats.protobuf.protobuf_verdicts import framed as framed_message
from tests.pipelines.stream.test_decode import chunk_of

SCHEMA = Schema(features=(Field(name="price", source="price", dtype="float32"),))
Row = Mapping[str, Any]
ROWS: tuple[Row, ...] = (
    {"price": 1.0, "type": "impression", "size": 1},
    {"price": 2.0, "type": "click", "size": 5},
    {"price": 3.0, "type": "view", "size": 9},
    {"price": 4.0, "type": "impression", "size": 20},
)
AVRO = {
    "type": "record",
    "name": "shop.Event",
    "fields": [
        {"name": "price", "type": "double"},
        {"name": "type", "type": "string"},
        {"name": "size", "type": "long"},
    ],
}


class Lines(RowFormat):
    """A user's own format: `name=value` between semicolons."""

    def read(self, value: bytes) -> Mapping[str, Any]:
        return dict(part.split("=") for part in value.decode().split(";"))

    def write(self, row: Mapping[str, Any]) -> bytes:
        return ";".join(f"{name}={value}" for name, value in row.items()).encode()


def _avro(row: Row) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), dict(row))
    return out.getvalue()


def _event() -> tuple[bytes, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", syntax="proto3", package="shop")
    message, kind = file.message_type.add(name="Event"), descriptor_pb2.FieldDescriptorProto
    for number, (name, of) in enumerate(
        (("price", kind.TYPE_DOUBLE), ("type", kind.TYPE_STRING), ("size", kind.TYPE_INT64)), 1
    ):
        message.field.add(name=name, number=number, type=of, label=kind.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Event"))
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), made


DESCRIPTORS, EVENT = _event()


def _example(row: Row) -> bytes:
    kinds: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
        "price": ("float_list", float),
        "type": ("bytes_list", str.encode),
        "size": ("int64_list", int),
    }
    example = tf.train.Example()
    for name, value in row.items():
        kind, of = kinds[name]
        getattr(example.features.feature[name], kind).value.append(of(value))
    return bytes(example.SerializeToString())


def _csv(row: Row) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([row["price"], row["type"], row["size"]])
    return out.getvalue().encode()


WRITE: Mapping[str, Callable[[Row], bytes]] = {
    "json": lambda row: json.dumps(row).encode(),
    "avro": _avro,
    "protobuf": lambda row: bytes(EVENT(**row).SerializeToString()),
    "csv": _csv,
    "example": _example,
    "own": Lines().write,
}


def _selecting(form: str, where: Mapping[str, Any], folder: Path, schema: Schema = SCHEMA) -> Any:
    (folder / "event.avsc").write_text(json.dumps(AVRO))
    (folder / "event.pb").write_bytes(DESCRIPTORS)
    settings = {
        "avro": AvroSettings(schema_file=folder / "event.avsc"),
        "protobuf": ProtobufSettings(descriptor=folder / "event.pb"),
        "csv": CsvSettings(columns=("price", "type", "size")),
    }.get(form)
    made = Lines() if form == "own" else format_of(form)
    conditions = {place: WhereCondition.model_validate(one) for place, one in where.items()}
    return selecting(make_decoder(made, schema, settings), conditions, made, settings)


def outcome(decoded: Decoded) -> tuple[list[int], list[int], list[tuple[int, Reason, str | None]]]:
    """Return the offsets of the rows, those that are filtered, and those that are set aside, with the reason."""
    refused = [(one.offset, one.reason, one.field) for one in decoded.refused]
    return decoded.offsets.tolist(), decoded.filtered.tolist(), refused


@pytest.mark.parametrize("form", WRITE)
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"type": "impression"}, [0, 3]),
        ({"type": ["impression", "view"]}, [0, 2, 3]),
        ({"type": {"not": "impression"}}, [1, 2]),
        ({"size": 5}, [1]),
        ({"size": {"min": 5, "max": 9}}, [1, 2]),
        ({"size": {"min": 5}, "type": "impression"}, [3]),
        ({"type": {"one_of": ["impression", "click"], "not": "click"}}, [0, 3]),
        ({"price": {"max": 2.5}}, [0, 1]),
    ],
)
def test_what_matches_is_learnt_and_all_else_filtered(
    form: str, where: dict[str, Any], kept: list[int], tmp_path: Path
) -> None:
    """Whatever the format."""
    decoded = decode_chunk(chunk_of([WRITE[form](row) for row in ROWS]), _selecting(form, where, tmp_path))
    assert outcome(decoded) == (kept, [at for at in range(4) if at not in kept], [])
    assert decoded.features["price"].tolist() == [ROWS[at]["price"] for at in kept]


@pytest.mark.parametrize("form", WRITE)
def test_a_record_that_cannot_be_read_is_set_aside_and_not_filtered(form: str, tmp_path: Path) -> None:
    """With its reason; also an empty one."""
    values = [WRITE[form](ROWS[1]), b"\xff\xff\xff", None, WRITE[form](ROWS[0])]
    kept, filtered, refused = outcome(
        decode_chunk(chunk_of(values), _selecting(form, {"type": "impression"}, tmp_path))
    )
    assert (kept, filtered) == ([3], [0])
    assert [(at, reason) for at, reason, _ in refused][1] == (2, Reason.EMPTY)
    assert refused[0][0] == 1


def test_a_record_that_matches_and_lacks_a_feature_is_set_aside_and_another_kind_is_not(tmp_path: Path) -> None:
    """Only what is learnt from must have the fields."""
    values = [b'{"type": "click"}', b'{"type": "impression"}', b'{"type": 7, "price": 1}']
    decoded = decode_chunk(chunk_of(values), _selecting("json", {"type": "impression"}, tmp_path))
    assert outcome(decoded) == ([], [0], [(1, Reason.MISSING, "price"), (2, Reason.WRONG_TYPE, "type")])


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ({"present": True}, [0]),
        ({"present": False}, [1, 2]),
        ({"not": "a"}, [1, 2]),
        ({"not": "b", "present": True}, [0]),
        ("a", [0]),
    ],
)
def test_a_field_that_is_absent_or_null_matches_only_not_and_present_false(
    condition: Any, kept: list[int], tmp_path: Path
) -> None:
    """As `MISSING` is found by the format."""
    schema = Schema(features=(*SCHEMA.features, Field(name="kind", source="kind", dtype="string", missing="a")))
    values = [b'{"price": 1, "kind": "a"}', b'{"price": 1}', b'{"price": 1, "kind": null}']
    decoded = decode_chunk(chunk_of(values), _selecting("json", {"kind": condition}, tmp_path, schema))
    assert outcome(decoded)[:2] == (kept, [at for at in range(3) if at not in kept])


def test_raw_records_are_selected_by_a_field_of_theirs_whatever_the_others_hold(tmp_path: Path) -> None:
    """A raw record has no names: its fields are those of the settings."""
    schema = Schema(features=(*SCHEMA.features, Field(name="kind", source="kind", dtype="int32")))
    values = [struct.pack("<fi", 1, 7), struct.pack("<fi", float("nan"), 8), struct.pack("<fi", float("nan"), 7)]
    decoded = decode_chunk(chunk_of(values), _selecting("raw", {"kind": 7}, tmp_path, schema))
    assert outcome(decoded) == ([0], [1], [(2, Reason.NOT_FINITE, "price")])
    with pytest.raises(ConfigError, match="a raw record has no field 'other'"):
        _selecting("raw", {"other": 7}, tmp_path, schema)


def test_texts_are_selected_as_a_whole(tmp_path: Path) -> None:
    """`$value` is where a text is."""
    schema = Schema(features=(Field(name="text", source="$value", dtype="string"),))
    decoder = _selecting("text", {"$value": {"not": ["ping", "pong"]}}, tmp_path, schema)
    assert outcome(decode_chunk(chunk_of([b"ping", b"word", b"\xff"]), decoder)) == (
        [1],
        [0],
        [(2, Reason.MALFORMED, None)],
    )


def test_keys_and_headers_select_before_the_value_is_looked_at(tmp_path: Path) -> None:
    """Also a record whose value could not be read."""
    chunk = replace(
        chunk_of([b'{"price": 1}', b"no json", b'{"price": 3}', b'{"price": 4}']),
        keys=[b"a", b"b", None, b"a"],
        headers=[[("kind", b"test"), ("kind", b"live")], (), [("kind", b"live")], [("kind", b"test")]],
    )

    def kept(**where: Any) -> tuple[list[int], list[int]]:
        return outcome(
            decode_chunk(chunk, _selecting("json", {"$" + name: one for name, one in where.items()}, tmp_path))
        )[:2]

    assert kept(key="a") == ([0, 3], [1, 2])
    assert kept(**{"header.kind": "live"}) == ([0, 2], [1, 3])
    assert kept(**{"header.kind": {"present": False}}) == ([], [0, 2, 3])
    assert kept(**{"key": {"present": True}, "header.kind": {"not": "test"}}) == ([0], [2, 3])
    assert kept(offset={"min": 2}) == ([2, 3], [0, 1])


def test_avro_records_of_other_names_are_filtered_and_their_schemas_never_judged() -> None:
    """No schema that is filtered comes to the schema gate; a number that the registry does not know is set aside."""
    other = {"type": "record", "name": "Refund", "namespace": "shop", "fields": [{"name": "price", "type": "string"}]}
    registry = Registry()
    registry.schemas = {n: RegisteredSchema("AVRO", json.dumps(one)) for n, one in ((1, AVRO), (2, other))}
    values = [framed(1, AVRO, ROWS[0]), framed(2, other, {"price": "much"}), framed(9, other, {"price": "x"}), b"bare"]
    form = format_of("avro")
    for name in ("shop.Event", "Event"):
        where = {"$schema": WhereCondition.model_validate(name)}
        decoder = selecting(make_decoder(form, SCHEMA, AvroSettings(), registry), where, form, AvroSettings(), registry)
        decoded = decode_chunk(chunk_of(values), decoder)
        assert outcome(decoded) == ([0], [1], [(2, Reason.UNKNOWN_SCHEMA, None), (3, Reason.MALFORMED, None)])
        assert [fit.number for fit, _ in decoded.schemas] == [1]
        assert decoded.refused[0].schema == 9


def test_protobuf_messages_of_other_names_are_filtered() -> None:
    """By the message that a record names within its schema, though the number is the same."""
    text = (
        'syntax = "proto3"; package shop; message Event { double price = 1; string type = 2; }'
        "message Refund { string price = 1; }"
    )
    registry = Registry()
    registry.schemas = {1: RegisteredSchema("PROTOBUF", text)}
    event = EVENT(price=2.0).SerializeToString()
    values = [framed_message(1, b"\0", event), framed_message(1, b"\x02\x02", b"\x0a\x04much")]
    form, where = format_of("protobuf"), {"$schema": WhereCondition.model_validate({"not": "Refund"})}
    decoder = selecting(
        make_decoder(form, SCHEMA, ProtobufSettings(), registry), where, form, ProtobufSettings(), registry
    )
    assert outcome(decode_chunk(chunk_of(values), decoder)) == ([0], [1], [])


_VALUES = (
    *('"click"', '"impression"', '"impressions"', '"type"', '"a:b{"', '"\\\\"', '"type\\\\":"', "1", "null", "[]"),
    *('{"type": "impression"}', '{"a": {"type": "click"}}', '["type", "click"]', "x", '"', "{"),
)
_PAIRS = st.tuples(
    st.sampled_from(('"type"', '"type"', '"a"', '"kind"', 'type"')),
    st.sampled_from((":", ": ", " : ", "  :", ":  ")),
    st.sampled_from(_VALUES),
).map("".join)


@given(
    st.lists(st.lists(_PAIRS, max_size=4).map(",".join), min_size=1, max_size=8),
    st.lists(st.sampled_from((None, b"", b"x", b"[]", b"x{", b'{"')), max_size=3),
)
@example(['"x":{"type":"impression"}'], [None])
def test_what_a_glance_tells_of_json_is_what_a_parser_finds(texts: list[str], neighbours: list[bytes | None]) -> None:
    """Of a record that it tells, and that is JSON; its neighbours change nothing, whether they are JSON or not."""
    records = [b"{" + text.encode() + b"}" for text in texts]
    glance = JsonGlance("type", frozenset({b"impression"}), framed=False)
    listed, others = glance([*records, *neighbours])
    assert not (listed & others).any()
    listed, others = listed[: len(records)], others[: len(records)]
    for record, is_listed, is_other in zip(records, listed, others, strict=True):
        assert [one.tolist() for one in glance([record])] == [[is_listed], [is_other]]
        try:
            pairs = json.loads(record, object_pairs_hook=list)
        except ValueError:
            continue
        values = [value for name, value in pairs if name == "type"]
        if is_listed:
            assert values == ["impression"]
        if is_other:
            assert len(values) == 1
            assert isinstance(values[0], str)
            assert values != ["impression"]


def test_a_glance_tells_records_of_producers_without_a_parser() -> None:
    """Whatever the order of the fields, nested ones behind, and any spaces of usual writers."""
    values = [
        b'{"price": 1, "type": "click"}',
        b'{"price":1,"type":"impression"}',
        b'{"type":"click","user":{"type_":1}}',
        b'{"user":{"a":1},"type":"click"}',
        b'{"note":"a\\"b","type":"click"}',
        None,
    ]
    listed, others = JsonGlance("type", frozenset({b"impression"}), framed=False)(values)
    assert listed.tolist() == [False, True, False, False, False, False]
    assert others.tolist() == [True, False, True, False, False, False]


SECTION: dict[str, Any] = {"features": {"price": "float32", "tags": {"dtype": "string", "shape": [2]}}}


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"type": {}}, "asks for nothing"),
        ({"type": {"present": False, "min": 1}}, "must be absent"),
        ({"type": ["a", 1]}, "of several kinds"),
        ({"size": {"min": 3, "max": 1}}, "no record would match"),
        ({"size": {"min": float("nan")}}, "nan is no bound"),
        ({"size": {"not": float("nan")}}, "no record that is learnt holds nan"),
        ({"size": {"present": True}}, "say its type"),
        ({"price": "a"}, "is read as float32, and 'a' is none"),
        ({"tags": "a"}, "is a list of shape"),
        ({"price": {"one_of": 1, "dtype": "int64"}}, "is read as float32"),
        ({"$schema": "Event"}, "write records.registry"),
        ({"$kind": "a"}, "has no \\$kind beside its value"),
        ({"type": {"like": "a"}}, "like"),
    ],
)
def test_a_condition_that_cannot_be_meant_is_refused(where: dict[str, Any], says: str) -> None:
    """By the settings, in a line."""
    with pytest.raises(ValidationError, match=says):
        RecordsSettings.model_validate({**SECTION, "where": where})


@pytest.mark.parametrize(
    "where",
    [
        {"type": "a"},
        {"type": ["a", "b"]},
        {"type": {"not": ["a", "b"], "present": True}},
        {"size": {"min": 1, "max": 2}},
    ],
)
def test_conditions_are_written_as_they_are_read(where: dict[str, Any]) -> None:
    """So that a proof's config, an export and a checkpoint's provenance say the same."""
    section = RecordsSettings.model_validate({**SECTION, "where": where})
    assert section.model_dump(mode="json")["where"] == where
    assert RecordsSettings.model_validate(section.model_dump(mode="json")) == section


def test_to_decode_by_the_settings_is_to_select() -> None:
    """The decoder that every part of the program asks for."""
    section = RecordsSettings.model_validate({"features": {"price": "float32"}, "where": {"type": "impression"}})
    decoded = decode_chunk(chunk_of([WRITE["json"](row) for row in ROWS]), to_decoder(section))
    assert outcome(decoded)[:2] == ([0, 3], [1, 2])


@pytest.mark.row(42)
def test_every_filtered_offset_is_counted_once_and_a_command_s_skip_comes_first(tmp_path: Path) -> None:
    """In the block, and in the ledger, whose law is checked."""
    decoder = _selecting("json", {"type": "impression"}, tmp_path)
    values = [WRITE["json"](ROWS[at]) for at in (1, 1, 0, 2, 1, 3, 2)] + [b"no json"]
    decoded = replace(decode_chunk(chunk_of(values), decoder), lost=0)
    assert judged(decoded).records == 8
    skip = Skip(order="rewind-1", partition=decoded.partition, start=1, end=2, reason="poisoned")
    ledger = Ledger()
    ledger.join(decoded.partition, 0)
    ledger.raise_incarnation(decoded.incarnation)
    ledger.skip(skip)
    assembler = Assembler(
        SCHEMA, AssembleOptions(batch_size=1, batches_per_call=1), [decoded.partition], decoded.incarnation, [skip]
    )
    assembler.add(decoded)
    blocks = [assembler.take(0.0), assembler.take(0.0, flush=True)]
    for block in blocks:
        assert block is not None
        assert ledger.settle(block.facts)
    account = ledger.statistics().partitions[decoded.partition]
    assert account.balanced
    assert (account.learnt, account.filtered, dict(account.skipped), account.gaps) == (2, 4, {"rewind-1": 1}, 0)
    again = Ledger()
    again.restore(ledger.snapshot())
    assert again.statistics().partitions == ledger.statistics().partitions


@pytest.mark.parametrize("max_wait_s", [None, 0.5])
def test_a_block_of_filtered_records_alone_does_not_wait_to_be_full(max_wait_s: float | None, tmp_path: Path) -> None:
    """So that the lag goes down where nothing matches, with and without `training.max_wait`."""
    decoded = decode_chunk(chunk_of([WRITE["json"](ROWS[1])] * 4), _selecting("json", {"type": "impression"}, tmp_path))
    options = AssembleOptions(batch_size=2, batches_per_call=1, max_wait_s=max_wait_s)
    assembler = Assembler(SCHEMA, options, [decoded.partition], decoded.incarnation)
    assembler.add(decoded)
    assert assembler.take(decoded.fetched_at) is None
    block = assembler.take(decoded.fetched_at + 1)
    assert block is not None
    assert (block.facts.rows, block.facts.spans[0].filtered, block.facts.spans[0].end) == (0, 4, decoded.end)


def test_what_matches_does_not_depend_on_how_a_chunk_is_cut(tmp_path: Path) -> None:
    """So that a restart in the middle of it learns and filters the same offsets."""
    values = [WRITE["json"](ROWS[at % 4]) for at in range(40)] + [
        b'{"type":"a", "b": "\\n"}',
        b"{",
        None,
        b'{"type": 1}',
    ]
    chunk = replace(chunk_of(values), lost=0)
    decoder = _selecting("json", {"type": ["impression", "view"], "size": {"max": 10}}, tmp_path)
    whole = outcome(decode_chunk(chunk, decoder))
    assert all(whole)
    for at in range(1, len(values)):
        parts = [outcome(decode_chunk(part, decoder)) for part in chunk.split(at)]
        assert tuple(one + other for one, other in zip(*parts, strict=True)) == whole


def test_a_pretraining_visits_what_matches_and_names_the_rest(tmp_path: Path) -> None:
    """By `where`, beside what is refused, and what shaping leaves out of the same rows."""
    chunk = replace(chunk_of([WRITE["json"](row) for row in ROWS] + [b"no json"], start=10), lost=0)
    refusals = Refusals()
    decoder = _selecting("json", {"type": "impression"}, tmp_path)
    reader = ChunkFiles(lambda _place, _most: iter([chunk]), decoder, refusals)
    for _ in range(2):
        rows = [*reader.dataset(lambda: [0], epoch=0, most=100, deterministic=True)]
        assert [offset for one in rows for offset in one.offsets.numpy().tolist()] == [10, 13]
    refusals.leave_out(0, range(10, 15), [(13, "balance")])
    assert (refusals.by_reason(), refusals.by_setting()) == ({Reason.MALFORMED: 1}, {"where": 2, "balance": 1})
    assert sorted(refusals.of(0).tolist()) == [11, 12, 13, 14]


def test_of_made_up_records_some_match_and_some_do_not(tmp_path: Path) -> None:
    """So that a proof counts both."""
    where = {"type": WhereCondition.model_validate("impression"), "price": WhereCondition.model_validate({"min": 5})}
    schema = some_matching(where, SCHEMA)
    values = format_of("json").generate(schema, np.random.default_rng(1), 200)
    decoded = decode_chunk(chunk_of(values), selecting(make_decoder("json", SCHEMA), where, format_of("json")))
    assert len(decoded)
    assert len(decoded.filtered)
    assert not decoded.refused
    with pytest.raises(ConfigError, match="beside the value"):
        some_matching({"$key": WhereCondition.model_validate("a")}, SCHEMA)
