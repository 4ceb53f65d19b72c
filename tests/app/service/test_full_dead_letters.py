"""Dead letters that their topic does not take: decoding waits, the trainer does not, and no letter is put twice."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from millrace.app.service.kafka_stream import posting
from millrace.consumers.dead_letters.backlog import BacklogOptions
from millrace.consumers.dead_letters.producer import DeadLetterOptions, KafkaDeadLetters
from millrace.consumers.errors import DeadLettersStopped
from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Block
from millrace.pipelines.stream.decode import DecodePool
from millrace.pipelines.stream.feed import Feed, FeedOptions, Tick

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(60)]

SCHEMA = Schema(features=(Field(name="id", source="id", dtype="int64"),))
P = Partition("clicks", 0)


@dataclass
class Rig:
    """A feed whose dead letters find room for one at a time."""

    handoff: Handoff
    feed: Feed
    letters: KafkaDeadLetters

    def acknowledge(self) -> list[int]:
        """Let the topic take what waits; return the offsets."""
        window = self.letters._backlog.oldest(100, 1 << 20)
        self.letters._backlog.acknowledge(len(window))
        return [letter.offset for letter in window]


@contextmanager
def rig() -> Iterator[Rig]:
    kafka = KafkaOptions(bootstrap_servers=("127.0.0.1:1",), topics=("clicks",), group_id="g")
    letters = KafkaDeadLetters(kafka, DeadLetterOptions(topic="dead", backlog=BacklogOptions(capacity_bytes=1)))
    handoff = Handoff(capacity_bytes=1 << 20)
    stopped: list[Feed] = []
    on_refused = posting(letters, "clicks", lambda: stopped[0].stopped)
    pool = DecodePool(make_decoder("json", SCHEMA), threads=1, on_refused=on_refused)
    assembler = Assembler(SCHEMA, AssembleOptions(batch_size=4, batches_per_call=1), [P], incarnation=1)
    feed = Feed(handoff, pool, assembler, FeedOptions(max_bytes=1 << 20, tick_s=0.01))
    stopped.append(feed)
    try:
        yield Rig(handoff, feed, letters)
    finally:
        feed.close()
        pool.close()
        letters.stop(0.0)


def chunk(values: list[bytes]) -> Chunk:
    offsets = np.arange(len(values))
    return Chunk(
        partition=P,
        incarnation=1,
        start=0,
        end=len(values),
        offsets=offsets,
        timestamps=offsets,
        keys=[None] * len(values),
        values=values,
        headers=[()] * len(values),
        nbytes=100,
        fetched_at=0.0,
    )


def test_the_trainer_gets_its_turns_while_no_dead_letter_is_taken() -> None:
    with rig() as made:
        made.handoff.offer(chunk([b"{"] * 3))
        elements = iter(made.feed)
        assert [next(elements) for _ in range(3)] == [Tick()] * 3
        assert made.letters.sequence() == 1


def test_each_letter_is_put_once_and_in_order_however_often_there_was_no_room() -> None:
    with rig() as made:
        made.handoff.offer(chunk([b"{", b'{"id": 1}', b"{", b"{", b'{"id": 4}']))
        made.handoff.end()
        taken: list[int] = []
        blocks: list[Block] = []
        for element in made.feed:
            taken += made.acknowledge()
            if isinstance(element, Block):
                blocks.append(element)
        assert taken == [0, 2, 3]
        assert [block.facts.rows for block in blocks] == [2]
        assert made.letters.sequence() == 3


def test_a_feed_that_waits_for_room_is_stopped_at_once() -> None:
    with rig() as made:
        made.handoff.offer(chunk([b"{"] * 3))
        elements = iter(made.feed)
        next(elements)
        made.feed.close()
        assert next(elements, None) is None
        assert made.feed.statistics().balances[P].discarded == 3


def test_a_feed_whose_dead_letters_were_stopped_ends_with_that() -> None:
    with rig() as made:
        made.handoff.offer(chunk([b"{"]))
        made.letters.stop(0.0)
        with pytest.raises(DeadLettersStopped):
            list(made.feed)
