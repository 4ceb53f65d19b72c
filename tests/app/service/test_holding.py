"""What holds the learning: a flood in front of the real feed, and dead letters that are not acknowledged."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from millrace.app.service.holding import STALLED_S, Holding, NotConnected
from millrace.app.service.kafka_stream import posting
from millrace.app.settings import Settings
from millrace.app.settings.loading import load
from millrace.consumers.dead_letters.backlog import Backlog, BacklogOptions
from millrace.consumers.dead_letters.letter import CountedOnly, DeadLetter, DeadLetters
from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.gates.flood import FloodGate, PauseAboveSettings
from millrace.pipelines.gates.gate import HeldBy, LearningHold
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Block
from millrace.pipelines.stream.decode import DecodePool
from millrace.pipelines.stream.feed import Feed, FeedOptions, Tick

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(60)]

SCHEMA = Schema(features=(Field(name="id", source="id", dtype="int64"),))
P = Partition("clicks", 0)
MOST_BYTES = 1 << 20
CONFIG = """
name: clicks
kafka: {bootstrap_servers: ["127.0.0.1:1"], topics: [clicks]}
records:
  features: {id: int64}
  dead_letters: {topic: dead, pause_above: {share: 10 %, over: 30s}}
model: {build: "./model.py:build_model"}
checkpoints: {path: ./checkpoints}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    config = tmp_path / "clicks.yaml"
    config.write_text(CONFIG)
    (tmp_path / "model.py").write_text("def build_model(): ...\n")
    return load(config, {}).settings


def chunk(values: list[bytes], start: int) -> Chunk:
    offsets = np.arange(start, start + len(values))
    return Chunk(
        partition=P,
        incarnation=1,
        start=start,
        end=start + len(values),
        offsets=offsets,
        timestamps=offsets,
        keys=[None] * len(values),
        values=values,
        headers=[()] * len(values),
        nbytes=100 * len(values),
        fetched_at=0.0,
    )


@contextlib.contextmanager
def held_feed() -> Iterator[tuple[Handoff, Feed, CountedOnly, FloodGate]]:
    """Give a feed behind a gate, with its hand-off and its dead letters."""
    letters, gate = CountedOnly(), FloodGate(PauseAboveSettings(share=0.05, over="60s"))
    gate.begin({P: 0})
    handoff = Handoff(capacity_bytes=MOST_BYTES)
    pool = DecodePool(
        make_decoder("json", SCHEMA),
        threads=2,
        on_refused=posting(letters, "clicks", lambda: False),
        admits=gate.admits,
    )
    assembler = Assembler(SCHEMA, AssembleOptions(batch_size=4, batches_per_call=64), [P], incarnation=1)
    feed = Feed(handoff, pool, assembler, FeedOptions(max_bytes=MOST_BYTES, tick_s=0.01))
    try:
        yield handoff, feed, letters, gate
    finally:
        feed.close()
        pool.close()


def test_a_held_flood_sets_nothing_aside_holds_little_and_passes_whole_once_released() -> None:
    with held_feed() as (handoff, feed, letters, gate):
        handoff.offer(chunk([b'{"id": 7}'] * 40, 0))
        handoff.offer(chunk([*[b"{"] * 199, b'{"id": 8}'], 40))
        handoff.offer(chunk([b'{"id": 9}'] * 60, 240))
        handoff.end()
        elements, given = iter(feed), list[Block | Tick]()
        while gate.why is None or not isinstance(given[-1], Tick):
            given.append(next(elements))
        began = time.process_time()
        held = [next(elements) for _ in range(20)]
        assert time.process_time() - began < 1.0, "it waits, and does not spin"
        assert held == [Tick()] * 20
        assert letters.sequence() == 0
        assert feed.statistics().decoding_bytes < MOST_BYTES
        assert gate.let_pass({})
        given += list(elements)
        blocks = [each.facts for each in given if isinstance(each, Block)]
        assert sum(facts.rows for facts in blocks) == 101
        assert letters.statistics().by_reason == {Reason.MALFORMED: 199}
        assert letters.sequence() == 199


def test_a_feed_that_is_held_stops_at_once_and_drops_what_it_holds() -> None:
    with held_feed() as (handoff, feed, letters, gate):
        handoff.offer(chunk([b"{"] * 100, 0))
        elements = iter(feed)
        while gate.why is None:
            next(elements)
        feed.close()
        assert next(elements, None) is None
        assert feed.statistics().balances[P].discarded == 100
        assert letters.sequence() == 0


def test_dead_letters_hold_the_learning_once_none_is_acknowledged_for_seconds(settings: Settings) -> None:
    clock = [100.0]
    backlog = Backlog(BacklogOptions(), lambda: clock[0])
    above = settings.records.dead_letters.model_copy(update={"pause_above": None})
    bare = settings.model_copy(update={"records": settings.records.model_copy(update={"dead_letters": above})})
    holding = Holding(bare)
    kafka = KafkaOptions(bootstrap_servers=("127.0.0.1:1",), topics=("clicks",), group_id="g")
    # It asks the sink for one property, which is the backlog's; without a bound for bad records it starts no thread.
    holding.watch(NotConnected(), cast("DeadLetters", backlog), kafka, contextlib.ExitStack())
    letter = DeadLetter(
        partition=P,
        offset=0,
        timestamp_ms=0,
        key=None,
        value=b"{",
        headers=(),
        reason=Reason.MALFORMED,
        field=None,
        model="clicks",
    )
    clock[0] += 1000
    assert holding.reason is None, "nothing waits"
    backlog.put_at_once(letter)
    backlog.put_at_once(letter)
    clock[0] += STALLED_S
    assert holding.now() is None
    clock[0] += 2
    assert holding.now() == LearningHold(by=HeldBy.DEAD_LETTERS, why="the topic dead has taken no dead letter for 12 s")
    backlog.acknowledge(1)
    assert holding.now() is None, "it takes some"
    clock[0] += STALLED_S + 1
    assert holding.now() is not None
    backlog.acknowledge(1)
    clock[0] += 1000
    assert holding.now() is None


def test_a_flood_holds_the_learning_by_the_settings_share_until_it_is_let_pass(settings: Settings) -> None:
    holding = Holding(settings)
    (gate,) = holding.gates
    assert isinstance(gate, FloodGate)
    assert gate.options == PauseAboveSettings(share=0.1, over="30s")
    gate.begin({P: 0})
    pool = DecodePool(make_decoder("json", SCHEMA), threads=1)
    pool.submit(chunk([b"{"] * 200, 0))
    assert not gate.admits(pool.next(10.0))
    pool.close()
    found = holding.now()
    assert found is not None
    assert (found.by, found.why) == (HeldBy.FLOOD, holding.reason)
    holding.let_pass()
    assert holding.now() is None
