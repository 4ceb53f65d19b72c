"""The records of a history once more: from the archive as far as it reaches, and from Kafka where it does not.

Owns the connection to Kafka, which is made only where the archive lacks something, and the chunk of each partition that
is read in part. `read` runs on the feed's thread; it waits for a broker that is away. Nothing is committed.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from millrace.app.settings import Settings
from millrace.app.settings.connection import kafka_history, kafka_options
from millrace.consumers.errors import HandoffBroken, HandoffEmpty, HandoffEnded
from millrace.consumers.handoff import Handoff, ReceiveEnd
from millrace.consumers.kafka.positions import Latest
from millrace.consumers.kafka.replaying import History, PartitionHistory
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Chunk, Partition
from millrace.training.errors import NotRebuildableError

_CONNECT_S, _STOP_S, _TICK_S = 15.0, 5.0, 0.5
_MEMORY_SHARE = 0.35
_INCARNATION = 1
Offsets = Mapping[Partition, int]


class RecordReader:
    """Reads each partition from a start to an end, in order."""

    def __init__(self, settings: Settings, starts: Offsets, ends: Offsets) -> None:
        self._settings, self._ends = settings, ends
        self._history = kafka_history(settings)
        self._replays: dict[Partition, PartitionHistory] = {}
        self._left: dict[Partition, Chunk] = {}
        self._source: KafkaSource | None = None
        self._handoff: ReceiveEnd | None = None
        self._closed = False
        self.archived = {partition: self._archived_to(partition, start) for partition, start in starts.items()}
        """How far the archive has each partition, without a gap; its start where it has nothing of it."""

    def open(self) -> None:
        """Connect to Kafka if the archive lacks some of the records; NotRebuildableError where Kafka lacks them too."""
        lacking = {partition: at for partition, at in self.archived.items() if at < self._ends[partition]}
        if not lacking:
            return
        options = replace(
            kafka_options(self._settings.kafka),
            out_of_range="fail",
            on_recreated="fail",
            freeze_partitions=True,
            only_given=True,
        )
        source = KafkaSource(options, self._history)
        source.start(_CONNECT_S)
        self._source = source
        self._require_ends(source, lacking)
        capacity = int(self._settings.memory.limit * _MEMORY_SHARE)
        handoff = Handoff(capacity_bytes=capacity, partitions=len(lacking))
        source.begin(_INCARNATION, lacking, handoff, {partition: self._ends[partition] for partition in lacking})
        self._handoff = handoff

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Chunk]:
        """Yield all records of [start, end); each partition is read on from where it was read last."""
        while start < end:
            chunk = self._left.pop(partition, None) or self._next(partition, start)
            if chunk.end > end:
                chunk, self._left[partition] = chunk.split(end)
            yield chunk
            start = chunk.end

    def close(self) -> None:
        """Make a `read` that waits end soon."""
        self._closed = True
        if self._handoff is not None:
            self._handoff.close()

    def stop(self) -> None:
        """Close, and leave Kafka."""
        self.close()
        if self._source is not None:
            self._source.stop(_STOP_S)
            self._source = None

    def _archived_to(self, partition: Partition, start: int) -> int:
        """Return up to where the archive has a partition without a gap."""
        if self._settings.archive.path is None:
            return start
        from millrace.consumers.archive.shards import shard_at  # noqa: PLC0415 - the settings may name no archive

        at, end = start, self._ends[partition]
        while at < end and (shard := shard_at(self._settings.archive.path, partition, at)) is not None:
            at = shard.next_offset
        return min(at, end)

    def _next(self, partition: Partition, start: int) -> Chunk:
        if start >= self.archived[partition]:
            return self._received(partition)
        if partition not in self._replays:
            self._replays[partition] = _replay(self._history, partition)
        chunk = self._replays[partition].next_chunk(start, self.archived[partition])
        if chunk is None:
            raise NotRebuildableError(f"the archive has lost its shard of {partition} at offset {start} meanwhile")
        return chunk

    def _received(self, partition: Partition) -> Chunk:
        handoff = self._handoff
        if handoff is None:
            raise NotRebuildableError(f"nothing reads {partition} from Kafka")
        try:
            while True:
                with suppress(HandoffEmpty):
                    return handoff.receive(_TICK_S, lambda heads: partition if partition in heads else None)
        except HandoffBroken as broken:
            text = str(broken.why or broken).partition(": set kafka.out_of_range")[0]
            raise NotRebuildableError(f"{text}, and the archive does not have them") from broken
        except HandoffEnded:
            raise NotRebuildableError(f"Kafka has no more records of {partition}") from None

    def _require_ends(self, source: KafkaSource, lacking: Offsets) -> None:
        """Refuse a topic that ends too early: its records would be waited for, for ever."""
        ends = source.resolve_start(Latest())
        for partition in lacking:
            there = ends.get(partition, 0)
            if there < self._ends[partition]:
                raise NotRebuildableError(
                    f"{partition} ends at offset {there} in Kafka, and records up to {self._ends[partition] - 1} are "
                    "needed: its topic was created again, or lost its end; an archive would have them"
                )


def _replay(history: History, partition: Partition) -> PartitionHistory:
    return history.replay(partition, _INCARNATION)
