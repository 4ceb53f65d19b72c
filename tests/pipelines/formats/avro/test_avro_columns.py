"""Columns of Avro against fastavro: any schema, any values, any paths."""

import io
import json
import math
from collections.abc import Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.avro.decoder import AvroDecoder
from millrace.pipelines.formats.avro.lanes import Buffer, lanes_of
from millrace.pipelines.formats.avro.nodes import AvroNode, BrokenError
from millrace.pipelines.formats.avro.plans import Planner, Want
from millrace.pipelines.formats.avro.writer_schema import known_of, node_of, parsed
from millrace.pipelines.formats.shared.arrow_columns import Show
from millrace.pipelines.formats.shared.paths import PathStep
from millrace.pipelines.schema import Field, Schema, TimeFormat
from millrace.pipelines.stream.decode import decode_chunk
from tests.pipelines.formats.avro.avro_values import Made, found, prefixes, records, wanted, written
from tests.pipelines.stream.test_decode import chunk_of


def buffer_of(values: Sequence[bytes]) -> Buffer:
    return Buffer(values, np.fromiter(map(len, values), np.int64, len(values)))


def compiled(schema: Any) -> AvroNode:
    return node_of(*parsed(json.dumps(schema), "it"), "it")


def read(node: AvroNode, wants: Sequence[Want], values: Sequence[bytes]) -> tuple[dict[str, pa.Array], Buffer]:
    buffer = buffer_of(values)
    lanes = lanes_of(buffer, np.arange(len(values)), 0, node.size)
    plan = Planner({}).plan(node, wants)
    with np.errstate(invalid="ignore", over="ignore"):
        arrays = plan.read(lanes)
    lanes.bury()
    lanes.kill(lanes.pos != lanes.end)
    return arrays, buffer


def skipped(node: AvroNode, values: Sequence[bytes]) -> list[bool]:
    buffer = buffer_of(values)
    lanes = lanes_of(buffer, np.arange(len(values)), 0, node.size)
    node.skip(lanes)
    lanes.bury()
    lanes.kill(lanes.pos != lanes.end)
    return [not broken for broken in buffer.broken.tolist()]


def walked(node: AvroNode, value: bytes) -> bool:
    try:
        return node.walk(value, 0, len(value), 1) == len(value)
    except BrokenError:
        return False


def alike(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return repr(left) == repr(right)


@settings(max_examples=60)
@given(data=st.data())
def test_columns_hold_what_fastavro_finds_by_any_path(data: st.DataObject) -> None:
    made: Made = data.draw(records())
    schema = fastavro.parse_schema(made.schema)
    values = [written(schema, value) for value in data.draw(st.lists(made.values, max_size=12))]
    paths = data.draw(st.lists(wanted(made), min_size=1, max_size=4))
    wants = [Want(str(at), type_, steps) for at, (steps, type_) in enumerate(paths)]
    arrays, buffer = read(compiled(made.schema), wants, values)
    assert not buffer.broken.any()
    for want in wants:
        rows = arrays[want.source].to_pylist()
        shows = buffer.shows.get(want.source, np.zeros(len(values), np.uint8)).tolist()
        assert arrays[want.source].type == want.type
        for row, value in enumerate(values):
            expected, show = found(fastavro.schemaless_reader(io.BytesIO(value), schema), want.steps, 0, want.type)
            assert shows[row] == show, want
            assert show is not Show.GOOD or alike(rows[row], expected), want


@settings(max_examples=60)
@given(data=st.data())
def test_what_is_cut_off_or_goes_on_is_broken_and_its_neighbours_are_not(data: st.DataObject) -> None:
    made: Made = data.draw(records())
    schema, node = fastavro.parse_schema(made.schema), compiled(made.schema)
    good = [written(schema, value) for value in data.draw(st.lists(made.values, min_size=1, max_size=3))]
    bad = [part for value in good for part in prefixes(value)]
    bad += [value + more for value in good if value for more in (b"\0", value)]
    mixed = data.draw(st.permutations([(value, True) for value in good] + [(value, False) for value in bad]))
    values = [value for value, _ in mixed]
    steps, type_ = data.draw(wanted(made))
    arrays, buffer = read(node, [Want("x", type_, steps)], values)
    assert [not broken for broken in buffer.broken.tolist()] == [whole for _, whole in mixed]
    rows = arrays["x"].to_pylist()
    for row in np.flatnonzero(~buffer.broken).tolist():
        alone, _ = read(node, [Want("x", type_, steps)], [values[row]])
        assert alike(rows[row], alone["x"].to_pylist()[0])


@settings(max_examples=60)
@given(data=st.data())
def test_any_bytes_are_taken_or_refused_alike_whichever_way_they_are_passed(data: st.DataObject) -> None:
    made: Made = data.draw(records())
    schema, node = fastavro.parse_schema(made.schema), compiled(made.schema)
    whole = [written(schema, value) for value in data.draw(st.lists(made.values, min_size=1, max_size=3))]
    values = whole + data.draw(st.lists(st.binary(max_size=24), max_size=12))
    for value in whole:
        if value:
            changed = bytearray(value)
            changed[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
            values.append(bytes(changed))
    taken = skipped(node, values)
    assert taken == [skipped(node, [value])[0] for value in values]
    assert taken == [walked(node, value) for value in values]


LIST = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "v", "type": "long"}, {"name": "next", "type": ["null", "L"]}],
}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"v": depth, "next": None}
    for at in reversed(range(depth)):
        value = {"v": at, "next": value}
    return value


def test_records_of_a_type_that_holds_itself_are_read_as_deep_as_asked() -> None:
    schema, node = fastavro.parse_schema(LIST), compiled(LIST)
    values = [written(schema, nested(depth)) for depth in (0, 1, 2, 30)]
    wants = [
        Want("near", pa.int64(), (PathStep("v"),)),
        Want("far", pa.int64(), (*[PathStep("next")] * 2, PathStep("v"))),
    ]
    arrays, buffer = read(node, wants, values)
    assert arrays["near"].to_pylist() == [0, 0, 0, 0]
    assert arrays["far"].to_pylist() == [None, None, 2, 2]
    assert not buffer.broken.any()


def test_a_type_within_itself_deeper_than_the_bound_is_broken() -> None:
    schema, node = fastavro.parse_schema(LIST), compiled(LIST)
    assert skipped(node, [written(schema, nested(depth)) for depth in (60, 300)]) == [True, False]


WORDS = {
    "type": "record",
    "name": "W",
    "fields": [
        {"name": "words", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": "long"}},
        {"name": "last", "type": "long"},
    ],
}


@pytest.mark.parametrize("asked", ["words", "sizes", "last"])
def test_long_arrays_are_read_whole_among_short_ones(asked: str) -> None:
    schema, node = fastavro.parse_schema(WORDS), compiled(WORDS)
    lengths = [0, 1, 40, 20_000, 3]
    records = [
        {"words": [f"w{at}" for at in range(length)], "sizes": {str(at): at for at in range(length)}, "last": length}
        for length in lengths
    ]
    steps = {"words": (PathStep("words"),), "sizes": (PathStep("sizes"), PathStep("39")), "last": (PathStep("last"),)}
    type_ = pa.list_(pa.binary()) if asked == "words" else pa.int64()
    arrays, buffer = read(node, [Want("x", type_, steps[asked])], [written(schema, record) for record in records])
    assert not buffer.broken.any()
    expected = {
        "words": [[word.encode() for word in record["words"]] for record in records],  # type: ignore[attr-defined]
        "sizes": [None, None, 39, 39, None],
        "last": lengths,
    }
    assert arrays["x"].to_pylist() == expected[asked]


def in_blocks(items: Sequence[int], size: int, *, sized: bool) -> bytes:
    """An array of longs in blocks, as writers that stream make it."""
    out = bytearray()
    for at in range(0, len(items), size):
        block = items[at : at + size]
        body = b"".join(written("long", item) for item in block)
        out += (
            written("long", -len(block)) + written("long", len(body)) + body
            if sized
            else written("long", len(block)) + body
        )
    return bytes(out) + b"\0"


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("asked", ["items", "last"])
def test_arrays_of_many_blocks_are_read_in_order(asked: str, sized: bool) -> None:
    schema = {
        "type": "record",
        "name": "B",
        "fields": [{"name": "items", "type": {"type": "array", "items": "long"}}, {"name": "last", "type": "long"}],
    }
    lists = [[at * 1000 for at in range(count)] for count in (0, 1, 7, 300, 5)]
    values = [in_blocks(items, 2, sized=sized) + written("long", len(items)) for items in lists]
    type_ = pa.list_(pa.int64()) if asked == "items" else pa.int64()
    arrays, buffer = read(compiled(schema), [Want("x", type_, (PathStep(asked),))], values)
    assert not buffer.broken.any()
    assert arrays["x"].to_pylist() == (lists if asked == "items" else [len(items) for items in lists])


@pytest.mark.parametrize("count", [2**62, -(2**62), -(2**63), 2**31, 10_000])
@pytest.mark.parametrize("items", ["long", "double", "string", "null"])
def test_a_count_beyond_the_record_breaks_it_and_takes_no_memory(items: str, count: int) -> None:
    schema = {"type": "record", "name": "C", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    value = written("long", count) + b"\0" * 8
    node = compiled(schema)
    assert skipped(node, [value, b"\0", value]) == [False, True, False]
    assert not walked(node, value)
    if items != "null":
        type_ = pa.list_(pa.binary() if items == "string" else pa.float64())
        arrays, buffer = read(node, [Want("x", type_, (PathStep("a"),))], [value, b"\0", value])
        assert buffer.broken.tolist() == [True, False, True]
        assert arrays["x"].to_pylist()[1] == []


@given(
    unscaled=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-9999, 9999) | st.integers(-(2**90), 2**90)),
    scale=st.integers(0, 30),
)
def test_decimals_are_the_nearest_floats_and_exact_texts(unscaled: list[int], scale: int) -> None:
    import decimal

    kind = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": scale}
    schema = {"type": "record", "name": "D", "fields": [{"name": "d", "type": kind}]}
    exact = [decimal.Decimal(number).scaleb(-scale, decimal.Context(prec=60)) for number in unscaled]
    values = [written(fastavro.parse_schema(schema), {"d": each}) for each in exact]
    wants = [Want("float", pa.float64(), (PathStep("d"),)), Want("text", pa.binary(), (PathStep("d"),))]
    arrays, _ = read(compiled(schema), wants, values)
    assert arrays["float"].to_pylist() == list(map(float, exact))
    assert arrays["text"].to_pylist() == [format(each, "f").encode() for each in exact]


@pytest.mark.parametrize(
    ("logical", "unit", "stored", "expected"),
    [
        ("timestamp-millis", None, 1_700_000_000_123, 1_700_000_000_123),
        ("timestamp-micros", None, 1_700_000_000_123_999, 1_700_000_000_123),
        ("timestamp-micros", None, -1, -1),
        ("local-timestamp-nanos", None, 1_700_000_000_123_999_999, 1_700_000_000_123),
        ("timestamp-millis", "us", 1_700_000_000_123, 1_700_000_000_123),
        ("timestamp-micros", "ns", 1_700_000_000_123_999, 1_700_000_000_123),
        ("timestamp-millis", "s", 1_700_000_000_123, 1_700_000_000_123),
        ("timestamp-millis", "ns", 2**62, None),
        (None, None, 1_700_000_000_123, 1_700_000_000_123),
        (None, "us", 1_700_000_000_123_999, 1_700_000_000_123),
    ],
)
def test_a_logical_time_is_the_event_time_whatever_its_unit(
    logical: str | None, unit: Any, stored: int, expected: int | None
) -> None:
    kind = {"type": "long", "logicalType": logical} if logical else "long"
    writer = {"type": "record", "name": "T", "fields": [{"name": "at", "type": kind}, {"name": "x", "type": "int"}]}
    time = TimeFormat(unit=unit) if unit else None
    at = Field(name="event_time", source="at", dtype="int64", time=time)
    schema = Schema(features=(Field(name="x", source="x", dtype="int32"),), event_time=at)
    decoder = AvroDecoder(schema, json.dumps(writer), "t.avsc")
    decoded = decode_chunk(chunk_of([written("long", stored) + written("int", 1)]), decoder)
    if expected is None:
        assert [refused.reason for refused in decoded.refused] == [Reason.OUT_OF_RANGE]
    else:
        assert decoded.event_times.tolist() == [expected]


def test_arrays_of_items_without_bytes_are_refused_whichever_way_they_are_passed() -> None:
    fields = [{"name": "a", "type": {"type": "array", "items": "null"}}, {"name": "b", "type": "double"}]
    schema = {"type": "record", "name": "N", "fields": fields}
    empty, filled = (written(fastavro.parse_schema(schema), {"a": [None] * count, "b": 1.0}) for count in (0, 3))
    node = compiled(schema)
    assert skipped(node, [empty, filled]) == [True, False]
    assert [walked(node, value) for value in (empty, filled)] == [True, False]


def test_a_record_cut_off_in_a_long_key_that_is_asked_for_is_broken_alone() -> None:
    key = "k" * 40
    node = compiled({"type": "map", "values": "int"})
    whole = written({"type": "map", "values": "int"}, {key: 5})
    want = Want("x", pa.int64(), (PathStep(key),))
    for cut in range(len(whole)):
        arrays, buffer = read(node, [want], [whole, whole[:cut]])
        assert buffer.broken.tolist() == [False, True]
        assert arrays["x"].to_pylist()[0] == 5


def test_aliases_and_defaults_hold_in_maps_and_defaults_of_bytes_are_their_codes() -> None:
    renamed = {"name": "new", "type": "int", "aliases": ["old"]}
    value = {"type": "record", "name": "V", "fields": [renamed, {"name": "added", "type": "int", "default": 7}]}
    raw = {"name": "raw", "type": "bytes", "default": "\u00ff"}
    values = {"name": "m", "type": {"type": "map", "values": value}}
    known, named = parsed(json.dumps({"type": "record", "name": "R", "fields": [values, raw]}), "it")
    old = {"type": "record", "name": "V", "fields": [{"name": "old", "type": "int"}]}
    writer = {"type": "record", "name": "R", "fields": [{"name": "m", "type": {"type": "map", "values": old}}]}
    wants = [
        Want("new", pa.int64(), (PathStep("m"), PathStep("a"), PathStep("new"))),
        Want("added", pa.int64(), (PathStep("m"), PathStep("a"), PathStep("added"))),
        Want("raw", pa.binary(), (PathStep("raw"),)),
    ]
    buffer = buffer_of([written(writer, {"m": {"a": {"old": 3}}})])
    arrays = Planner(known_of(known, named)).plan(compiled(writer), wants).read(lanes_of(buffer, np.arange(1), 0, None))
    assert {name: array.to_pylist() for name, array in arrays.items()} == {"new": [3], "added": [7], "raw": [b"\xff"]}


def test_a_schema_nested_too_deeply_is_refused_by_name() -> None:
    schema: Any = "int"
    for level in range(300):
        schema = {"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": schema}]}
    with pytest.raises(ConfigError, match="schema 9 is no Avro schema that can be read: it is nested too deeply"):
        node_of(*parsed(json.dumps(schema), "schema 9"), "schema 9")
