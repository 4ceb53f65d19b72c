"""The trainer's stream out of Kafka: hand-off, decode pool, assembler, feed and dataset, built for each incarnation.

Owns what one incarnation needs and takes it down in order: the feed, then the iterator, then the pool. Opened and
closed on the trainer's thread.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace.app.settings import Settings, to_decoder
from millrace.app.settings.sections.records import to_look
from millrace.consumers.dead_letters.letter import DeadLetter, DeadLetters
from millrace.consumers.errors import HandoffBroken, TopicRecreatedError
from millrace.consumers.handoff import ChunkTotals, Handoff, HandoffStatistics, Pick, ReceiveEnd
from millrace.consumers.kafka.positions import Earliest, Latest
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.gates.gate import Gate, open_gates
from millrace.pipelines.shaping.shaper import Shaper, closed_by, open_shapers
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Delivery
from millrace.pipelines.stream.dataset import DatasetOptions, Deliveries
from millrace.pipelines.stream.decode import DecodePool, OnRefused, Refused
from millrace.pipelines.stream.feed import Feed, FeedOptions, FeedStatistics, unless_skipped
from millrace.pipelines.stream.row_order import EventTimeOrder, MixtureOrder, RotationOptions
from millrace.training.stream import StreamEnded, StreamStart, TopicsRecreated

_BEHIND_S = 60.0
"""Records older than this are a backlog, which is taken in order of event time."""
ROTATION_ROWS = 64
"""How many rows of a partition come before the next one's, in deterministic mode."""
_ROOM_S = 0.1
"""How long a dead letter waits for room before the trainer gets a tick, in which it looks at its commands."""
_HANDOFF_SHARE, _FEED_SHARE = 0.35, 0.45
"""Portions of the memory limit: the hand-off, and decoding to blocks; the client's buffers get the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What every stream of a process has in common."""

    settings: Settings
    batch_size: int
    """Rows of a batch that this process takes."""
    threads: int
    """The number of threads that decode, and of those that run `preprocess`."""
    until: Mapping[Partition, int] | None
    max_records: int | None
    preprocess: Callable[..., Any] | None
    shapers: Sequence[Shaper] = ()
    """What makes rows of the records; where there is nothing, each record is a row."""
    gates: Sequence[Gate] = ()
    """What may hold decoded chunks back."""
    portions: Callable[[Chunk], Sequence[Chunk]] | None = None
    """Cuts a chunk into some that may be held back each by itself; None where there is no reason to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsBefore:
    """The outcome of the records of this process's earlier streams, which are closed for good."""

    fetched: int = 0
    settled: int = 0
    """How many of those were settled; all others were dropped, and are read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatistics:
    """What the stream of the present incarnation holds and has done."""

    handoff: HandoffStatistics
    feed: FeedStatistics
    before: StreamsBefore = StreamsBefore()


NO_STREAM = StreamStatistics(
    handoff=HandoffStatistics(
        queued=ChunkTotals(),
        capacity_bytes=0,
        peak_bytes=0,
        partitions=0,
        offered=ChunkTotals(),
        received=ChunkTotals(),
        discarded=ChunkTotals(),
        state="closed",
        as_of=0.0,
    ),
    feed=FeedStatistics(
        waiting_records_s=0.0,
        waiting_decode_s=0.0,
        blocks=0,
        decoding_bytes=0,
        assembling_bytes=0,
        under_way_bytes=0,
        held_rows=0,
        balances={},
        stale=0,
        as_of=0.0,
    ),
)
"""The statistics before the first stream."""


class KafkaStream:
    """Blocks of one incarnation."""

    def __init__(
        self,
        feed: Feed,
        handoff: ReceiveEnd,
        pool: DecodePool,
        deliveries: Deliveries,
        before: StreamsBefore,
    ) -> None:
        self._before = before
        self._feed, self._handoff, self._pool, self._deliveries = feed, handoff, pool, deliveries
        self._closed = False

    def take(self) -> Delivery | None:
        """Return the next block, or None within a tick where there is none; raise StreamEnded at the end."""
        try:
            return next(self._deliveries)
        except StopIteration:
            raise StreamEnded from None
        except HandoffBroken as broken:
            # By policy a topic that was created again ends the run (fatal), or its partitions restart.
            if isinstance(broken.why, TopicRecreatedError) and not broken.why.fatal:
                raise TopicsRecreated(broken.why.beginnings) from broken
            raise

    @property
    def ready(self) -> bool:
        """Whether `take` would return at once."""
        return self._deliveries.ready

    def wait(self, timeout_s: float) -> None:
        """Wait until `take` would return at once, for so long at most."""
        self._deliveries.wait(timeout_s)

    @property
    def expects(self) -> bool:
        """Whether records are on their way to a block."""
        return self._feed.expects or self._handoff.statistics().queued.records > 0

    def draw_ahead(self) -> None:
        """Begin to draw the next block, while a call runs."""
        self._deliveries.draw_ahead()

    def close(self) -> None:
        """Stop what feeds the stream, then drop what was drawn ahead; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._handoff.close()
        # An iterator that is dropped while its generator polls deadlocks: the closed hand-off ends the polling.
        self._deliveries.close()
        # The feed submits to the pool, so the pool closes when no feed runs.
        self._pool.close()

    def statistics(self) -> StreamStatistics:
        """Return what the stream holds and has done.

        The feed is read before the hand-off, so the hand-off never shows less given than the feed shows received.
        """
        feed = self._feed.statistics()
        return StreamStatistics(handoff=self._handoff.statistics(), feed=feed, before=self._before)


class StreamFactory:
    """Opens streams on one source."""

    def __init__(self, source: KafkaSource, dead_letters: DeadLetters, options: StreamOptions) -> None:
        self._source, self._dead_letters, self._options = source, dead_letters, options
        self._schema = options.settings.row_schema
        # Where a schema is not known yet, the pool waits for it, not one of its threads.
        self._decoder = to_decoder(options.settings.records, wait_s=0.0)
        self._look = to_look(options.settings.records)
        self._current: KafkaStream | None = None

    def open(self, order: StreamStart) -> KafkaStream:
        """Build a stream and begin to fetch for it."""
        options, settings = self._options, self._options.settings
        handoff = Handoff(
            capacity_bytes=int(settings.memory.limit * _HANDOFF_SHARE), partitions=max(1, len(order.positions))
        )
        stopped = threading.Event()  # shared, as a refused record that waits for room must notice that the feed stops
        on_refused = posting(self._dead_letters, settings.name, stopped.is_set, framed=settings.framed_topics)
        pool = DecodePool(
            self._decoder,
            threads=options.threads,
            on_refused=unless_skipped(order.skips, on_refused),
            admits=open_gates(options.gates, order.positions, order.skips),
            look=self._look,
        )
        table = sorted(order.positions)
        assembler = Assembler(
            settings.block_schema,
            self._assembly(order),
            table,
            order.incarnation,
            order.skips,
            order.target,
            open_shapers(options.shapers, order.incarnation, order.positions),
        )
        pick: Pick = EventTimeOrder(self._behind, _BEHIND_S)
        if weights := settings.kafka.weights:
            pick = MixtureOrder(weights, lambda at: feed.ahead(at), self._behind)  # noqa: PLW0108 - there is no feed yet
        feed = Feed(
            handoff,
            pool,
            assembler,
            replace(feed_options(settings), portions=options.portions),
            pick=pick,
            stopped=stopped,
        )
        how = DatasetOptions(
            batch_size=options.batch_size,
            deterministic=settings.training.deterministic,
            threads=options.threads,
        )
        deliveries = Deliveries(feed, self._schema, how, options.preprocess, order.suspects)
        # `_before` reads the statistics of the stream before this one, so it runs before `_current` is replaced.
        stream = self._current = KafkaStream(feed, handoff, pool, deliveries, self._before(order))
        # Fetching begins last, when everything that a chunk passes through is there.
        self._source.begin(order.incarnation, order.positions, handoff, options.until, order.fingerprints)
        return stream

    def statistics(self) -> StreamStatistics:
        """Return the statistics of the newest stream; empty ones before the first."""
        return NO_STREAM if self._current is None else self._current.statistics()

    def _assembly(self, order: StreamStart) -> AssembleOptions:
        training, limit = self._options.settings.training, self._options.max_records
        rotation = None
        if training.deterministic:
            ends = self._options.until or {}
            rotation = RotationOptions(
                share=ROTATION_ROWS,
                weights=self._options.settings.kafka.weights,
                start=order.turn,
                positions=order.positions,
                ends=ends,
            )
        return AssembleOptions(
            batch_size=self._options.batch_size,
            batches_per_call=training.batches_per_call,
            max_wait_s=training.max_wait,
            shuffle=training.shuffle,
            seed=training.seed,
            # The assembler takes no limit below 1.
            limit=None if limit is None else max(1, limit - order.learnt),
            rotation=rotation,
            weights=self._options.settings.kafka.weights,
            whole_batches=training.partial_batches == "wait",
            finish=closed_by(self._options.shapers),
        )

    def _before(self, order: StreamStart) -> StreamsBefore:
        last = self.statistics()
        return StreamsBefore(fetched=last.before.fetched + last.handoff.offered.records, settled=order.settled)

    def newcomers(self, known: Collection[Partition]) -> Mapping[Partition, int]:
        """Return the partitions that are not known, with their first offsets; none in deterministic mode."""
        new = set(self._source.partitions()) - set(known)
        # The strict rotation covers the partitions that were there at the start, so a newcomer would change its order.
        if not new or self._options.settings.training.deterministic:
            return {}
        # From the first record, whatever kafka.start says: `latest` would lose what was written before the discovery.
        beginnings = self._source.resolve_start(Earliest())
        return {partition: beginnings[partition] for partition in new}

    def lags(self) -> Mapping[Partition, int]:
        """Return how many records of each partition that is read here are not read yet."""
        lags = self._source.statistics().lag.partitions
        return {partition: lag.records for partition, lag in lags.items()}

    def unlearnt(self, positions: Mapping[Partition, int]) -> int:
        """Return how many offsets the partitions that are read here hold after these positions, as far as known."""
        lags = self._source.statistics().lag.partitions
        ends = {partition: lag.end for partition, lag in lags.items() if lag.end is not None}
        return sum(max(0, ends[partition] - at) for partition, at in positions.items() if partition in ends)

    def backlog(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
        """Return how many records each partition holds after these positions."""
        ends = self._source.resolve_start(Latest())
        return {partition: max(0, ends.get(partition, at) - at) for partition, at in positions.items()}

    def _behind(self) -> list[Partition]:
        return [partition for partition, lag in self.lags().items() if lag > 0]


def feed_options(settings: Settings) -> FeedOptions:
    """Return the bounds of what is between hand-off and trainer."""
    bounds, scale = FeedOptions(max_bytes=int(settings.memory.limit * _FEED_SHARE)), settings.scale
    # In a group every call costs messages, and the largest block says for how many batches all members compute. So the
    # blocks of a backlog, whose records are late anyway, are filled while the others would wait for them.
    return bounds if scale.workers == 1 else replace(bounds, grace_s=max(bounds.grace_s, scale.patience))


def posting(
    dead_letters: DeadLetters, name: str, stopped: Callable[[], bool], *, framed: Collection[str] = ()
) -> OnRefused:
    """Return a callback that posts refused records as dead letters.

    Values of the topics of `framed` begin with a schema's number.

    It waits for room, but only for a moment, so that the trainer still gets its ticks.
    """

    def post(chunk: Chunk, refused: Sequence[Refused]) -> int:
        gives_up_at = time.monotonic() + _ROOM_S
        letters = letters_of(chunk, refused, name, framed=chunk.partition.topic in framed)
        return dead_letters.put(letters, lambda: stopped() or time.monotonic() >= gives_up_at)

    return post


def letters_of(chunk: Chunk, refused: Sequence[Refused], name: str, *, framed: bool) -> list[DeadLetter]:
    """Return the dead letters of refused records: their bytes, and the reasons."""
    # The offsets of a chunk ascend, with gaps.
    rows = chunk.offsets.searchsorted([one.offset for one in refused])
    partition, keys, values, headers = chunk.partition, chunk.keys, chunk.values, chunk.headers
    times = chunk.timestamps[rows].tolist()
    return [
        # In the sequence of its fields: by their names it takes twice as long.
        DeadLetter(partition, at, time_ms, keys[row], values[row], headers[row], reason, field, name, detail, framed)
        for (at, reason, field, _, detail), row, time_ms in zip(refused, rows.tolist(), times, strict=True)
    ]
