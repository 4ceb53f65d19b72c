"""`millrace dead-letters`: what was set aside, out of the topic, with values for whoever asks for them alone."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.consumers.dead_letters.letter import DeadLetter
from millrace.consumers.dead_letters.producer import DeadLetterOptions, KafkaDeadLetters
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition

pytestmark = pytest.mark.broker

CANARY = "canary-value-5f1d"
LETTERS = (
    (Reason.MALFORMED, None, f'{{"{CANARY}"'.encode()),
    (Reason.MISSING, "price", b"\xff\x00" + CANARY.encode()),
    (Reason.EMPTY, None, None),
)


@pytest.fixture(scope="module")
def config(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a config whose topic of dead letters holds three, in one of two partitions."""
    from millrace.app.tools.local_broker.topics import create_topic

    folder = tmp_path_factory.mktemp("letters")
    topic = f"letters-{folder.name}"
    create_topic(broker, topic, 2)
    options = KafkaOptions(bootstrap_servers=(broker,), topics=("clicks",), group_id="g")
    for place, (reason, field, value) in enumerate(LETTERS):
        sink = KafkaDeadLetters(options, DeadLetterOptions(topic=topic))
        sink.start(30)
        sink.put(
            [
                DeadLetter(
                    partition=Partition("clicks", 3),
                    offset=100 + place,
                    timestamp_ms=1_763_694_000_000,
                    key=CANARY.encode(),
                    value=value,
                    headers=(("trace", b"1"),),
                    reason=reason,
                    field=field,
                    model="clicks-model",
                )
            ]
        )
        assert sink.wait_acknowledged(1, 30)
        assert sink.stop(10) == 0
    path = folder / "clicks.yaml"
    path.write_text(
        f"name: clicks\nkafka: {{bootstrap_servers: ['{broker}'], topics: [clicks]}}\n"
        "records: {format: json, features: {price: float32}, dead_letters: {topic: " + topic + "}}\n"
        "model: {build: ./model.py:build_model}\ncheckpoints: {path: ./checkpoints}\n"
    )
    return path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(application, ["dead-letters", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> MillraceError:
    result = CliRunner().invoke(application, ["dead-letters", *arguments])
    assert isinstance(result.exception, MillraceError), result.output
    return result.exception


def test_the_newest_come_first_with_reason_field_and_origin(config: Path) -> None:
    told = json.loads(run("list", "-c", str(config), "--json"))
    assert told["total"] == 3
    assert [(one["reason"], one["field"], one["record"]) for one in told["letters"]] == [
        ("empty", None, "clicks:3:102"),
        ("missing", "price", "clicks:3:101"),
        ("malformed", None, "clicks:3:100"),
    ]
    (newest,) = json.loads(run("list", "-c", str(config), "--last", "1", "--json"))["letters"]
    assert newest["record"] == "clicks:3:102"


def test_no_value_is_shown_to_who_does_not_ask(config: Path) -> None:
    place = json.loads(run("list", "-c", str(config), "--json"))["letters"][1]["letter"]
    asked = [["list"], ["list", "--json"], ["show", place], ["show", place, "--json"]]
    for arguments in asked:
        without, with_values = (run(*arguments, "-c", str(config), *more) for more in ([], ["--values"]))
        assert CANARY not in without
        assert CANARY in with_values


def test_one_is_found_at_the_place_that_the_list_names(config: Path) -> None:
    for one in json.loads(run("list", "-c", str(config), "--json"))["letters"]:
        shown = json.loads(run("show", one["letter"], "-c", str(config), "--json"))
        assert shown == one
        assert shown["headers"] == ["trace"]
        assert shown["written"] == "2025-11-21T03:00:00.000Z"


@pytest.mark.parametrize(
    "place",
    ["clicks", "0:", "9:0", "0:999999", "0:" + "7" * 5000],
    ids=["no number", "no offset", "no partition", "no letter", "long"],
)
def test_a_place_without_a_letter_is_an_error_of_one_line(config: Path, place: str) -> None:
    error = refused("show", place, "-c", str(config))
    assert error.exit_code == 2
    assert "\n" not in str(error)


def test_without_a_topic_the_way_to_have_one_is_named(config: Path) -> None:
    bare = config.with_name("bare.yaml")
    bare.write_text(re.sub(r", dead_letters: {.*?}", "", config.read_text()))
    assert "records.dead_letters.topic" in str(refused("list", "-c", str(bare)))
