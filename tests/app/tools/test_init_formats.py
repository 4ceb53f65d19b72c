"""What `init` makes of records that a schema describes, of Examples and of texts: a draft that decodes them."""

import io
import json
import os
import struct
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf.message_factory import GetMessageClass
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.app.settings import Settings, load, load_registry, to_decoder
from millrace.app.tools.init import topic_sample
from millrace.app.tools.init.column_roles import ChosenRoles, Roles, Task, cast
from millrace.app.tools.init.columns import columns_of
from millrace.app.tools.init.draft_files import Draft, write
from millrace.app.tools.init.drafted_config import DraftTarget, config_text
from millrace.app.tools.init.drafted_model import model_text
from millrace.app.tools.init.topic_sample import look_at, schema_hints
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.pipelines.formats.draft import Look
from millrace.pipelines.formats.image.images import image_shape
from millrace.pipelines.formats.shared.descriptors import compiled_texts, message_of
from millrace.pipelines.stream.decode import decode_chunk
from tests.app.tools.test_init import assert_the_model_starts, chunk_of
from tests.pipelines.formats.image.image_verdicts import JPEG, png
from tests.pipelines.registry.test_registry import Server, serving, wait_until

ROOT = Path(__file__).parents[3]
COUNT = 120
PLACE = DraftTarget(name="t", bootstrap_servers=("localhost:9092",), topic="t", held=1000)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order_id", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "buyer",
            "type": {
                "type": "record",
                "name": "Buyer",
                "fields": [
                    {"name": "age", "type": ["null", "int"]},
                    {"name": "land", "type": {"type": "enum", "name": "Land", "symbols": ["DE", "NO"]}},
                ],
            },
        },
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Item", "fields": [{"name": "price", "type": "double"}]},
            },
        },
        {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "photo", "type": "bytes"},
        {"name": "returned", "type": "boolean"},
    ],
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Land { DE = 0; NO = 1; }
message Buyer { optional int32 age = 1; Land land = 2; }
message Item { double price = 1; }
message Other { int32 x = 1; }
message Order {
  string order_id = 1; google.protobuf.Timestamp at = 2; Buyer buyer = 3; repeated Item items = 4; double cost = 5;
  bytes photo = 6; bool returned = 7;
}
"""


def order(number: int) -> dict[str, Any]:
    age = {} if number % 5 == 0 else {"age": 20 + number % 50}
    return {
        "order_id": f"o-{number}",
        "at": 1_790_000_000_000_000 + number * 10**6,
        "buyer": {**age, "land": ["DE", "NO"][number % 2]},
        "items": [{"price": 1.5 * at} for at in range(number % 4)],
        "cost": number / 4,
        "photo": b"\xff\xfe",
        "returned": number % 3 == 0,
    }


def avro() -> list[bytes]:
    from decimal import Decimal

    schema, values = fastavro.parse_schema(json.loads(json.dumps(AVRO))), []
    for number in range(COUNT):
        out, row = io.BytesIO(), order(number)
        fastavro.schemaless_writer(out, schema, {**row, "cost": Decimal(str(row["cost"]))})
        values.append(out.getvalue())
    return values


def protobuf() -> list[bytes]:
    message = GetMessageClass(message_of(compiled_texts({"order.proto": PROTO}, "order.proto", "test"), "Order"))
    rows = [order(number) for number in range(COUNT)]
    return [message(**{**row, "at": {"seconds": row["at"] // 10**6}}).SerializeToString() for row in rows]


def framed(values: list[bytes], *, indexes: bytes = b"") -> list[bytes]:
    return [b"\0" + struct.pack(">I", 7) + indexes + value for value in values]


def registry(server: Server, kind: str, text: str) -> str:
    server.answers["/schemas/ids/7"] = (200, {"schema": text, "schemaType": kind})
    return server.url


def drafted(look: Look, values: list[bytes], wanted: ChosenRoles, folder: Path) -> tuple[Settings, Roles]:
    """Write a draft; return its settings and roles after a check that it decodes every record."""
    roles = cast(columns_of(look.rows, look.nullable), wanted)
    write(folder, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    settings = load(folder / "millrace.yaml", {}).settings
    decoded = decode_chunk(chunk_of(values), to_decoder(settings.records, 10.0))
    assert decoded.refused == ()
    assert len(decoded) == COUNT
    if settings.records.event_time is not None:
        assert decoded.event_times[1] == 1_790_000_001_000
    return settings, roles


ORDERS: dict[str, Callable[[], tuple[list[bytes], str, str]]] = {
    "avro": lambda: (avro(), "order.avsc", json.dumps(AVRO)),
    "protobuf": lambda: (protobuf(), "order.proto", PROTO),
}


@pytest.mark.parametrize("form", ORDERS)
def test_records_of_a_schema_file_are_drafted_by_their_paths(form: str, tmp_path: Path) -> None:
    values, name, text = ORDERS[form]()
    (tmp_path / name).write_text(text)
    hints = schema_hints(None, tmp_path / name, "shop.Order" if form == "protobuf" else None, tmp_path / "out")
    look = look_at(values, hints=hints)
    assert look.format == form
    settings, roles = drafted(look, values, ChosenRoles(label="returned", event_time="at"), tmp_path / "out")
    assert roles.task is Task.BINARY
    assert [column.source for column in roles.features] == ["buyer.age", "buyer.land", "items[].price", "cost"]
    assert {column.source: column.why for column in roles.left_out} == {
        "order_id": "another text in every record",
        "photo": "bytes that are no text",
    }
    assert f"../{name}" in (tmp_path / "out" / "millrace.yaml").read_text()
    assert settings.records.features["buyer_age"].missing is not None


@pytest.mark.parametrize("form", ORDERS)
def test_what_a_schema_lets_be_absent_has_a_missing_value_if_no_record_lacks_it(form: str, tmp_path: Path) -> None:
    values, name, text = ORDERS[form]()
    (tmp_path / name).write_text(text)
    whole = values[1:5]  # the first lacks an age, and the sixth
    look = look_at(whole, hints=schema_hints(None, tmp_path / name, "Order" * (form == "protobuf") or None, tmp_path))
    columns = {column.source: column.absent for column in columns_of(look.rows, look.nullable)}
    assert (columns["buyer.age"], columns["cost"]) == (True, False)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.mark.parametrize("form", ORDERS)
def test_records_of_a_registry_are_drafted_with_its_url(form: str, server: Server, tmp_path: Path) -> None:
    values, _, text = ORDERS[form]()
    values = framed(values, indexes=b"\2\6" if form == "protobuf" else b"")
    url = registry(server, form.upper(), text)
    look = look_at(values, hints=schema_hints(load_registry(tmp_path, url, {}), None, None, tmp_path))
    settings, roles = drafted(look, values, ChosenRoles(label="returned", event_time="at"), tmp_path)
    assert settings.records.registry is not None
    assert settings.records.registry.url == (url,)
    assert [column.source for column in roles.features] == ["buyer.age", "buyer.land", "items[].price", "cost"]


def test_records_that_a_registry_describes_ask_for_it_in_one_line(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = framed(avro())
    with pytest.raises(ConfigError, match=r"a schema's number \(7\); name .*: --registry http://HOST:8081$"):
        look_at(values)
    missing = schema_hints(load_registry(tmp_path, server.url, {}), None, None, tmp_path)
    with pytest.raises(ConfigError, match=r"has no schema 7, with which the records begin"):
        look_at(values, hints=missing)
    server.answers["/schemas/ids/7"] = (503, b"")
    monkeypatch.setattr(topic_sample, "_REGISTRY_S", 0.3)
    environ = {"MILLRACE_RECORDS__REGISTRY__URL": server.url}
    away = schema_hints(load_registry(tmp_path, None, environ), None, None, tmp_path)
    with pytest.raises(MillraceError, match=r"--registry: .*: it answers HTTP 503"):
        look_at(values, hints=away)
    registry(server, "AVRO", json.dumps(AVRO))
    wait_until(lambda: server.asked.count(("/schemas/ids/7", None)) >= 4)


@pytest.mark.parametrize(
    ("name", "text", "message", "says"),
    [
        (
            "a.avsc",
            '{"type": "string"}',
            None,
            "most of the records are no values of .*name the schema that wrote them",
        ),
        ("a.avsc", "{", None, "--schema: .*a.avsc is no Avro schema"),
        ("a.proto", "message {", None, r"--schema: .*a.proto does not compile"),
        ("a.proto", PROTO, None, "--message: the descriptor has shop.Buyer, .*; name the one of the records"),
        ("a.proto", PROTO, "Nothing", "--message: .*'Nothing' is none"),
        ("a.bin", "hello", None, "--schema: .*a.bin is no descriptor set"),
    ],
)
def test_a_schema_file_that_does_not_fit_is_one_line(
    name: str, text: str, message: str | None, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=says) as raised:
        look_at(avro(), hints=schema_hints(None, tmp_path / name, message, tmp_path))
    assert "\n" not in str(raised.value)


def test_binary_records_without_a_schema_ask_for_one() -> None:
    with pytest.raises(
        ConfigError, match=r"if Avro or Protobuf, name the schema that wrote them: --schema record.avsc"
    ):
        look_at(avro())


@pytest.mark.tensorflow
def test_examples_are_recognised_and_their_lists_drafted(tmp_path: Path) -> None:
    from tensorflow.train import BytesList, Example, Feature, Features, FloatList, Int64List

    values = []
    for number in range(COUNT):
        features = {
            "user.id": Feature(int64_list=Int64List(value=[number])),
            "at": Feature(int64_list=Int64List(value=[1_790_000_000_000 + number * 1000])),
            "x": Feature(float_list=FloatList(value=[number / 3])),
            "grid": Feature(float_list=FloatList(value=[1.0, number])),
            "words": Feature(bytes_list=BytesList(value=[b"a", b"b"][: number % 3])),
            "kind": Feature(bytes_list=BytesList(value=[[b"cat", b"dog"][number % 2]])),
        }
        if number % 4 == 0:
            del features["x"]
        values.append(Example(features=Features(feature=features)).SerializeToString())
    look = look_at(values)
    assert look.format == "example"
    _, roles = drafted(look, values, ChosenRoles(label="kind", event_time="at"), tmp_path)
    assert sorted(column.source for column in roles.features) == ["grid", "words", "x"]
    assert [column.source for column in roles.left_out] == [r"user\.id"]


REVIEWS = ["a film that I liked", "no, not at all", "what a waste", "good {enough} for me", "so\tso"]


def test_plain_texts_are_learnt_by_their_words_with_a_label_beside() -> None:
    values = [f"{REVIEWS[number % 5]} {number}".encode() for number in range(COUNT)]
    beside = [topic_sample.beside_of(None, [("stars", b"%d" % (number % 5))]) for number in range(COUNT)]
    look = look_at(values, beside=beside)
    roles = cast(columns_of(look.rows), ChosenRoles(label="$header.stars"))
    assert (look.format, roles.task, [column.source for column in roles.features]) == ("text", Task.CLASSES, ["$value"])
    assert 'value: {dtype: string, field: "$value"}' in config_text(PLACE, look, roles)


def test_numbers_named_as_identities_are_hashed_or_left_out() -> None:
    rows = [{"user_id": n % 40 * 1000, "deviceId": n % 118 * 7, "paid": n % 7, "y": n % 2} for n in range(COUNT)]
    roles = cast(columns_of(look_at([json.dumps(row).encode() for row in rows]).rows), ChosenRoles(label="y"))
    assert {column.source: str(column.kind) for column in roles.features} == {
        "user_id": "a whole number of few values",
        "paid": "a whole number of few values",
    }
    (left_out,) = roles.left_out
    assert (left_out.source, left_out.is_identity) == ("deviceId", True)


def test_options_of_schemas_are_listed_in_the_help() -> None:
    shown = CliRunner().invoke(application, ["init", "--help"], env={"COLUMNS": "200"}).output
    assert all(option in shown for option in ("--registry", "--schema", "--message"))


def test_json_behind_a_schemas_number_is_drafted_with_the_registry(server: Server, tmp_path: Path) -> None:
    plain = [{**order(number), "photo": None, "at": number * 1000 + 1_790_000_000_000} for number in range(COUNT)]
    values = framed([json.dumps(row).encode() for row in plain])
    hints = schema_hints(load_registry(tmp_path, registry(server, "JSON", "{}"), {}), None, None, tmp_path)
    look = look_at(values, hints=hints)
    settings, roles = drafted(look, values, ChosenRoles(label="returned", event_time="at"), tmp_path)
    assert (settings.records.format, settings.records.registry is not None) == ("json", True)
    assert {column.source for column in roles.features} == {"buyer.age", "buyer.land", "items[].price", "cost"}


IMAGES = [png([bytes([number, 9])] * 2, 2) for number in range(COUNT)]
IN_FIELDS = [json.dumps({"post": {"photo": b64encode(image).decode()}}).encode() for image in IMAGES]


def drafted_for_images(values: list[bytes], headers: list[list[tuple[str, bytes]]], folder: Path) -> Settings:
    """Write a draft that learns the images from the label in the headers; return its settings."""
    look = look_at(values, beside=[topic_sample.beside_of(None, each) for each in headers])
    roles = cast(columns_of(look.rows), ChosenRoles(label="$header.kind"))
    write(folder, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    return load(folder / "millrace.yaml", {}).settings


@pytest.mark.tensorflow
@pytest.mark.parametrize("held", ["whole", "field"])
def test_images_are_drafted_with_a_shape_and_decode_unless_they_are_cut(held: str, tmp_path: Path) -> None:
    values = IMAGES if held == "whole" else IN_FIELDS
    headers = [[("kind", [b"cat", b"dog"][number % 2])] for number in range(COUNT)]
    settings = drafted_for_images(values, headers, tmp_path)
    (photo,) = settings.records.features.values()
    assert (photo.image, photo.shape) == ("bytes" if held == "whole" else "base64", (2, 2, 1))
    chunk = replace(chunk_of([*values, values[0][:-9]]), headers=[*headers, headers[0]])
    decoded = decode_chunk(chunk, to_decoder(settings.records))
    assert (len(decoded), [one.offset for one in decoded.refused]) == (COUNT, [COUNT])


@pytest.mark.nightly  # in the gate `test_images` of the integration drafts a model of images in a field, which learns
@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_drafted_model_of_convolutions_starts(tmp_path: Path) -> None:
    headers = [[("kind", [b"cat", b"dog"][number % 2])] for number in range(COUNT)]
    assert_the_model_starts(drafted_for_images(IN_FIELDS, headers, tmp_path))


PICTURES = [
    (["grey"] * 3, (20, 30), (20, 30, 1)),
    (["grey", "grey", "colour"], (20, 30), (20, 30, 3)),
    (["grey"] * 3, (200, 300), (64, 96, 1)),
]


@pytest.mark.parametrize(("colours", "size", "shape"), PICTURES, ids=["grey", "one in colour", "large"])
def test_images_are_drafted_in_their_own_size_and_channels(
    colours: list[str], size: tuple[int, int], shape: tuple[int, int, int]
) -> None:
    height, width = size
    pixels = {"grey": (1, 0), "colour": (3, 2)}
    images = [
        png([bytes(width * pixels[colour][0])] * height, width, colour=pixels[colour][1]) for colour in colours * 3
    ]
    images.append(png([bytes(7)] * 900, 7))  # one of another size
    (column,) = columns_of(look_at(images).rows)
    assert column.shape == shape


def test_jpeg_in_grey_is_told_from_one_in_colour() -> None:
    assert image_shape(JPEG, "bytes") == (4, 3, 1)
    in_colour = bytearray(JPEG)
    in_colour[JPEG.index(b"\xff\xc0") + 9] = 3
    assert image_shape(bytes(in_colour), "bytes") == (4, 3, 3)


@pytest.mark.tensorflow
def test_check_of_a_draft_with_images_prints_no_native_line(tmp_path: Path) -> None:
    images = [png([bytes([number, 9])] * 2, 2) for number in range(COUNT)]
    look = look_at(images, beside=[{"$header.kind": "ab"[number % 2]} for number in range(COUNT)])
    roles = cast(columns_of(look.rows), ChosenRoles(label="$header.kind"))
    write(tmp_path, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    check = (
        "import pathlib, millrace.app.tools.init.draft_files as it; it.verdicts_of(pathlib.Path('millrace.yaml'), [])"
    )
    environ = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {check}"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"shape": [64, 64]}, "shape: an image has .height, width, channels."),
        ({"shape": [64, 64, 4]}, "with 1 channel or 3"),
        ({"dtype": "int64"}, "write uint8, or float32"),
        ({"max": 3}, "max: this is nothing for an image"),
        ({"field": "photos[]"}, "is in a list"),
        ({"image": "hex"}, "hex is not one of bytes, base64"),
    ],
)
def test_a_setting_that_fits_no_image_is_one_line(more: dict[str, Any], says: str, tmp_path: Path) -> None:
    feature = {"dtype": "uint8", "shape": [64, 64, 3], "image": "base64", **more}
    config = {
        "name": "a",
        "kafka": {"bootstrap_servers": ["a:1"], "topics": ["a"]},
        "records": {"features": {"photo": feature}},
        "model": {"build": "./model.py:build_model"},
        "checkpoints": {"path": "./checkpoints"},
    }
    (tmp_path / "a.yaml").write_text(json.dumps(config))
    (tmp_path / "model.py").write_text("")
    with pytest.raises(ConfigError, match=says):
        load(tmp_path / "a.yaml", {})
