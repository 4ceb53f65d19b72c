"""Exported versions are announced on a topic: each at least once, through kills and an outage of the broker."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from millrace.app.service import announcing as announcing_module
from millrace.app.service.announcing import Announcing
from millrace.app.settings import load
from millrace.app.tools.local_broker import LocalBroker
from millrace.app.tools.local_broker.topics import create_topic
from millrace.app.tools.validate.kafka_check import kafka_checks
from millrace.consumers.failpoints import VARIABLE
from millrace.training.checkpoints.exports.announced_versions import announced_versions
from millrace.training.checkpoints.exports.version_folder import VersionFolder
from tests.conftest import WaitFor
from tests.training.checkpoints.exports.test_version_folder import publish

pytestmark = pytest.mark.broker

CONFIG = """\
name: clicks
kafka:   {{bootstrap_servers: ["{broker}"], topics: [{learnt}]}}
records: {{features: {{price: float32}}, label: {{clicked: float32}}}}
model:   {{build: ./model.py:build_model}}
checkpoints: {{path: ./checkpoints}}
export: {{path: ./exports, announce: {topic}}}
"""
ANNOUNCER = """
import sys, time
from pathlib import Path
from millrace.app.service.announcing import Announcing
from millrace.app.settings import load

Announcing(load(Path(sys.argv[1]), {}).settings).start()
time.sleep(60)
"""


@pytest.fixture
def versions(tmp_path: Path) -> VersionFolder:
    return VersionFolder(tmp_path / "exports" / "clicks")


def published(versions: VersionFolder, *numbers: int) -> None:
    with versions.writing():
        for number in numbers:
            publish(versions, number)


def config(folder: Path, broker: str, topic: str) -> Path:
    path = folder / "clicks.yaml"
    path.write_text(CONFIG.format(broker=broker, topic=topic, learnt=topic[::-1]))
    return path


@contextmanager
def announcing(path: Path) -> Iterator[Announcing]:
    thread = Announcing(load(path, {}).settings)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def announced(broker: str, topic: str) -> list[tuple[bytes | None, dict[str, Any]]]:
    """Return all records of the topic."""

    async def run() -> list[tuple[bytes | None, dict[str, Any]]]:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker, auto_offset_reset="earliest", enable_auto_commit=False)
        async with consumer:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            end = (await consumer.end_offsets([partition]))[partition]
            found = [await asyncio.wait_for(consumer.getone(), 20) for _ in range(end)]
            return [(one.key, json.loads(one.value or b"")) for one in found]

    return asyncio.run(run())


def numbers(broker: str, topic: str) -> list[int]:
    return [value["version"] for _, value in announced(broker, topic)]


def test_each_version_is_one_record_also_after_a_restart(
    broker: str, topic: Callable[..., str], tmp_path: Path, versions: VersionFolder, wait_for: WaitFor
) -> None:
    name = topic()
    path = config(tmp_path, broker, name)
    published(versions, 3, 7)
    with announcing(path):
        wait_for(lambda: numbers(broker, name) == [3, 7])
    with announcing(path) as thread:
        published(versions, 9)
        thread.look()
        wait_for(lambda: numbers(broker, name) == [3, 7, 9])
    key, value = announced(broker, name)[1]
    assert (key, value["name"], value["path"]) == (b"clicks", "clicks", str(versions.version(7)))
    assert value["checkpoint"] == {"number": 7, "incarnation": 1, "parent": 6, "sha256": "ab" * 32}
    assert (value["positions"], value["metrics"]) == ({"clicks": {"0": 70}}, {"accuracy": 0.5})


def test_validate_finds_the_topic_or_says_how_to_create_it(
    broker: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    there = topic()
    found = [
        one.detail
        for name in (there, "t-nowhere")
        for one in kafka_checks(load(config(tmp_path, broker, name), {}).settings)
        if one.name == "announcements"
    ]
    assert found[0] == f"go to {there}"
    assert "--create --topic t-nowhere" in found[1]


@pytest.mark.slow
def test_a_kill_between_the_record_and_its_note_announces_it_again(
    broker: str, topic: Callable[..., str], tmp_path: Path, versions: VersionFolder, wait_for: WaitFor
) -> None:
    name = topic()
    path = config(tmp_path, broker, name)
    published(versions, 3, 7)
    killed = subprocess.run(
        [sys.executable, "-c", ANNOUNCER, str(path)],
        env={VARIABLE: "announce.before_note=kill", "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=60,
        check=False,
    )
    assert (killed.returncode, numbers(broker, name)) == (-9, [3])
    with announcing(path):
        wait_for(lambda: numbers(broker, name) == [3, 3, 7])


@pytest.mark.slow
def test_while_the_broker_is_away_versions_wait_and_then_come(
    tmp_path: Path, versions: VersionFolder, wait_for: WaitFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing_module, "_WRITE_S", 4.0)
    monkeypatch.setattr(announcing_module, "_LOOK_S", 1.0)
    with LocalBroker(tmp_path / "kafka") as local:
        create_topic(local.bootstrap_servers, "models")
        with announcing(config(tmp_path, local.bootstrap_servers, "models")) as thread:
            published(versions, 3)
            wait_for(lambda: announced_versions(versions.root, "models") == {3})
            local.kill()
            published(versions, 7)
            wait_for(lambda: (thread.waiting, thread.failure is not None) == (1, True), timeout=60)
            local.start()
            wait_for(lambda: thread.waiting == 0, timeout=60)
            wait_for(lambda: thread.failure is None)
            # At least once: a try that timed out may still have reached the topic.
            assert list(dict.fromkeys(numbers(local.bootstrap_servers, "models"))) == [3, 7]
