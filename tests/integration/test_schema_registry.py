"""Confluent's Avro and Protobuf through a real Kafka and registry, while schemas change and the registry is killed."""

import io
import json
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf.message_factory import GetMessageClass
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.app.tools.local_broker.broker import free_port
from millrace.app.tools.local_broker.topics import create_topic
from millrace.app.tools.prove.trainer_process import Run
from millrace.app.tools.traffic.topic_reader import dead_letters
from millrace.pipelines.formats.shared.descriptors import compiled_texts, message_of
from millrace.pipelines.registry.schemas import RegistryClient, RegistryOptions
from tests.conftest import MakeTopic, Produce, WaitFor
from tests.faults.harness.fork_server import fork_trainer
from tests.schema_registry import SchemaRegistry

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.row(39)]

MODEL = """\
import keras


def build_model():
    inputs = {name: keras.Input((), name=name) for name in ("price", "hour", "old")}
    joined = keras.layers.Concatenate()([keras.layers.Reshape((1,))(value) for value in inputs.values()])
    model = keras.Model(inputs, keras.layers.Dense(1, name="clicked")(joined))
    model.compile(optimizer="sgd", loss="mse")
    return model
"""


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Click", "fields": [{"name": "clicked", "type": "boolean"}, *fields]}


COST = {"name": "cost", "type": "int"}
PRICE = {"name": "price", "type": "double", "aliases": ["cost"]}
HOUR = {"name": "hour", "type": ["null", "int"], "default": None}
OLD = {"name": "old", "type": "long"}
FIRST = schema(COST, OLD)
ADDED = schema(COST, HOUR, OLD)
RENAMED_AND_PROMOTED = schema(PRICE, HOUR, OLD)
REMOVED = schema(PRICE, HOUR)
READER = schema(PRICE, HOUR)


def framed(number: int, writer: Any, rows: Sequence[dict[str, Any]]) -> list[bytes]:
    """Write records as Confluent's clients do, by fastavro."""
    parsed, values = fastavro.parse_schema(json.loads(json.dumps(writer))), []
    for row in rows:
        out = io.BytesIO()
        out.write(struct.pack(">bI", 0, number))
        fastavro.schemaless_writer(out, parsed, row)
        values.append(out.getvalue())
    return values


@dataclass
class Home:
    """A user's folder."""

    path: Path
    port: int

    @property
    def cwd(self) -> Path:
        return self.path

    @property
    def config(self) -> Path:
        return self.path / "clicks.yaml"

    def use(self, records: dict[str, Any], files: dict[str, str]) -> None:
        """Have records read in this way, by these files."""
        for name, text in files.items():
            (self.path / name).write_text(text)
        settings = json.loads(self.config.read_text())
        self.config.write_text(json.dumps(settings | {"records": settings["records"] | records}))

    @property
    def kept(self) -> set[str]:
        return {path.name for path in (self.path / "checkpoints" / "clicks" / "schemas").iterdir()}


@pytest.fixture
def home(tmp_path: Path, broker: str, topic: MakeTopic, registry: SchemaRegistry) -> tuple[Home, str, str]:
    """Give a folder with a model and a config, its topic, and its topic of dead letters."""
    name, home = topic(), Home(tmp_path, free_port())
    letters = f"{name}-letters"
    create_topic(broker, letters)
    (tmp_path / "model.py").write_text(MODEL)
    settings = {
        "name": "clicks",
        "kafka": {"bootstrap_servers": [broker], "topics": [name]},
        "records": {
            "registry": {"url": ["http://127.0.0.1:1", registry.url]},
            "features": {
                "price": "float32",
                "hour": {"dtype": "float32", "missing": -1},
                "old": {"dtype": "float32", "missing": 0},
            },
            "label": {"clicked": "bool"},
            "dead_letters": {"topic": letters},
        },
        "model": {"build": "./model.py:build_model"},
        "training": {"batch_size": 16, "max_wait": "200ms"},
        "checkpoints": {"path": "./checkpoints", "every": "2s"},
        "api": {"listen": f"127.0.0.1:{home.port}"},
    }
    home.config.write_text(json.dumps(settings))
    return home, name, letters


def learnt(run: Run) -> int:
    return int(run.status()["records"]["learnt"])


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    """Make up rows; `...` stands for a number that differs."""
    drawn = ({key: at % 7 if value is ... else value for key, value in more.items()} for at in range(count))
    return [{"clicked": at % 2 == 0, **row} for at, row in enumerate(drawn)]


def test_schemas_and_what_they_refer_to_come_as_they_were_registered(registry: SchemaRegistry) -> None:
    ad = {"type": "enum", "name": "Ad", "symbols": ["a", "b"]}
    click = {"type": "record", "name": "Referring", "fields": [{"name": "ad", "type": "Ad"}]}
    registry.register("ad", ad)
    number = registry.register("referring-value", click, ("Ad", "ad", 1))
    found = RegistryClient(RegistryOptions(urls=(registry.url,))).schema(number)
    assert found is not None
    assert (found.kind, json.loads(found.text)) == ("AVRO", click)
    assert [(name, json.loads(text)) for name, text in found.references] == [("Ad", ad)]
    assert RegistryClient(RegistryOptions(urls=(registry.url,))).schema(987_654) is None


@dataclass(frozen=True)
class Form:
    """How records are written, and the versions of their schema: fields come, change their name and type, and go."""

    kind: str
    versions: tuple[Any, Any, Any, Any]
    write: Callable[[int, Any, Sequence[dict[str, Any]]], list[bytes]]
    settings: dict[str, Any]
    files: dict[str, str]


PROTO = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "confluent/meta.proto"; import "place.proto";
message Click { bool clicked = 1; google.protobuf.Timestamp at = 9; Place place = 10; %s }
"""
PLACE = 'syntax = "proto3"; package shop; message Place { string town = 1; }'


def messages(number: int, text: str, rows: Sequence[dict[str, Any]]) -> list[bytes]:
    """Write records as Confluent's clients do, by protobuf."""
    texts = {"click.proto": text, "place.proto": PLACE}
    click = GetMessageClass(message_of(compiled_texts(texts, "click.proto", "test"), "Click"))
    return [struct.pack(">bIb", 0, number, 0) + click(**row).SerializeToString() for row in rows]


_AVRO = Form(
    "AVRO",
    (FIRST, ADDED, RENAMED_AND_PROMOTED, REMOVED),
    framed,
    {"format": "avro", "avro": {"schema_file": "./reader.avsc"}},
    {"reader.avsc": json.dumps(READER)},
)
_PROTOBUF = Form(
    "PROTOBUF",
    (
        PROTO % "int32 cost = 2; int64 old = 3;",
        PROTO % "int32 cost = 2; int64 old = 3; optional int32 hour = 4;",
        PROTO % "int64 price = 2; int64 old = 3; optional int32 hour = 4;",
        PROTO % "int64 price = 2; optional int32 hour = 4; reserved 3;",
    ),
    messages,
    {"format": "protobuf", "protobuf": {"descriptor": "./click.proto", "message": "Click"}},
    {"click.proto": PROTO % "int32 price = 2; int64 old = 3; optional int32 hour = 4;", "place.proto": PLACE},
)
AWAY_S = float(os.environ.get("MILLRACE_TEST_REGISTRY_AWAY", "3"))
"""How long the registry is away; a campaign may set more."""


@pytest.mark.parametrize("form", [_AVRO, pytest.param(_PROTOBUF, marks=pytest.mark.nightly)], ids=["avro", "protobuf"])
def test_a_schema_evolves_and_the_registry_is_killed_and_no_record_is_lost(
    form: Form,
    home: tuple[Home, str, str],
    registry: SchemaRegistry,
    broker: str,
    produce: Produce,
    wait_for: WaitFor,
) -> None:
    folder, topic, letters = home
    folder.use(form.settings, form.files)
    if form.kind == "PROTOBUF":
        registry.register("place", PLACE, kind=form.kind)

    def register(version: int) -> int:
        references = [("place.proto", "place", 1)] if form.kind == "PROTOBUF" else []
        return registry.register(f"{topic}-value", form.versions[version], *references, kind=form.kind)

    def records(number: int, version: int, count: int, **fields: Any) -> list[bytes]:
        return form.write(number, form.versions[version], rows(count, **fields))

    first = register(0)
    produce(topic, records(first, 0, 200, cost=..., old=...))
    with Run(folder, launch=fork_trainer) as run:
        wait_for(lambda: run.alive and run.ready() and learnt(run) == 200, 120)
        process = run.pid
        added = register(1)
        produce(topic, records(added, 1, 100, cost=..., hour=..., old=...) + records(first, 0, 100, cost=..., old=...))
        wait_for(lambda: learnt(run) == 400, 60)

        renamed, removed = register(2), register(3)
        registry.kill()
        # Of a known schema: goes on without the registry. Then of two that are not known.
        produce(topic, records(added, 1, 50, cost=..., hour=..., old=...))
        wait_for(lambda: learnt(run) == 450, 60)
        produce(topic, records(renamed, 2, 80, price=..., hour=..., old=...))
        produce(topic, records(removed, 3, 70, price=..., hour=...))
        wait_for(lambda: [problem["problem"] for problem in run.status()["problems"]] == ["registry_away"], 60)
        away_until = time.monotonic() + AWAY_S
        wait_for(lambda: time.monotonic() > away_until, AWAY_S + 60)
        code, answer = run.ask("GET", "/readyz")
        assert code == 503
        assert f"does not give schema {renamed}" in answer["reasons"][0]
        assert run.ask("GET", "/livez")[0] == 200
        assert learnt(run) == 450

        registry.start()
        wait_for(lambda: learnt(run) == 600, 60)
        wait_for(lambda: run.ready() and run.status()["problems"] == [], 60)
        assert not run.status()["records"].get("set_aside")
        assert (run.pid, run.alive) == (process, True)
        told = {one["schema"]: one["changes"] for one in new_schemas(run)}
        assert [*told] == [first, added, renamed, removed]
        assert told[added] == [f"'hour' is added ({'int' if form is _AVRO else 'int32'})"]
        assert told[renamed][0] == "'price' is renamed from cost to price"
        assert "'price' is promoted from int" in told[renamed][1]
        assert told[removed] == ["'old' is not in it, its `missing` value is used"]
        run.terminate()
        assert run.exit_code(60) == 0
    assert not dead_letters(broker, letters)
    assert folder.kept == {f"schema-{number}.json" for number in (first, added, renamed, removed)} | {"reported.json"}


def test_what_a_new_schema_lacks_pauses_and_is_learnt_after_mending_or_redriving(
    home: tuple[Home, str, str], registry: SchemaRegistry, broker: str, produce: Produce, wait_for: WaitFor
) -> None:
    folder, topic, letters = home
    folder.use(_AVRO.settings, _AVRO.files)
    subject = f"{topic}-value"
    first = registry.register(subject, FIRST)
    lacks, lacks_more = registry.register(subject, schema(HOUR, OLD)), registry.register(subject, schema(HOUR))
    produce(topic, framed(first, FIRST, rows(100, cost=..., old=...)))
    with Run(folder, launch=fork_trainer) as run:
        wait_for(lambda: run.alive and run.ready() and learnt(run) == 100, 120)
        produce(topic, framed(lacks, schema(HOUR, OLD), rows(40, hour=..., old=...)))
        wait_for(lambda: held(run), 60)
        problem = run.status()["problems"][0]
        assert f"at {topic}:0:100 schema {lacks} does not give the field 'price'" in problem["what"]
        assert run.ask("GET", "/readyz")[0] == 503
        assert not run.status()["records"].get("set_aside")
        assert run.ask("POST", "/resume")[0] == 200
        wait_for(lambda: run.status()["records"].get("set_aside") == {"missing": 40}, 60)
        produce(topic, framed(lacks_more, schema(HOUR), rows(30, hour=...)))
        wait_for(lambda: held(run), 60)
        assert [(one["schema"], one.get("before"), one["offset"]) for one in new_schemas(run)] == [
            (first, None, 0),
            (lacks, first, 100),
            (lacks_more, lacks, 140),
        ]
        run.terminate()
        assert run.exit_code(60) == 0

    assert {letter.offset for letter in dead_letters(broker, letters)} == set(range(100, 140))
    found = command("dead-letters", "list", "-c", str(folder.config), "--last", "100", "--json")["letters"]
    assert {(one["reason"], one["field"], one["schema"]) for one in found} == {("missing", "price", str(lacks))}
    assert found[0]["detail"] == "the schema has no field 'price'; it has clicked, hour, old"
    settings = json.loads(folder.config.read_text())
    settings["records"]["features"]["price"] = {"dtype": "float32", "missing": -1}
    folder.config.write_text(json.dumps(settings))
    registry.kill()  # what it has given once is beside the checkpoints
    try:
        with Run(folder, launch=fork_trainer) as run:
            wait_for(lambda: run.alive and run.ready() and learnt(run) == 130, 120)
            assert len(new_schemas(run)) == 3, "those of before; none is reported again"
            done = command("dead-letters", "redrive", "-c", str(folder.config), "--to", topic, "--json")
            assert done["sent"] == {"missing": 40}
            wait_for(lambda: learnt(run) == 170, 60)
            records = run.status()["records"]
            assert (records["set_aside"], run.status()["problems"]) == ({"missing": 40}, [])
            run.terminate()
            assert run.exit_code(60) == 0
    finally:
        registry.start()
    assert command("dead-letters", "list", "-c", str(folder.config), "--last", "100", "--json")["letters"] == found


def new_schemas(run: Run) -> list[dict[str, Any]]:
    events = run.ask("GET", "/events")[1]["events"]
    return [event["facts"] for event in events if event["kind"] == "new_schema"]


def held(run: Run) -> bool:
    return [problem["problem"] for problem in run.status()["problems"]] == ["schema_incompatible"]


def command(*arguments: str) -> Any:
    result = CliRunner().invoke(application, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
