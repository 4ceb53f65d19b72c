"""`millrace validate` against a real broker: what it finds, and that it finds it without a value."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from millrace.app.settings import Settings, load
from millrace.app.tools.validate import CheckOutcome, CheckResult
from millrace.app.tools.validate.kafka_check import Bounds, kafka_checks
from tests.conftest import MakeTopic, Produce
from tests.faults.harness.fork_server import run_forked

CANARY = "canary-4711"
MODEL = """\
import keras


def build_model():
    price = keras.Input((), name="price")
    model = keras.Model({"price": price}, keras.layers.Dense(1)(keras.layers.Reshape((1,))(price)))
    model.compile(optimizer="adam", loss="mse")
    return model
"""


class Config:
    """A config file for a topic, and what may be said of it."""

    def __init__(self, folder: Path, broker: str) -> None:
        self.folder, self.broker = folder, broker

    def write(self, *topics: str, dead_letters: str | None = None) -> Path:
        (self.folder / "model.py").write_text(MODEL)
        letters = "" if dead_letters is None else f", dead_letters: {{topic: {dead_letters}}}"
        path = self.folder / "clicks.yaml"
        path.write_text(
            "name: clicks\n"
            f"kafka: {{bootstrap_servers: ['{self.broker}'], topics: [{', '.join(topics)}]}}\n"
            f"records: {{features: {{price: float32}}, label: {{clicked: float32}}{letters}}}\n"
            "model: {build: ./model.py:build_model}\n"
            "training: {batch_size: 64}\n"
            "checkpoints: {path: ./checkpoints}\n"
        )
        return path

    def settings(self, *topics: str, dead_letters: str | None = None) -> Settings:
        return load(self.write(*topics, dead_letters=dead_letters), {}).settings


@pytest.fixture
def config(tmp_path: Path, broker: str) -> Config:
    return Config(tmp_path, broker)


def examined(settings: Settings) -> tuple[list[CheckResult], Bounds | None]:
    checks, looking = list[CheckResult](), kafka_checks(settings)
    while True:
        try:
            checks.append(next(looking))
        except StopIteration as end:
            return checks, end.value


def named(checks: list[CheckResult], name: str) -> CheckResult:
    (check,) = [check for check in checks if check.name == name]
    return check


def good(count: int) -> list[bytes]:
    return [json.dumps({"price": number / 7, "clicked": number % 2}).encode() for number in range(count)]


def test_beginnings_and_ends_are_sampled_and_nothing_twice(config: Config, topic: MakeTopic, produce: Produce) -> None:
    name = topic(partitions=2)
    produce(name, [(0, value) for value in [b"{}", *good(500), b"["]])
    produce(name, [(1, value) for value in [b"{}", *good(3)]])
    checks, bounds = examined(config.settings(name))
    assert named(checks, "topics").detail == f"{name}: 2 partitions, 506 offsets"
    records = named(checks, "records")
    assert records.outcome is CheckOutcome.WARN
    assert "201 of 204 sampled records decode (98.5 %)" in records.detail
    assert "2 missing (0.98 %, field 'price'), 1 malformed (0.49 %)" in records.detail
    assert bounds is not None
    assert sum(bounds.end.values()) == 506


def test_batches_that_are_far_too_large_for_a_slow_topic_are_warned_of(
    config: Config, topic: MakeTopic, produce: Produce
) -> None:
    name, minute = topic(), 60_000
    produce(name, good(30), timestamps=[int(time.time() * 1000) - (30 - number) * 2 * minute for number in range(30)])
    pace = named(examined(config.settings(name))[0], "pace")
    assert pace.outcome is CheckOutcome.WARN
    assert pace.detail.startswith("training.batch_size: 64 rows a step are many for 0.008")
    assert pace.detail.endswith(
        "init would draft {batch_size: 8, passes: 4, members: {recent: 300, since_drift: 10000, once: true}}, or write "
        "auto"
    )
    auto, bounds = examined(load(config.write(name), {"MILLRACE_TRAINING__BATCH_SIZE": "auto"}).settings)
    assert named(auto, "pace").outcome is CheckOutcome.OK
    assert named(auto, "pace").detail.startswith(
        "training.batch_size: auto: 8 rows a step, 4 passes, a memory of 300 records: The topic holds 30 records, and"
    )
    assert bounds is not None
    assert bounds.settings is not None
    assert bounds.settings.training.numbers.batch_size == 8
    few = examined(load(config.write(name), {"MILLRACE_TRAINING__BATCH_SIZE": "32"}).settings)[0]
    assert "pace" not in {check.name for check in few}


def test_no_value_is_ever_told(config: Config, topic: MakeTopic, produce: Produce) -> None:
    name = topic()
    produce(name, [f'{{"price": "{CANARY}", "clicked": 1}}'.encode(), CANARY.encode()])
    checks, _ = examined(config.settings(name))
    assert named(checks, "records").outcome is CheckOutcome.FAIL
    assert "none of 2 sampled records decodes" in named(checks, "records").detail
    assert CANARY not in str(checks)


def test_a_missing_topic_is_told_how_to_be_made(config: Config, topic: MakeTopic) -> None:
    there = topic()
    checks, bounds = examined(config.settings(there, "not-there", "nor-this"))
    assert bounds is None
    assert named(checks, "broker").outcome is CheckOutcome.OK
    assert [check.outcome for check in checks if check.name == "topics"] == ["ok", "fail", "fail"]
    missing = [check for check in checks if check.outcome is CheckOutcome.FAIL]
    assert all("create it: kafka-topics.sh --bootstrap-server" in check.detail for check in missing)
    assert {check.exit_code for check in missing} == {3}
    assert named(checks, "records").outcome is CheckOutcome.SKIP


def test_a_misspelt_topic_is_answered_with_the_nearest_one(config: Config, topic: MakeTopic) -> None:
    there = topic()
    checks, _ = examined(config.settings(there.upper()))
    assert f"did you mean {there}" in named(checks, "topics").detail


def test_dead_letters_need_a_topic_of_their_own(config: Config, topic: MakeTopic) -> None:
    name, letters = topic(), topic()
    assert named(examined(config.settings(name, dead_letters=letters))[0], "dead letters").outcome is CheckOutcome.OK
    missing = named(examined(config.settings(name, dead_letters="not-there"))[0], "dead letters")
    assert (missing.outcome, missing.exit_code) == (CheckOutcome.FAIL, 3)
    itself = named(examined(config.settings(name, dead_letters=name))[0], "dead letters")
    assert (itself.outcome, itself.exit_code) == (CheckOutcome.FAIL, 2)


def test_nobody_there_skips_what_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.app.tools.validate.kafka_check._CONNECT_S", 1.0)
    checks, bounds = examined(Config(tmp_path, "127.0.0.1:1").settings("clicks"))
    assert bounds is None
    assert [(check.name, check.outcome) for check in checks] == [
        ("broker", "fail"),
        ("topics", "skip"),
        ("commits", "skip"),
        ("dead letters", "skip"),
        ("records", "skip"),
    ]
    assert checks[0].exit_code == 3


def validate(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked(["validate", "-c", str(path), *arguments], cwd=path.parent, env=os.environ)


def test_a_config_that_is_fine_passes_every_check(config: Config, topic: MakeTopic, produce: Produce) -> None:
    name, letters = topic(), topic()
    produce(name, good(50))
    done = validate(config.write(name, dead_letters=letters), "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit_code"]) == (0, 0), done.stdout
    assert {check["outcome"] for check in answer["checks"]} == {"ok"}
    assert [check["name"] for check in answer["checks"]] == [
        *("settings", "tokens", "broker", "topics", "commits", "dead letters", "records", "model file", "model"),
        *("metrics", "state", "proof", "proof", "folder", "lock", "space", "checkpoint"),
    ]
    assert not (config.folder / "checkpoints").exists()


@pytest.mark.slow
def test_it_goes_on_after_a_failure_and_ends_as_the_worst(tmp_path: Path) -> None:
    path = Config(tmp_path, "127.0.0.1:1").write("clicks")
    (tmp_path / "model.py").write_text("import tensorflow as tf\n\nONE = tf.constant(1)\nbuild_model = 3\n")
    (tmp_path / "checkpoints").write_text("")
    done = validate(path)
    assert done.returncode == 3
    lines = [line.split()[:2] for line in done.stdout.splitlines()]
    assert [words for words in lines if words[0] == "fail"] == [
        ["fail", "broker"],
        ["fail", "model"],
        ["fail", "folder"],
    ]
    assert done.stdout.splitlines()[-1] == "3 of 15 failed: a start would be refused"
    assert "Traceback" not in done.stderr


def test_importing_a_model_file_computes_nothing_or_is_warned_of(config: Config, topic: MakeTopic) -> None:
    path = config.write(topic())
    (config.folder / "model.py").write_text(f"import tensorflow as tf\n\nONE = tf.constant(1)\n\n\n{MODEL}")
    lines = validate(path).stdout.splitlines()
    assert [line for line in lines if line.startswith("warn") and "importing it computes something" in line]


def test_every_problem_of_the_settings_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "clicks.yaml"
    path.write_text("name: clicks\nkafka: {topics: [clicks], topcis: 3}\n")
    done = validate(path)
    assert done.returncode == 2
    failed = [line for line in done.stdout.splitlines() if line.startswith("fail  settings")]
    assert len(failed) > 2
    assert any("did you mean kafka.topics" in line for line in failed)
