"""Fields that nobody reads are named when they appear and vanish, never by chance, and never with a value."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from millrace.app.settings.sections.records import RecordsSettings, to_decoder, to_look
from millrace.consumers.records import Partition
from millrace.pipelines.formats.csv import CsvFormat
from millrace.pipelines.formats.example import ExampleFormat
from millrace.pipelines.formats.json import JsonFormat
from millrace.pipelines.formats.row_format import RowFormat
from millrace.pipelines.gates.input_gate import InputGate
from millrace.pipelines.stream.decode import decode_chunk
from millrace.training.telemetry.events import EventKind, Severity
from millrace.training.trainer.inputs.input_watch import Inputs
from millrace.training.trainer.inputs.unread_fields import MOST_FIELDS, UnreadFields
from tests.pipelines.stream.test_decode import chunk_of
from tests.training.trainer.inputs.world import call_of

Types = Mapping[str, str]


def after(fields: UnreadFields, records: int, types: Callable[[int], Types]) -> tuple[list[str], list[str]]:
    """Return what is found to have appeared and vanished while some records come, eight a window."""
    appeared, vanished = list[str](), list[str]()
    for at in range(records):
        fields.note(("clicks:0", 512 * at, 1000 * at), types(at))
        if at % 8 == 7:
            new, gone = fields.news()
            appeared += [one.source for one in new]
            vanished += [one.source for one in gone]
    return appeared, vanished


def test_a_field_that_comes_and_goes_for_good_is_named_within_some_records() -> None:
    fields = UnreadFields()
    assert after(fields, 500, lambda _: {"app": "text"}) == ([], [])
    assert after(fields, 8, lambda _: {"app": "text", "geo.lat": "number"}) == (["geo.lat"], [])
    assert after(fields, 40, lambda _: {"geo.lat": "number"}) == ([], ["app"])
    first = fields.all()[0]
    assert (first.source, first.vanished is not None, first.ended) == ("app", True, ("clicks:0", 512 * 7, 7000))
    assert after(fields, 8, lambda _: {"app": "text", "geo.lat": "number"}) == ([], [])
    assert all(one.vanished is None for one in fields.all()), "it is there again, which is no news"


@pytest.mark.parametrize("share", [0.5, 0.05, 0.005])
def test_rare_fields_are_not_named_by_chance(share: float) -> None:
    random = np.random.default_rng(7)
    named = 0
    for _ in range(20):
        held = random.random((3000, 10)) < share
        rows = [{f"f{n}": "text" for n in np.flatnonzero(row).tolist()} for row in held]
        found = after(UnreadFields(), len(rows), rows.__getitem__)
        named += sum(map(len, found))
    assert named == 0


def test_a_field_that_is_there_by_day_is_named_no_more_once_that_is_known() -> None:
    fields = UnreadFields()
    days = [after(fields, 600, lambda at: {"a": "text", **({"day": "text"} if at < 300 else {})}) for _ in range(6)]
    assert days[0] == ([], ["day"])
    assert days[1:] == [([], [])] * 5


def test_names_that_are_data_and_too_many_fields_are_bounded() -> None:
    fields = UnreadFields()
    after(fields, 100, lambda at: {f"by_user.{at}": "integer", "x": "text" if at % 2 else "integer"})
    assert {one.source: {*one.types} for one in fields.all()} == {"by_user": {"object"}, "x": {"text", "integer"}}
    after(fields, 1000, lambda at: {f"name {at}": "text"})
    assert len(fields.all()) == MOST_FIELDS
    again = UnreadFields(read={"x"})
    again.load(fields.array())
    assert [one for one in fields.all() if one.source != "x"] == again.all()
    again.load(None)
    assert again.all() == []


def test_objects_by_names_that_are_data_are_one_field_and_hide_no_other() -> None:
    fields = UnreadFields()
    assert after(fields, 400, lambda at: {f"sessions.{at}.page": "text", f"sessions.{at}.ms": "integer"}) == ([], [])
    assert [(one.source, one.last) for one in fields.all()] == [("sessions", 399)]
    with_coupon = after(fields, 40, lambda at: {f"sessions.{at}.ms": "integer", "coupon": "text"})
    assert with_coupon == (["coupon"], [])
    # Each of them a map at first.
    fields = UnreadFields()
    after(fields, 6000, lambda at: {f"of.{at // 60}.{at % 60}": "integer"})
    assert [one.source for one in fields.all()] == ["of"]
    assert fields.all()[0].records <= fields.records
    # Many fields within few objects are no map.
    fields = UnreadFields()
    after(fields, 10, lambda _: {**{f"payload.part{n // 6}.{n}": "text" for n in range(60)}, "payload.x": "text"})
    assert len(fields.all()) == 61


def test_odd_names_and_lists_of_lists_are_bounded_and_can_be_shown() -> None:
    deep = (
        json.dumps({"a": 1}).encode()[:-1] + b', "deep": ' + b"[" * 600 + b"1" + b"]" * 600 + b', "b\\ud800": {"c": 2}}'
    )
    types = JsonFormat().types(deep, framed=False)
    assert types is not None
    assert {**types, "deep": ""} == {"a": "integer", "deep": "", "b?.c": "integer"}
    assert types["deep"] == "list of " * 8 + "list"
    mixed = [[[n, n + 0.5], [None, True], ["a", [n] * n]] for n in range(8)]
    types = JsonFormat().types(
        json.dumps({"mixed": [mixed, [mixed, [mixed], [[n] for n in mixed]]]}).encode(), framed=False
    )
    assert types is not None
    assert len(types["mixed"]) <= 100


def test_the_types_of_a_record_are_those_of_its_nested_fields_and_hold_no_value() -> None:
    record = {"a": 1, "b.c": "secret", "d": {"e": None, "f": [1.5, 2]}, "g": [{"h": True}], "i": {}, "j": []}
    types = JsonFormat().types(json.dumps(record).encode(), framed=False)
    assert types == {
        "a": "integer",
        r"b\.c": "text",
        "d.e": "null",
        "d.f": "list of integer or number",
        "g[].h": "bool",
        "i": "object",
        "j": "list",
    }
    assert JsonFormat().types(b"\0\0\0\0\7" + json.dumps({"a": 1}).encode(), framed=True) == {"a": "integer"}
    assert JsonFormat().types(b"{", framed=False) is None
    assert JsonFormat().types(b"[1]", framed=False) is None


class Pairs(RowFormat):
    """Records of a user's own format."""

    def read(self, value: bytes) -> Mapping[str, Any]:
        pairs = (pair.split("=") for pair in value.decode().split(";"))
        return {name: float(one) if one[0].isdigit() else one for name, one in pairs}

    def write(self, row: Mapping[str, Any]) -> bytes:
        raise NotImplementedError


def test_examples_and_formats_of_ones_own_name_their_fields_too() -> None:
    kinds = {
        "a.b": tf.train.Feature(int64_list=tf.train.Int64List(value=[1])),
        "many": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0])),
        "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"secret"])),
        "gone": tf.train.Feature(),
        "x" * 101: tf.train.Feature(int64_list=tf.train.Int64List(value=[1])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=kinds)).SerializeToString()
    assert ExampleFormat().types(example, framed=False) == {
        r"a\.b": "integer",
        "many": "list of number",
        "text": "bytes",
        "gone": "null",
    }
    assert ExampleFormat().types(b"\x0a\x05ab", framed=False) is None
    assert ExampleFormat().types(b"", framed=False) is None
    assert Pairs().types(b"a=1;c=red;d.e=2", framed=False) == {"a": "number", "c": "text"}
    assert Pairs().types(b"a", framed=False) is None
    assert ExampleFormat.names_fields
    assert Pairs.names_fields
    assert not CsvFormat.names_fields


RECORDS = RecordsSettings.model_validate(
    {
        "format": "json",
        "features": {"x": {"dtype": "float32"}},
        "label": {"field": "y", "dtype": "float32"},
        "slices": {"app": "string"},
        "where": {"kind": "click"},
    }
)


def record(at: int, more: Mapping[str, Any]) -> bytes:
    return json.dumps({"x": at, "y": 0, "app": "a", "kind": "click", "old": 1, **more}).encode()


@pytest.mark.row(42)
def test_a_field_that_appears_is_an_event_whatever_chunks_it_comes_in() -> None:
    looks, decoder, told = to_look(RECORDS), to_decoder(RECORDS), list[tuple[EventKind, str, Any]]()

    def report(kind: EventKind, text: str, severity: Severity = Severity.INFO, **facts: Any) -> None:
        told.append((kind, text, facts))

    states = list[Any]()
    for cut in (3000, 4000):
        told.clear()
        gate = InputGate(decoder.schema)
        inputs = Inputs(gate, ["app"], report)
        gate.begin({})
        for start in range(0, 60_000, cut):
            values = [record(at, {"geo": {"lat": 1.5}} if at >= 36_000 else {}) for at in range(start, start + cut)]
            chunk = replace(chunk_of(values, start), partition=Partition("clicks", 0))
            chunk = replace(chunk, timestamps=np.arange(start, start + cut))
            decoded = decode_chunk(chunk, decoder)
            assert gate.admits(replace(decoded, unread=looks(chunk, decoded)))
        for end in range(500, 60_500, 500):
            inputs.called(call_of(end - 500, end))
        states.append(inputs.snapshot().arrays["unread"].tobytes())
        [(kind, text, facts)] = told
        assert kind is EventKind.UNREAD_FIELDS
        assert text.startswith("Fields that nobody reads: geo.lat (number) appeared, since 1970-01-01T00:00:3")
        assert (facts["appeared"], facts["vanished"]) == (["geo.lat"], [])
        assert 36_000 <= facts["offset"] < 36_000 + 8 * JsonFormat.looks
        assert inputs.view is not None
        assert [one.source for one in inputs.view.unread] == ["geo.lat", "old"]
    assert states[0] == states[1]
