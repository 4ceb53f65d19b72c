"""One incarnation between Kafka and the trainer: real hand-off, decoder, assembler and feed, stepped by a test."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import tensorflow as tf

from millrace.consumers.handoff import Handoff
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.stream.assemble import Assembler
from millrace.pipelines.stream.blocks import Block, Delivery, Rows
from millrace.pipelines.stream.decode import DecodePool, Refused
from millrace.pipelines.stream.feed import Feed, FeedOptions, Tick, unless_skipped
from millrace.training.stream import StreamEnded, StreamStart
from tests.properties.lives.log import DECODER, SCHEMA
from tests.properties.lives.world import World

PutLetter = Callable[[Partition, int, Reason], None]


class _AtOnce:
    """Decodes when it is told to: a pool's threads would make a machine's steps depend on the scheduler."""

    def submit(self, function: Callable[..., Any], *given: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(function(*given))
        return future

    def shutdown(self, **_: Any) -> None:
        """Do nothing, as nothing runs."""


class Line:
    """One incarnation's hand-off, decoding, assembly and feed, what was drawn ahead of the trainer, and the source."""

    def __init__(self, world: World, order: StreamStart, put_letter: PutLetter) -> None:
        self._world, self.order, self._put_letter = world, order, put_letter
        clock = world.clock
        self.handoff = Handoff(capacity_bytes=world.room, partitions=max(1, len(order.positions)), clock=clock)
        self.pool = DecodePool(DECODER, threads=1, on_refused=unless_skipped(order.skips, self._refused))
        self.pool._executor = _AtOnce()  # type: ignore[assignment]
        rotation = world.rotation
        if rotation is not None:
            rotation = replace(rotation, start=order.turn, positions=order.positions)
        options = replace(world.options, rotation=rotation)
        table = sorted(order.positions)
        assembler = Assembler(SCHEMA, options, table, order.incarnation, order.skips)
        self.feed = Feed(
            self.handoff, self.pool, assembler, FeedOptions(max_bytes=4096, max_chunks=2, tick_s=0.0), clock=clock
        )
        self._elements: Iterator[Block | Tick] = iter(self.feed)
        self._ahead: deque[Block] = deque()
        self.positions = dict(order.positions)
        self.joined: dict[Partition, int] = {}
        """Where partitions began that came later."""
        self.fetched: Counter[Partition] = Counter()
        self.closed = False

    def fetch(self, partition: Partition, count: int) -> int:
        """Send the next offsets of a partition as the source does, if there is room; return how many."""
        log = self._world.log
        if partition not in self.positions:
            self.joined[partition] = self.positions[partition] = log.firsts[partition]
        start = self.positions[partition]
        chunk = log.chunk(partition, start, count, (self.order.incarnation, self._world.clock()))
        if chunk is None or not self.handoff.offer(chunk):
            return 0
        self.positions[partition] = chunk.end
        self.fetched[partition] += len(chunk)
        return chunk.end - start

    def draw_ahead(self) -> None:
        """Do nothing: the machine chooses what is drawn when, by `prefetch`."""

    def prefetch(self) -> None:
        """Draw one element ahead, as a dataset does."""
        if isinstance(element := next(self._elements, None), Block):
            self._ahead.append(element)

    def take(self) -> Delivery | None:
        element = self._ahead.popleft() if self._ahead else next(self._elements, None)
        if element is None:
            raise StreamEnded
        if isinstance(element, Tick):
            return None
        return Delivery(_tensors(element), self.feed.facts_of(element.facts.number))

    def close(self) -> None:
        self.closed = True
        self.handoff.close()
        self.feed.close()
        self.pool.close()
        self._ahead.clear()
        assert next(self._elements, None) is None, "it gives blocks though it was closed"

    def _refused(self, chunk: Chunk, refused: Sequence[Refused]) -> int:
        for one in refused:
            self._put_letter(chunk.partition, one.offset, one.reason)
        return len(refused)


def _tensors(block: Block) -> Rows:
    rows = block.rows
    return Rows(
        features={"id": tf.constant(rows.features["id"])},
        labels=tf.constant(rows.labels["y"]),
        weights=tf.constant(rows.weights),
        offsets=tf.constant(rows.offsets),
        partitions=tf.constant(rows.partitions),
    )
