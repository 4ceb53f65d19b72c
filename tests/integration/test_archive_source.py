"""What Kafka no longer has is read from the archive, then the source goes on at Kafka: no gap, no overlap."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.app.settings import Settings, load
from millrace.app.settings.connection import kafka_history, kafka_options
from millrace.consumers.errors import HandoffBroken, HandoffEnded
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka.positions import Earliest, Now
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Chunk, Partition
from tests.conftest import MakeTopic, Produce
from tests.consumers.archive.s3_server import S3Server
from tests.faults.harness.retention import delete_before
from tests.integration.test_archive import archived_up_to_now, config

pytestmark = [pytest.mark.broker, pytest.mark.row(33)]


@contextmanager
def source_of(settings: Settings, **changed: object) -> Iterator[KafkaSource]:
    options = replace(kafka_options(settings.kafka), **changed)  # type: ignore[arg-type]
    source = KafkaSource(options, kafka_history(settings))
    source.start(60)
    try:
        yield source
    finally:
        source.stop(10)


def read_to_now(
    source: KafkaSource,
    positions: dict[Partition, int],
    fingerprints: dict[Partition, Fingerprint | None] | None = None,
) -> list[Chunk]:
    handoff = Handoff(capacity_bytes=2**20, partitions=1)
    source.begin(1, positions, handoff, source.resolve_until(Now()), fingerprints)
    chunks = []
    while True:
        try:
            chunks.append(handoff.receive(60))
        except HandoffEnded:
            return chunks


def offsets_of(chunks: list[Chunk], start: int) -> list[int]:
    """Return the offsets with a record; each chunk must begin where the one before it ended."""
    for chunk in chunks:
        assert chunk.start == start
        start = chunk.end
    return [offset for chunk in chunks for offset in chunk.offsets.tolist()]


@pytest.fixture
def archived(broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path) -> tuple[Settings, Partition]:
    """Give a topic of 1,000 records, of which 600 are archived, and Kafka has those from 500 on.

    A shard of 300 records is several chunks, and the last one of them is shorter than the others.
    """
    name = topic()
    settings = load(config(tmp_path, broker, name), {"MILLRACE_KAFKA__CHUNK_RECORDS": "80"}).settings
    for start, end in ((0, 300), (300, 600)):
        produce(name, [b"%d" % offset for offset in range(start, end)])
        archived_up_to_now(settings)
    produce(name, [b"%d" % offset for offset in range(600, 1000)])
    delete_before(broker, name, {0: 500})
    return settings, Partition(name, 0)


@pytest.mark.parametrize("start", [0, 299, 450])
def test_a_position_before_kafkas_first_is_read_from_the_archive_up_to_kafka(
    start: int, archived: tuple[Settings, Partition]
) -> None:
    settings, partition = archived
    with source_of(settings) as source:
        assert source.resolve_start(Earliest()) == {partition: 0}
        chunks = read_to_now(source, {partition: start})
    assert offsets_of(chunks, start) == list(range(start, 1000))
    assert [value for chunk in chunks for value in chunk.values] == [b"%d" % offset for offset in range(start, 1000)]
    assert not any(chunk.lost for chunk in chunks)


def test_what_neither_kafka_nor_the_archive_has_is_lost_by_policy(archived: tuple[Settings, Partition]) -> None:
    settings, partition = archived
    for path in Path(settings.archive.path or "").rglob("*299.*"):
        path.unlink()
    with source_of(settings) as source:
        assert source.resolve_start(Earliest()) == {partition: 300}
        with pytest.raises(HandoffBroken, match=r"offsets 100\.\.299 of .* are gone"):
            read_to_now(source, {partition: 100})
    with source_of(settings, out_of_range="earliest") as source:
        chunks = read_to_now(source, {partition: 100})
    assert offsets_of(chunks, 100) == list(range(300, 1000))
    assert sum(chunk.lost for chunk in chunks) == 200


def test_an_archive_of_another_topic_of_the_same_name_is_not_read(archived: tuple[Settings, Partition]) -> None:
    settings, partition = archived
    settled = Fingerprint.of(99, 1_700_000_000_000, None, b"of another topic")
    with (
        source_of(settings) as source,
        pytest.raises(HandoffBroken, match="are gone by retention"),
    ):
        read_to_now(source, {partition: 100}, {partition: settled})


@pytest.mark.slow
def test_an_archive_in_s3_hands_over_to_kafka_also_when_it_is_away_for_a_while(
    broker: str,
    topic: MakeTopic,
    produce: Produce,
    bucket: str,
    s3_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    name = topic()
    settings = load(config(tmp_path, broker, name, path=bucket), {"MILLRACE_KAFKA__CHUNK_RECORDS": "80"}).settings
    for start, end in ((0, 300), (300, 600)):
        produce(name, [b"%d" % offset for offset in range(start, end)])
        archived_up_to_now(settings)
    produce(name, [b"%d" % offset for offset in range(600, 1000)])
    delete_before(broker, name, {0: 500})
    with source_of(settings, out_of_range="earliest") as source:
        assert source.resolve_start(Earliest()) == {Partition(name, 0): 0}
        s3_server.go_away()
        back = threading.Timer(3.0, s3_server.come_back)
        back.start()
        try:
            chunks = read_to_now(source, {Partition(name, 0): 0})
        finally:
            back.join()
    assert offsets_of(chunks, 0) == list(range(1000))
    assert not any(chunk.lost for chunk in chunks)


def test_what_is_archived_meanwhile_is_read_too(broker: str, archived: tuple[Settings, Partition]) -> None:
    settings, partition = archived
    archiver = threading.Thread(target=archived_up_to_now, args=(settings,))
    archiver.start()
    archiver.join(60)
    delete_before(broker, partition.topic, {0: 900})
    with source_of(settings) as source:
        assert offsets_of(read_to_now(source, {partition: 0}), 0) == list(range(1000))
