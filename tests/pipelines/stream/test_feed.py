"""The generator's body, with a real hand-off and real decoding: what it gives, when, and the outcome of the rest."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from millrace.consumers.errors import HandoffBroken
from millrace.consumers.handoff import Handoff, Pick
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import format_of
from millrace.pipelines.formats.plain.raw import RawDecoder
from millrace.pipelines.formats.shared.protocol import DecodedValues, Decoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Block, BlockFacts, Turn
from millrace.pipelines.stream.decode import DecodePool, Refused
from millrace.pipelines.stream.feed import Feed, FeedOptions, Tick, unless_skipped
from millrace.pipelines.stream.row_order import EventTimeOrder, RotationOptions
from millrace.pipelines.where.conditions import WhereCondition
from millrace.pipelines.where.selection import selecting

SCHEMA = Schema(features=(Field(name="id", source="id", dtype="int64"),))
P0, P1 = Partition("clicks", 0), Partition("clicks", 1)
BAD = b"bad"


@dataclass(frozen=True)
class Skip:
    order: str
    partition: Partition
    start: int
    end: int


def chunk(partition: Partition, count: int, start: int = 0, bad: Sequence[int] = (), **changes: Any) -> Chunk:
    """Return records that hold their own offset; the bad ones hold something else."""
    offsets = np.arange(start, start + count)
    values = [BAD if offset in bad else int(offset).to_bytes(8, "little") for offset in offsets]
    fields: dict[str, Any] = {
        "partition": partition,
        "incarnation": 1,
        "start": start,
        "end": start + count,
        "offsets": offsets,
        "timestamps": offsets,
        "keys": [None] * count,
        "values": values,
        "headers": [()] * count,
        "nbytes": 8 * count,
        "fetched_at": time.monotonic(),
    }
    return Chunk(**{**fields, **changes})


class Gated:
    """A decoder that waits at a gate."""

    def __init__(self, decoder: Decoder, gate: threading.Event) -> None:
        self._decoder, self._gate = decoder, gate
        self.schema = decoder.schema

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        assert self._gate.wait(20)
        return self._decoder.decode(values)


class Counting:
    """A decoder that records how many values it gets at once."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.schema = decoder.schema
        self.sizes: list[int] = []

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        self.sizes.append(len(values))
        return self._decoder.decode(values)


class Failing:
    """A decoder with a fault of its own."""

    schema = SCHEMA

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        raise ZeroDivisionError


@dataclass
class Rig:
    """A feed, with the hand-off before it and the pool."""

    handoff: Handoff
    pool: DecodePool
    assembler: Assembler
    feed: Feed
    refused: list[int] = field(default_factory=list)

    def blocks(self) -> list[Block]:
        """Return all blocks, to the end."""
        return [element for element in self.feed if isinstance(element, Block)]

    def offer(self, *chunks: Chunk) -> None:
        for item in chunks:
            assert self.handoff.offer(item)


@contextmanager
def rig(
    decoder: Decoder | None = None, pick: Pick | None = None, skips: Sequence[Skip] = (), **options: Any
) -> Iterator[Rig]:
    refused: list[int] = []

    def tell(_: Chunk, records: Sequence[Refused]) -> int:
        refused.extend(record.offset for record in records)
        return len(records)

    callback = unless_skipped(skips, tell)
    handoff = Handoff(capacity_bytes=1 << 20, partitions=2)
    pool = DecodePool(decoder or RawDecoder(SCHEMA), threads=2, on_refused=callback)
    bounds = {name: options.pop(name) for name in ("max_bytes", "max_chunks", "tick_s", "grace_s") if name in options}
    assemble = AssembleOptions(**{"batch_size": 4, "batches_per_call": 2, **options})
    assembler = Assembler(SCHEMA, assemble, [P0, P1], incarnation=1, skips=skips)
    feed = Feed(handoff, pool, assembler, FeedOptions(**{"max_bytes": 1 << 20, "tick_s": 0.02, **bounds}), pick)
    try:
        yield Rig(handoff, pool, assembler, feed, refused)
    finally:
        feed.close()
        pool.close()


def ids(blocks: Sequence[Block]) -> list[list[int]]:
    return [block.rows.features["id"][block.rows.offsets >= 0].tolist() for block in blocks]


def test_records_that_fill_no_batch_are_left_over_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with rig(whole_batches=True) as made:
        made.offer(chunk(P0, 5), chunk(P1, 2))
        made.handoff.end()
        assert ids(made.blocks()) == [[0, 1, 2, 3]]
        assert made.feed.statistics().balances[P1].discarded == 2
    assert "because they do not fill a batch: 3" in caplog.text


def test_all_that_was_sent_comes_out_in_order_and_then_it_ends() -> None:
    with rig() as made:
        made.offer(chunk(P0, 5), chunk(P0, 10, start=5), chunk(P0, 4, start=15))
        made.handoff.end()
        blocks = made.blocks()
        assert ids(blocks) == [list(range(8)), list(range(8, 16)), [16, 17, 18]]
        assert made.feed.error is None
    for facts in (block.facts for block in blocks):
        times = [facts.fetched_at, *facts.decoding, facts.assembled_at]
        assert times == sorted(times)
        assert facts.decoding[0] < facts.decoding[1] < facts.assembled_at


def test_an_idle_feed_ticks() -> None:
    with rig() as made:
        elements = iter(made.feed)
        began = time.monotonic()
        assert [next(elements) for _ in range(3)] == [Tick()] * 3
        assert time.monotonic() - began >= 0.05
        assert made.feed.statistics().waiting_records_s >= 0.05


def test_a_feed_that_waits_for_decoding_ticks_too_and_says_what_it_waits_for() -> None:
    gate = threading.Event()
    with rig(Gated(RawDecoder(SCHEMA), gate)) as made:
        made.offer(chunk(P0, 8))
        elements = iter(made.feed)
        assert [next(elements) for _ in range(3)] == [Tick()] * 3
        statistics = made.feed.statistics()
        assert statistics.waiting_decode_s >= 0.05
        assert statistics.balances[P0].decoding == 8
        assert statistics.decoding_bytes == 64
        gate.set()
        made.handoff.end()
        assert ids(made.blocks()) == [list(range(8))]


def test_a_row_waits_no_longer_than_max_wait() -> None:
    with rig(max_wait_s=0.05) as made:
        made.offer(chunk(P0, 3))
        block = next(element for element in made.feed if isinstance(element, Block))
        assert block.facts.rows == 3
        assert 0.05 <= time.monotonic() - block.facts.fetched_at < 5


def test_a_backlog_fills_its_blocks_although_its_time_has_long_run_out() -> None:
    with rig(max_wait_s=0.001, grace_s=10.0) as made:
        long_ago = time.monotonic() - 60
        made.offer(*(chunk(P0, 3, start=3 * at, fetched_at=long_ago) for at in range(16)))
        made.handoff.end()
        assert [block.facts.rows for block in made.blocks()] == [8] * 6


def test_a_late_block_keeps_filling_until_the_trainer_has_taken_the_one_before() -> None:
    gate = threading.Event()
    gate.set()
    with rig(Gated(RawDecoder(SCHEMA), gate), max_wait_s=0.05, tick_s=3600) as made:
        elements = iter(made.feed)
        made.offer(chunk(P0, 8))
        first = next(elements)
        gate.clear()
        made.offer(chunk(P0, 3, start=8), chunk(P0, 5, start=11))
        threading.Timer(0.2, gate.set).start()
        second = next(elements)
        assert isinstance(first, Block)
        assert isinstance(second, Block)
        assert second.facts.rows == 8, "nobody waited for it, so it need not have gone with three"


def test_a_block_is_given_on_time_once_the_trainer_has_taken_the_one_before() -> None:
    gate = threading.Event()
    gate.set()
    with rig(Gated(RawDecoder(SCHEMA), gate), max_wait_s=0.05, tick_s=3600) as made:
        elements = iter(made.feed)
        made.offer(chunk(P0, 8), chunk(P0, 3, start=8))
        first = next(elements)
        assert isinstance(first, Block)
        made.feed.facts_of(first.facts.number)
        gate.clear()
        made.offer(chunk(P0, 5, start=11))
        second = next(elements)
        gate.set()
        assert isinstance(second, Block)
        assert second.facts.rows == 3


def test_there_are_no_ticks_while_the_trainer_has_a_block_to_take() -> None:
    gate = threading.Event()
    gate.set()
    with rig(Gated(RawDecoder(SCHEMA), gate), tick_s=0.01) as made:
        elements = iter(made.feed)
        made.offer(chunk(P0, 8))
        first = next(element for element in elements if isinstance(element, Block))
        made.offer(chunk(P0, 3, start=8))
        threading.Timer(0.3, lambda: made.offer(chunk(P0, 5, start=11))).start()
        assert isinstance(next(elements), Block)
        made.feed.facts_of(first.facts.number)
        made.feed.facts_of(first.facts.number + 1)
        assert next(elements) == Tick()


def test_a_policy_that_waits_loses_nothing_when_all_was_sent() -> None:
    behind = EventTimeOrder(lambda: {P0, P1}, slack_s=1.0)
    with rig(pick=behind) as made:
        made.offer(chunk(P0, 5), chunk(P0, 6, start=5))
        made.handoff.end()
        assert ids(made.blocks()) == [list(range(8)), [8, 9, 10]]


def test_a_backlog_comes_in_order_of_event_time() -> None:
    with rig(pick=EventTimeOrder(set, slack_s=1.0)) as made:
        made.offer(*(chunk(P0, 8, start=at, timestamps=1000 * np.arange(at, at + 8)) for at in (0, 8)))
        made.offer(chunk(P1, 8, timestamps=1000 * np.arange(4, 12)))
        made.handoff.end()
        assert [block.facts.spans[0].partition for block in made.blocks()] == [P0, P1, P0]


def test_a_trickle_of_small_chunks_is_decoded_as_few_larger_ones() -> None:
    decoder = Counting(RawDecoder(SCHEMA))
    with rig(decoder) as made:
        made.offer(*(chunk(P0, 1, start=at) for at in range(16)))
        made.handoff.end()
        assert ids(made.blocks()) == [list(range(8)), list(range(8, 16))]
    assert decoder.sizes == [16]


def test_a_broken_source_raises_after_the_blocks_that_were_whole() -> None:
    with rig() as made:
        elements = iter(made.feed)
        made.offer(chunk(P0, 11))
        first = next(element for element in elements if isinstance(element, Block))
        made.handoff.fail(OSError("gone"))
        with pytest.raises(HandoffBroken, match="gone"):
            list(elements)
        assert first.facts.rows == 8
        assert isinstance(made.feed.error, HandoffBroken)
        assert made.feed.statistics().balances[P0].discarded == 3


def test_a_closed_hand_off_ends_the_feed_at_once_and_what_it_held_is_counted() -> None:
    with rig() as made:
        made.offer(chunk(P0, 11))
        elements = iter(made.feed)
        block = next(element for element in elements if isinstance(element, Block))
        made.handoff.close()
        assert list(elements) == []
        assert made.feed.facts_of(block.facts.number) is block.facts
        balance = made.feed.statistics().balances[P0]
        assert (balance.handed, balance.discarded, balance.held) == (8, 3, 0)
        assert made.feed.error is None


def test_a_decoder_that_raises_ends_the_feed_with_its_own_error() -> None:
    with rig(Failing()) as made:
        made.offer(chunk(P0, 3))
        with pytest.raises(ZeroDivisionError):
            list(made.feed)
        assert isinstance(made.feed.error, ZeroDivisionError)
        assert made.feed.statistics().balances[P0].discarded == 3


def in_thread(body: Callable[[], Any]) -> Callable[[], Any]:
    """Run the body in a thread; return a function that waits for its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(body()))
    thread.start()

    def result() -> Any:
        thread.join(20)
        assert not thread.is_alive()
        return results[0]

    return result


def test_stop_ends_a_feed_that_waits_for_records() -> None:
    with rig(tick_s=60.0) as made:
        result = in_thread(lambda: list(made.feed))
        made.feed.stop()
        assert result() == []


def test_a_stop_between_the_check_and_the_wait_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(tick_s=60.0) as made:
        receive = made.handoff.receive

        def stopped_meanwhile(timeout: float | None, pick: Pick | None = None) -> Chunk:
            if timeout == 0.0:
                made.feed.stop()
            return receive(timeout, pick)

        monkeypatch.setattr(made.handoff, "receive", stopped_meanwhile)
        assert in_thread(lambda: list(made.feed))() == []


def test_stop_ends_a_feed_that_waits_for_decoding_and_its_chunks_are_counted(
    wait_for: Callable[[Callable[[], Any]], Any],
) -> None:
    gate = threading.Event()
    with rig(Gated(RawDecoder(SCHEMA), gate), tick_s=0.02) as made:
        made.offer(chunk(P0, 8))
        result = in_thread(lambda: list(made.feed))
        wait_for(lambda: made.pool.in_flight)
        made.feed.stop()
        assert set(result()) <= {Tick()}
        assert made.feed.statistics().balances[P0].discarded == 8
        assert made.pool.in_flight == 0
        gate.set()


def test_closing_discards_blocks_that_the_trainer_never_got() -> None:
    with rig() as made:
        made.offer(chunk(P0, 20))
        elements = iter(made.feed)
        blocks = [element for _, element in zip(range(2), elements, strict=False) if isinstance(element, Block)]
        assert made.feed.statistics().under_way_bytes > 0
        made.feed.facts_of(0)
        made.feed.close()
        balance = made.feed.statistics().balances[P0]
        assert len(blocks) == 2
        assert (balance.handed, balance.discarded, balance.held) == (8, 12, 0)
        assert list(elements) == []


def test_every_record_is_in_one_place_at_every_step() -> None:
    with rig(skips=[Skip("rewind-1", P1, 3, 9)]) as made:
        for at in range(6):
            made.offer(chunk(P0, 7, start=7 * at, bad=[7 * at]), chunk(P1, 5, start=5 * at, bad=[5 * at + 1]))
        made.handoff.end()
        learnt = 0
        for element in made.feed:
            assert isinstance(element, Block)
            statistics = made.feed.statistics()
            assert all(balance.balanced() for balance in statistics.balances.values())
            assert sum(balance.under_way for balance in statistics.balances.values()) > 0
            learnt += made.feed.facts_of(element.facts.number).rows
        balances = made.feed.statistics().balances
        assert [(balances[p].handed, balances[p].held) for p in (P0, P1)] == [(42, 0), (30, 0)]
        assert learnt == 72 - 6 - 6 - 5  # refused; skipped, of which one was bad


def test_skipped_records_are_no_dead_letters() -> None:
    with rig(skips=[Skip("rewind-1", P0, 0, 4)]) as made:
        made.offer(chunk(P0, 8, bad=[2, 6]))
        made.handoff.end()
        (block,) = made.blocks()
        assert made.refused == [6]
        assert block.facts.spans[0].skipped == {"rewind-1": 4}
        assert block.facts.spans[0].set_aside == {Reason.MALFORMED: 1}


def test_a_refused_record_of_another_partition_is_not_skipped() -> None:
    seen: list[int] = []

    def tell(_: Chunk, records: Sequence[Refused]) -> int:
        seen.extend(record.offset for record in records)
        return 1

    callback = unless_skipped([Skip("rewind-1", P0, 0, 4)], tell)
    assert callback(chunk(P1, 4), [Refused(2, Reason.EMPTY)]) == 1
    assert seen == [2]
    # Of those that are not skipped only the first is accepted: the second is told again, and the skipped one between.
    mixed = [Refused(offset, Reason.EMPTY) for offset in (1, 4, 3, 5)]
    assert callback(chunk(P0, 6), mixed) == 3
    assert seen[1:] == [4, 5]
    assert callback(chunk(P0, 6), mixed[:1]) == 1


def test_chunks_of_an_older_incarnation_are_not_even_decoded() -> None:
    with rig() as made:
        made.offer(chunk(P0, 5, bad=[1], incarnation=0), chunk(P0, 2, start=40))
        made.handoff.end()
        assert ids(made.blocks()) == [[40, 41]]
        assert made.refused == []
        assert made.feed.statistics().stale == 5


def test_the_limit_ends_the_feed_and_the_rest_is_discarded() -> None:
    with rig(limit=10) as made:
        made.offer(chunk(P0, 12), chunk(P0, 9, start=12))
        assert ids(made.blocks()) == [list(range(8)), [8, 9]]
        balance = made.feed.statistics().balances[P0]
        assert balance.balanced()
        assert balance.discarded >= 2


def test_a_block_larger_than_the_bound_is_filled_all_the_same() -> None:
    with rig(max_bytes=1, batches_per_call=100) as made:
        made.offer(*(chunk(P0, 10, start=10 * at) for at in range(40)))
        made.handoff.end()
        assert [block.facts.rows for block in made.blocks()] == [400]


def test_what_is_held_stays_within_its_bytes() -> None:
    gate, size = threading.Event(), 8 * 10
    with rig(Gated(RawDecoder(SCHEMA), gate), max_bytes=4 * size, max_chunks=100) as made:
        made.offer(*(chunk(P0, 10, start=10 * at, timestamps=2000 * np.arange(10) + at) for at in range(40)))
        assert next(iter(made.feed)) == Tick()
        assert made.handoff.statistics().received.chunks == 4
        gate.set()


def test_no_more_chunks_are_decoded_at_once_than_allowed() -> None:
    gate = threading.Event()
    with rig(Gated(RawDecoder(SCHEMA), gate), max_chunks=3) as made:
        made.offer(*(chunk(P0, 2, start=2 * at, timestamps=2000 * np.arange(2) + at) for at in range(10)))
        assert next(iter(made.feed)) == Tick()
        assert made.pool.in_flight == 3
        gate.set()


def test_a_rotation_waits_for_the_partition_whose_turn_it_is() -> None:
    with rig(rotation=RotationOptions(share=2)) as made:
        made.offer(*(chunk(P0, 2, start=2 * at) for at in range(20)))
        elements = iter(made.feed)
        assert next(elements) == Tick()
        assert made.handoff.statistics().received.chunks <= 4, "it takes only a little ahead of the others"
        made.offer(chunk(P1, 40))
        made.handoff.end()
        blocks = [element for element in elements if isinstance(element, Block)]
        assert ids(blocks)[0] == [0, 1, 0, 1, 2, 3, 2, 3]
        assert [block.facts.rows for block in blocks] == [8] * 10
        assert blocks[-1].facts.turn == Turn(P0, 0)


def test_filtered_records_are_at_one_stage_each_and_are_no_dead_letters() -> None:
    """They are handed on within the blocks that settle their offsets."""
    (field,) = SCHEMA.fields
    where = {field.source: WhereCondition.model_validate({"max": 5})}
    decoder = selecting(RawDecoder(SCHEMA), where, format_of("raw"))
    with rig(decoder, max_wait_s=0.05) as made:
        made.offer(chunk(P0, 20, bad=(2, 9)))
        made.handoff.end()
        facts = list[BlockFacts]()
        # Where the decoding takes its time, ticks come before.
        for block in (element for element in made.feed if isinstance(element, Block)):
            balance = made.feed.statistics().balances[P0]
            assert (balance.decoding, balance.assembling, balance.under_way) == (0, 0, 20)
            facts.append(made.feed.facts_of(block.facts.number))
    assert made.feed.statistics().balances[P0].handed == 20
    assert sum(span.filtered for one in facts for span in one.spans) == 13
    assert (sum(one.rows for one in facts), made.refused) == (5, [2, 9])
