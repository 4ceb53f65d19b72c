"""The archiver at a real broker: every record once, resumed where the shards end; gaps and other topics are named."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from millrace.app.settings import Settings, load
from millrace.app.tools.archive import archive
from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.archive.archive_account import by_partition
from millrace.consumers.archive.shard_reader import read
from millrace.consumers.archive.shards import listing
from millrace.consumers.archive.stores import ArchiveLock
from millrace.consumers.errors import ArchiveBusyError, ConfigError, DataLossError
from millrace.consumers.kafka.positions import Now
from tests.conftest import MakeTopic, Produce, WaitFor
from tests.consumers.archive.records import facts_of, file_of
from tests.faults.harness.retention import delete_before

pytestmark = [pytest.mark.broker, pytest.mark.row(32)]


def config(folder: Path, broker: str, topic: str, **archive_settings: object) -> Path:
    """Write a config file of a model that nobody trains."""
    path = folder / "millrace.yaml"
    settings = {
        "name": "archived",
        "kafka": {"bootstrap_servers": [broker], "topics": [topic], "metadata_max_age": "1s"},
        "records": {"format": "json", "features": {"x": "float32"}, "label": {"y": "float32"}},
        "model": {"build": "./model.py:build"},
        "checkpoints": {"path": "./checkpoints"},
        "archive": {"path": "./archive", **archive_settings},
    }
    path.write_text(json.dumps(settings))
    return path


def archived_up_to_now(settings: Settings) -> None:
    archive(settings, Now(), threading.Event())


def values(folder: Path) -> dict[tuple[int, int], bytes | None]:
    """Return each archived value by partition and offset; an offset that stands twice fails."""
    found: dict[tuple[int, int], bytes | None] = {}
    for shard in listing(folder):
        for columns in read(shard):
            for offset, value in zip(columns.offsets.tolist(), columns.values, strict=True):
                assert (shard.partition.number, offset) not in found
                found[shard.partition.number, offset] = value
    return found


def recreate(broker: str, topic: str, wait_for: WaitFor) -> None:
    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker)
        await admin.start()
        try:
            await admin.delete_topics([topic])
        finally:
            await admin.close()

    def created() -> bool:
        try:
            create_topic(broker, topic, 1)
        except ConfigError:
            return False
        return True

    asyncio.run(delete())
    wait_for(created, timeout=60)


def test_it_resumes_where_its_shards_end_and_archives_each_offset_once(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    name = topic(2)
    settings = load(config(tmp_path, broker, name)).settings
    written: dict[tuple[int, int], bytes | None] = {}
    for lap in range(3):
        records = [(index % 2, b"%d of lap %d" % (index, lap)) for index in range(500)]
        written |= dict(zip(produce(name, records), (value for _, value in records), strict=True))
        archived_up_to_now(settings)
        assert values(tmp_path / "archive") == written
    assert len(listing(tmp_path / "archive")) == 6
    archived_up_to_now(settings)
    assert len(listing(tmp_path / "archive")) == 6


def test_what_retention_removed_before_it_was_archived_is_a_gap(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    name = topic()
    settings = load(config(tmp_path, broker, name)).settings
    produce(name, [b"a"] * 10)
    archived_up_to_now(settings)
    produce(name, [b"b"] * 20)
    delete_before(broker, name, {0: 17})
    archived_up_to_now(settings)
    (archived,) = by_partition(listing(tmp_path / "archive"))
    assert [(shard.first, shard.next_offset) for shard in archived.shards] == [(0, 10), (17, 30)]
    assert [(gap.first, gap.next_offset, gap.offsets) for gap in archived.gaps] == [(10, 17, 7)]


def test_a_topic_that_was_created_again_is_refused_with_what_to_do(
    broker: str, topic: MakeTopic, produce: Produce, wait_for: WaitFor, tmp_path: Path
) -> None:
    name = topic()
    settings = load(config(tmp_path, broker, name)).settings
    produce(name, [b"old"] * 10)
    archived_up_to_now(settings)
    recreate(broker, name, wait_for)
    produce(name, [b"new"] * 20)
    with pytest.raises(DataLossError, match=r"another topic under the same name.*move the topic's folder away"):
        archived_up_to_now(settings)
    assert set(values(tmp_path / "archive").values()) == {b"old"}


@pytest.fixture
def process(broker: str, topic: MakeTopic, tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    name = topic()
    code = "from millrace.app.cli import main; main()"
    command = [sys.executable, "-c", code, "archive", "-c", str(config(tmp_path, broker, name))]
    running = subprocess.Popen(command)
    yield name, running
    running.kill()
    running.wait()


def test_sigterm_closes_the_open_shards_and_a_second_archiver_is_refused(
    process: tuple[str, "subprocess.Popen[bytes]"], produce: Produce, wait_for: WaitFor, tmp_path: Path
) -> None:
    name, running = process
    # So much that a first piece is written; a shard that holds less has no file yet.
    written = [b"%d" % index + b"." * 400_000 for index in range(40)]
    produce(name, written)
    home = tmp_path / "archive" / name / "0"
    wait_for(lambda: home.is_dir() and list(home.iterdir()), 60)
    with pytest.raises(ArchiveBusyError, match=f"process {running.pid} on"), ArchiveLock(tmp_path / "archive"):
        pass
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 0
    (shard,) = listing(tmp_path / "archive")
    assert shard.records > 10
    assert sorted(home.iterdir()) == sorted([file_of(shard), facts_of(shard)])
    assert list(values(tmp_path / "archive").values()) == written[: shard.records]
