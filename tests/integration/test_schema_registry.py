"""Confluent's Avro through a real Kafka and a real registry, while the schema changes and the registry is killed."""

import io
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pytest
from typer.testing import CliRunner

from app.cli.command_list import application
from app.tools.local_broker.broker import free_port
from app.tools.local_broker.topics import create_topic
from app.tools.prove.trainer_process import Run
from app.tools.traffic.topic_reader import dead_letters
from pipelines.registry.registry_client import RegistryClient, RegistryOptions
from tests.conftest import MakeTopic, Produce, WaitFor
from tests.schema_registry import SchemaRegistry

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]

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


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    """Give a registry that a test may kill and start."""
    registry = SchemaRegistry(tmp_path_factory.mktemp("registry"))
    registry.start()
    try:
        yield registry
    finally:
        registry.kill()


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
    (tmp_path / "reader.avsc").write_text(json.dumps(READER))
    settings = {
        "name": "clicks",
        "kafka": {"bootstrap_servers": [broker], "topics": [name]},
        "records": {
            "format": "avro",
            "registry": {"url": ["http://127.0.0.1:1", registry.url]},
            "avro": {"schema_file": "./reader.avsc"},
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


def test_a_schema_evolves_and_the_registry_is_killed_and_no_record_is_lost(
    home: tuple[Home, str, str], registry: SchemaRegistry, broker: str, produce: Produce, wait_for: WaitFor
) -> None:
    folder, topic, letters = home
    subject = f"{topic}-value"
    first = registry.register(subject, FIRST)
    produce(topic, framed(first, FIRST, rows(200, cost=..., old=...)))
    with Run(folder) as run:
        wait_for(lambda: run.alive and run.ready() and learnt(run) == 200, 120)
        process = run.pid
        added = registry.register(subject, ADDED)
        mixed = framed(added, ADDED, rows(100, cost=..., hour=..., old=...)) + framed(
            first, FIRST, rows(100, cost=..., old=...)
        )
        produce(topic, mixed)
        wait_for(lambda: learnt(run) == 400, 60)

        renamed, removed = registry.register(subject, RENAMED_AND_PROMOTED), registry.register(subject, REMOVED)
        registry.kill()
        # Of a known schema: goes on without the registry. Then of two that are not known.
        produce(topic, framed(added, ADDED, rows(50, cost=..., hour=None, old=...)))
        wait_for(lambda: learnt(run) == 450, 60)
        produce(topic, framed(renamed, RENAMED_AND_PROMOTED, rows(80, price=0.5, hour=..., old=...)))
        produce(topic, framed(removed, REMOVED, rows(70, price=0.25, hour=None)))
        wait_for(lambda: [problem["problem"] for problem in run.status()["problems"]] == ["registry_away"], 60)
        code, answer = run.ask("GET", "/readyz")
        assert code == 503
        assert f"does not give schema {renamed}" in answer["reasons"][0]
        assert run.ask("GET", "/livez")[0] == 200
        assert learnt(run) == 450

        registry.start()
        wait_for(lambda: learnt(run) == 600, 60)
        wait_for(lambda: run.ready() and run.status()["problems"] == [], 60)
        assert not run.status()["records"].get("set_aside")
        assert run.pid == process
        assert run.alive
        run.terminate()
        assert run.exit_code(60) == 0
    assert not dead_letters(broker, letters)
    assert folder.kept == {f"schema-{number}.json" for number in (first, added, renamed, removed)} | {"reported.json"}


def test_what_a_new_schema_lacks_pauses_and_is_learnt_after_mending_or_redriving(
    home: tuple[Home, str, str], registry: SchemaRegistry, broker: str, produce: Produce, wait_for: WaitFor
) -> None:
    folder, topic, letters = home
    subject = f"{topic}-value"
    first = registry.register(subject, FIRST)
    lacks, lacks_more = registry.register(subject, schema(HOUR, OLD)), registry.register(subject, schema(HOUR))
    produce(topic, framed(first, FIRST, rows(100, cost=..., old=...)))
    with Run(folder) as run:
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
        events = run.ask("GET", "/events")[1]["events"]
        told = [event["facts"] for event in events if event["kind"] == "new_schema"]
        assert [(one["schema"], one.get("before"), one["offset"]) for one in told] == [
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
        with Run(folder) as run:
            wait_for(lambda: run.alive and run.ready() and learnt(run) == 130, 120)
            events = run.ask("GET", "/events")[1]["events"]
            assert "new_schema" not in {event["kind"] for event in events}
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


def held(run: Run) -> bool:
    return [problem["problem"] for problem in run.status()["problems"]] == ["schema_incompatible"]


def command(*arguments: str) -> Any:
    result = CliRunner().invoke(application, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
