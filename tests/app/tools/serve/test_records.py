"""Records as they are in Kafka, sent to `:predict`: what the model gets of them is what it gets of their features."""

import base64
import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from google.protobuf import message_factory

from millrace.app.settings import Settings, load
from millrace.app.settings.exported_records import read_exported_records, write_exported_records
from millrace.app.settings.sections.records import to_schema
from millrace.app.tools.serve.record_inputs import RecordReaders
from millrace.pipelines.formats.shared.descriptors import descriptor_set, message_of
from millrace.training.model.export.served_module import ServedModel, ServedModule
from tests.app.tools.serve.exports_rig import HalfPlus, publish
from tests.app.tools.serve.server_rig import Server, serving

pytestmark = pytest.mark.tensorflow
CONFIG = """\
name: clicks
kafka:   {{bootstrap_servers: [localhost:9092], topics: [clicks]}}
records: {records}
model:   {{build: ./model.py:build_model}}
checkpoints: {{path: ./checkpoints}}
serve: {{exports: ./exports/clicks, listen: "127.0.0.1:0", poll: 100ms, drain: 0s}}
{more}
"""
NUMBERS = "price: float32, size: {dtype: int32, shape: [2], max: 99}"
LABELS = "label: {clicked: float32}, weight: {field: importance}, event_time: {field: at}"
AVRO = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "price", "type": ["null", "double"]},
        {"name": "size", "type": {"type": "array", "items": "int"}},
        {"name": "color", "type": "string"},
        {"name": "clicked", "type": ["null", "float"]},
    ],
}
PROTO = """
syntax = "proto3";
message Click { double price = 1; repeated int32 size = 2; string color = 3; optional float clicked = 4; }
"""
COLOR = "color: {dtype: int32, one_of: [red, green], field: color}"
PRICE = "price: {dtype: float32, missing: -1.5}"


class Echo(ServedModule):
    """Answers with what a model of this schema would get."""

    def _answer(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        return {name: tf.identity(column) for name, column in self.model_inputs(raw).items()}


@dataclass(frozen=True)
class Case:
    """Records of a format, and the features of the same."""

    records: str
    """The section of the settings."""
    sent: list[Any]
    instances: list[dict[str, Any]]
    beside: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def b64(raw: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(raw).decode()}


def avro(**values: Any) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), values)
    return out.getvalue()


def protobuf(folder: Path, **values: Any) -> bytes:
    file = folder / "click.proto"
    file.write_text(PROTO)
    message = message_factory.GetMessageClass(message_of(descriptor_set(file), None))(**values)
    return bytes(message.SerializeToString())


def example(**values: Any) -> bytes:
    features = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        if isinstance(value, bytes)
        else tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        for name, value in values.items()
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


TWO = [{"price": 2.25, "size": [3, 4], "color": "green"}, {"price": -1.5, "size": [5, 6], "color": "red"}]
NUMBERED = [{"price": 2.25, "size": [3, 4]}, {"price": 0.1, "size": [5, 6]}]
SIZE = "size: {dtype: int32, shape: [2]}"
CLICKED = "label: {clicked: float32}"


def of_json(_folder: Path) -> Case:
    features = (
        f"age: {{dtype: int32, field: user.age, missing: 30}}, price: float32, {COLOR}, "
        "tags: {dtype: string, shape: [3], pad: '', field: 'items[].tag'}, "
        "seen: {dtype: float32, shape: [4], pad: 0.5, length: count}, who: {dtype: string, field: $key}, "
        "source: {dtype: int32, field: $header.source}, stamp: {dtype: int64, field: $timestamp}"
    )
    first = {"user": {"age": 41, "name": "é"}, "price": 0.30000000000000004, "items": [{"tag": "a"}, {"tag": "b"}]}
    first |= {"seen": [1, 2.5], "color": "green", "other": {"records": [1]}}
    second = {"user": {}, "price": -0.0, "items": [], "seen": [], "color": "red", "clicked": "is not looked at"}
    beside = {"keys": ["ann", b64(b"\xff")], "headers": [{"source": "7"}, {"source": "8", "x": None}]}
    same = [
        {"age": 41, "price": 0.3, "tags": ["a", "b"], "seen": [1.0, 2.5], "color": "green"},
        {"age": 30, "price": -0.0, "tags": [], "seen": [], "color": "red"},
    ]
    same[0] |= {"who": "ann", "source": 7, "stamp": 9}
    same[1] |= {"who": b64(b"\xff"), "source": 8, "stamp": 10}
    return Case(f"{{features: {{{features}}}, {LABELS}}}", [first, second], same, {**beside, "timestamps": [9, 10]})


def of_avro(_folder: Path) -> Case:
    sent = [b64(avro(price=2.25, size=[3, 4], color="green", clicked=None))]
    sent += [b64(avro(price=None, size=[5, 6], color="red", clicked=1.0))]
    section = "format: avro, avro: {schema_file: ./click.avsc}"
    return Case(
        f"{{{section}, features: {{{PRICE}, {SIZE}, {COLOR}}}, {CLICKED}}}",
        sent,
        TWO,
        files={"click.avsc": json.dumps(AVRO)},
    )


def of_protobuf(folder: Path) -> Case:
    sent = [b64(protobuf(folder, price=2.25, size=[3, 4], color="green", clicked=1.0))]
    sent += [b64(protobuf(folder, price=-1.5, size=[5, 6], color="red"))]
    section = "format: protobuf, protobuf: {descriptor: ./click.proto}"
    return Case(
        f"{{{section}, features: {{{PRICE}, {SIZE}, {COLOR}}}, {CLICKED}}}", sent, TWO, files={"click.proto": PROTO}
    )


def of_example(_folder: Path) -> Case:
    sent = [b64(example(price=2.25, color=b"green", clicked=1.0)), b64(example(color=b"red"))]
    rows = [{"price": 2.25, "color": "green"}, {"price": -1.5, "color": "red"}]
    return Case(f"{{format: example, features: {{{PRICE}, {COLOR}}}, {CLICKED}}}", sent, rows)


def of_csv(_folder: Path) -> Case:
    sent = ["2.25,3,4,,,whatever", b64(b"0.1,5,6,1,2,3")]
    return Case(f"{{format: csv, features: {{{NUMBERS}}}, {LABELS}}}", sent, NUMBERED)


def of_named_columns(_folder: Path) -> Case:
    layout = "csv: {columns: [clicked, name, size, color], delimiter: ';', lists: '|'}"
    rows = [{"name": "2,25", "size": [3, 4], "color": "green"}, {"name": "0.1", "size": [5, 6], "color": "red"}]
    return Case(
        f"{{format: csv, {layout}, features: {{name: string, {SIZE}, {COLOR}}}, {CLICKED}}}",
        ['x;"2,25";3|4;green', ";0.1;5|6;red"],
        rows,
    )


def of_raw(_folder: Path) -> Case:
    whole = struct.pack("<fii", 2.25, 3, 4) + struct.pack("<ffq", float("nan"), -1.0, -5)
    features_alone = struct.pack("<fii", 0.1, 5, 6)
    return Case(f"{{format: raw, features: {{{NUMBERS}}}, {LABELS}}}", [b64(whole), b64(features_alone)], NUMBERED)


def of_text(_folder: Path) -> Case:
    fields = "features: {words: {dtype: string, field: $value}}, label: {clicked: {dtype: float32, field: $key}}"
    return Case(f"{{format: text, {fields}}}", ["good ü", b64(b"bad")], [{"words": "good ü"}, {"words": "bad"}])


def of_images(_folder: Path) -> Case:
    picture = bytes(tf.io.encode_png(tf.constant([[[7], [200]]], tf.uint8)).numpy())
    shown = "shown: {dtype: float32, shape: [1, 2, 1], image: bytes, field: $value}"
    label = "label: {kind: {dtype: float32, field: $header.kind}}"
    return Case(f"{{format: bytes, features: {{{shown}}}, {label}}}", [b64(picture)], [{"shown": [[[7.0], [200.0]]]}])


CASES: list[Callable[[Path], Case]] = [
    of_json,
    of_avro,
    of_protobuf,
    of_example,
    of_csv,
    of_named_columns,
    of_raw,
    of_text,
    of_images,
]


def settings_of(folder: Path, records: str, more: str = "", files: Mapping[str, str] | None = None) -> Settings:
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    (folder / "model.py").touch()
    (folder / "clicks.yaml").write_text(CONFIG.format(records=records, more=more))
    return load(folder / "clicks.yaml", {}).settings


@contextmanager
def answering(folder: Path, case: Case) -> Iterator[Server]:
    """Serve a version of these records from a folder in which neither schema nor descriptor is left."""
    settings = settings_of(folder, case.records, files=case.files)
    model = Echo(ServedModel(model=None, schema=to_schema(settings.records), preprocess=None))
    publish(folder / "exports" / "clicks", 1, model, model.inputs(), settings)
    for name in case.files:
        (folder / name).write_text("this is no schema")
    with serving(folder, "clicks") as server:
        server.answers_with(1)
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("made", CASES)
def test_records_are_answered_as_their_features_are_to_the_bit(made: Callable[[Path], Case], tmp_path: Path) -> None:
    case = made(tmp_path)
    with answering(tmp_path, case) as server:
        of_features = server.predict({"instances": case.instances})
        of_records = server.predict({"records": case.sent, **case.beside})
    assert of_features.status_code == 200, of_features.text
    assert of_records.content == of_features.content


@pytest.fixture(scope="module")
def json_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve a version of JSON records, whose key is a feature."""
    records = (
        "{features: {price: {dtype: float32, min: 0}, color: {dtype: int32, one_of: [red, green]}, "
        "size: {dtype: int32, shape: [2]}, age: {dtype: int32, field: user.age}, who: {dtype: string, field: $key}}, "
        "label: {clicked: float32}}"
    )
    with answering(tmp_path_factory.mktemp("json"), Case(records, [], [])) as server:
        yield server


GOOD = {"price": 1.5, "color": "red", "size": [1, 2], "user": {"age": 41}}


@pytest.mark.parametrize(
    ("record", "reason", "field"),
    [
        ({**GOOD, "price": "1.5"}, "wrong_type", "price"),
        ({**GOOD, "price": -1.5}, "out_of_range", "price"),
        ({**GOOD, "color": "pink"}, "not_allowed", "color"),
        ({**GOOD, "size": [1]}, "wrong_shape", "size"),
        ({**GOOD, "user": {}}, "missing", "user.age"),
        (None, "empty", None),
        ("no object", "malformed", None),
        ({"b64": "e30K"}, "missing", "price"),
    ],
)
def test_a_record_that_training_sets_aside_is_refused_with_the_same_reason_and_field(
    record: object, reason: str, field: str | None, json_server: Server
) -> None:
    answer = json_server.predict({"records": [GOOD, record, GOOD], "keys": ["a", "b", "c"]})
    assert answer.status_code == 400, answer.text
    assert answer.json()["refused"] == [{"index": 1, "reason": reason, "field": field}]
    named = "" if field is None else f", in the field '{field}'"
    assert answer.json()["error"].startswith(f"records[1] does not decode: {reason}{named}. ")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"records": []}, "No values in 'records'"),
        ({"records": {}}, "Expecting 'records' to be a list"),
        ({"records": [GOOD], "instances": [GOOD]}, "both 'instances' and 'records'"),
        ({"records": [GOOD]}, "the feature 'who' is read from the keys of records; send 'keys' beside 'records'"),
        ({"records": [GOOD], "keys": ["a", "b"]}, "'keys' is no list of 1"),
        ({"records": [GOOD], "keys": [7]}, "keys[0] is a whole number, 7"),
        ({"records": [GOOD], "keys": ["a"], "headers": ["x"]}, "headers[0] is no object"),
        ({"records": [GOOD], "keys": ["a"], "timestamps": [1.5]}, "timestamps[0] is no whole number of milliseconds"),
        ({"records": [{"b64": "!"}], "keys": ["a"]}, "records[0] holds no Base64"),
        # What a text quotes may be half of a surrogate pair, which UTF-8 has no bytes for.
        ('{"records": [{}], "keys": ["a"], "headers": [{"\\ud800": 5}]}', "headers[0].\ud800 is a whole number"),
        ('{"records": [{}], "signature_name": "\\ud800"}', "\ud800"),
    ],
)
def test_a_request_of_records_that_does_not_fit_says_where(body: object, said: str, json_server: Server) -> None:
    assert said in json_server.refused(body)


def test_the_text_of_a_json_record_reaches_the_decoder_as_it_was_sent(json_server: Server) -> None:
    record = '{"price": 3.00000000000000000001 ,"color":"gr\\u0065en", "size":[1,2], "user": {"age": 41}}'
    body = f' {{ "other" : {{"records": [1]}}, "records":\n[ {record},{record} ] , "keys": ["a","b"]}} '
    answer = json_server.predict(body)
    assert answer.status_code == 200, answer.text
    assert answer.json() == json_server.predict({"records": [json.loads(record)] * 2, "keys": ["a", "b"]}).json()
    for text, reason in (("1e99", "out_of_range"), ('3, "price": 4', "malformed"), ("NaN", "not_finite")):
        answer = json_server.predict(body.replace("3.00000000000000000001", text, 1))
        assert answer.json()["refused"][0]["reason"] == reason, text


def test_bytes_are_asked_for_where_the_format_is_not_text(tmp_path: Path) -> None:
    with answering(tmp_path, of_raw(tmp_path)) as server:
        assert "a record of format raw is bytes; send" in server.refused({"records": [[1.0, 2]]})
        cut = server.predict({"records": [b64(b"\0" * 11)]}).json()
        assert cut["refused"] == [{"index": 0, "reason": "malformed", "field": None}]


@pytest.mark.parametrize("made", CASES)
def test_what_an_export_holds_of_its_records_is_read_back_as_it_was(
    made: Callable[[Path], Case], tmp_path: Path
) -> None:
    case = made(tmp_path)
    settings = settings_of(tmp_path, case.records, files=case.files)
    (tmp_path / "version").mkdir()
    write_exported_records(settings, tmp_path / "version")
    records, named = read_exported_records(tmp_path / "version", None)
    assert (to_schema(records), records.csv, named) == (to_schema(settings.records), settings.records.csv, False)


def test_json_records_that_name_a_schema_need_no_registry_to_be_answered(tmp_path: Path) -> None:
    records = "{registry: {url: ['http://127.0.0.1:1']}, features: {price: float32}, label: {clicked: float32}}"
    with answering(tmp_path, Case(records, [], [])) as server:
        sent = [{"price": 2.5}, b64(b'\0\0\0\0\7{"price": 2.5}')]
        assert server.predict({"records": sent}).json() == {"predictions": [2.5, 2.5]}


def test_a_registry_that_is_away_is_no_fault_of_the_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = "{format: avro, registry: {url: ['http://127.0.0.1:1']}, features: {price: float32}}"
    with answering(tmp_path, Case(settings, [], [])) as server:
        body = json.dumps({"records": [b64(b"\0\0\0\0\7" + avro(price=1.0, size=[], color="", clicked=None))]})
        for sent in (body, body.replace('"r', '"\\u0072'), body.encode("utf-16-le")):
            answer = server.predict(sent)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            # The registry's address is for the log.
            assert answer.json() == {"error": "the schema of a record is not known yet; ask again later"}
    waited = [record for record in caplog.records if record.name.endswith("record_inputs")]
    assert ["127.0.0.1:1" in record.getMessage() for record in waited] == [True] * 3
    # The HTTP side's own thread waits for no registry.
    assert all((record.threadName or "").startswith("json") for record in waited)


@pytest.mark.parametrize(
    ("records", "more", "said"),
    [
        ("{features: {price: float32, who: string}}", "windows: {by: who, length: 3}", "the model learns sequences"),
        ("{features: {price: float32, at: {dtype: int64, field: $offset}}}", "", "the feature 'at' is read from $off"),
    ],
)
def test_a_model_that_no_single_record_answers_takes_features_alone(
    records: str, more: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "version").mkdir()
    write_exported_records(settings_of(tmp_path, records, more), tmp_path / "version")
    assert str(RecordReaders(None).of(tmp_path / "version")).startswith(said)


def test_a_version_of_an_earlier_millrace_says_to_export_again(tmp_path: Path) -> None:
    publish(tmp_path / "exports" / "half", 1, HalfPlus(1.0))
    with serving(tmp_path, "half") as server:
        server.answers_with(1)
        said = server.refused({"records": [{"x": 1.0}]})
        assert said.startswith("no 'records' are taken: this version was exported without what its records are")
        assert said.endswith("export a checkpoint again, or send features under 'instances'")
