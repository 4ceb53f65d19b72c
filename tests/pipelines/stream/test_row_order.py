"""Row order: a strict rotation depends on the partitions' rows and nothing else, a mixture on what topics weigh."""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Block, Turn
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.row_order import GRAIN, RotationOptions, shares

SCHEMA = Schema(features=(Field(name="id", source="id", dtype="int64"),))
PARTITIONS = P0, P1, P2 = Partition("clicks", 0), Partition("clicks", 1), Partition("refunds", 2)
UNCUT: Mapping[Partition, Sequence[int]] = dict.fromkeys(PARTITIONS, ())
Log = Mapping[Partition, Sequence[bool]]
"""By partition: for each offset, whether a row is there."""


def chunk(partition: Partition, present: Sequence[bool], start: int = 0) -> Decoded:
    offsets = start + np.flatnonzero(np.array(present, dtype=bool)).astype(np.int64)
    return Decoded(
        partition=partition,
        incarnation=1,
        start=start,
        end=start + len(present),
        fetched_at=0.0,
        lost=0,
        offsets=offsets,
        event_times=offsets,
        features={"id": offsets},
        labels={},
        weights=None,
        refused=(),
        nbytes=8 * len(offsets),
    )


def make(
    share: int = 2, limit: int | None = None, shuffle: int = 0, *, whole: bool = False, **rotation: Any
) -> Assembler:
    options = AssembleOptions(
        batch_size=2,
        batches_per_call=2,
        limit=limit,
        shuffle=shuffle,
        whole_batches=whole,
        rotation=RotationOptions(share=share, **rotation),
    )
    return Assembler(SCHEMA, options, PARTITIONS, incarnation=1)


def chunks_of(log: Log, cuts: Mapping[Partition, Sequence[int]], positions: Mapping[Partition, int]) -> list[Decoded]:
    """Return the log from these positions on, cut at these places, partition after partition."""
    chunks = []
    for partition, present in log.items():
        first = positions.get(partition, 0)
        bounds = [first, *sorted({cut for cut in cuts[partition] if first < cut < len(present)}), len(present)]
        chunks += [chunk(partition, present[a:b], a) for a, b in pairwise(bounds) if a < b]
    return chunks


def run(assembler: Assembler, chunks: Sequence[Decoded], order: Sequence[int], *, flush: bool = True) -> list[Block]:
    """Give the chunks in an order drawn by partition, take what is ready each time, and flush."""
    queues: dict[Partition, list[Decoded]] = {partition: [] for partition in PARTITIONS}
    for item in chunks:
        queues[item.partition].append(item)
    blocks: list[Block] = []
    draws = iter(order)
    while any(queues.values()):
        waiting = [partition for partition, queue in queues.items() if queue]
        assembler.add(queues[waiting[next(draws, 0) % len(waiting)]].pop(0))
        while (block := assembler.take(0.0)) is not None:
            blocks.append(block)
    while flush and (block := assembler.take(0.0, flush=True)) is not None:
        blocks.append(block)
    return blocks


def rows(blocks: Sequence[Block]) -> list[list[tuple[int, int]]]:
    """Return, by call, (partition, offset) of its rows in order, with absent rows. No rows are no call."""
    return [
        list(zip(block.rows.partitions.ravel().tolist(), block.rows.offsets.ravel().tolist(), strict=True))
        for block in blocks
        if block.facts.batches
    ]


LOGS = st.fixed_dictionaries({partition: st.lists(st.booleans(), max_size=30) for partition in PARTITIONS})
CUTS = st.fixed_dictionaries({partition: st.lists(st.integers(1, 29), max_size=5) for partition in PARTITIONS})
ORDER = st.lists(st.integers(0, 2), max_size=20)


WEIGHTS = st.sampled_from([{}, {"clicks": 3.0, "refunds": 1.0}, {"clicks": 1.0, "refunds": 2.5}])


@given(LOGS, CUTS, CUTS, st.tuples(ORDER, ORDER), st.integers(1, 5), st.sampled_from([0, 5]), WEIGHTS)
def test_blocks_do_not_depend_on_chunks_or_on_who_comes_first(
    log: Log, cuts: Any, others: Any, orders: Any, share: int, shuffle: int, weights: Any
) -> None:
    once = run(make(share, shuffle=shuffle, weights=weights), chunks_of(log, cuts, {}), orders[0])
    again = run(make(share, shuffle=shuffle, weights=weights), chunks_of(log, others, {}), orders[1])
    assert rows(once) == rows(again)
    turns = [[block.facts.turn for block in blocks if block.facts.batches] for blocks in (once, again)]
    assert turns[0] == turns[1]
    learnt = sorted(row for block in rows(once) for row in block if row[1] >= 0)
    expected = [(p.number, offset) for p, present in log.items() for offset, here in enumerate(present) if here]
    assert learnt == sorted(expected)


@given(LOGS, st.tuples(CUTS, CUTS), ORDER, st.integers(1, 5), st.integers(1, 8), st.booleans(), WEIGHTS)
def test_a_restart_after_any_block_goes_on_with_the_same_blocks(
    log: Log, both: Any, order: list[int], share: int, kept: int, whole: bool, weights: Any
) -> None:
    cuts, others = both
    undisturbed = run(make(share, shuffle=5, whole=whole, weights=weights), chunks_of(log, cuts, {}), order)
    before = undisturbed[:kept]
    positions = {span.partition: span.end for block in before for span in block.facts.spans}
    start = before[-1].facts.turn if before else None

    restarted = make(share, shuffle=5, whole=whole, start=start, positions=positions, weights=weights)
    after = run(restarted, chunks_of(log, others, positions), order)

    assert rows(before) + rows(after) == rows(undisturbed)


@given(LOGS, CUTS, ORDER, st.integers(1, 5))
def test_a_known_end_is_passed_over_as_a_flush_passes_over_it(
    log: Log, cuts: Any, order: list[int], share: int
) -> None:
    flushed = run(make(share), chunks_of(log, cuts, {}), order)
    ends = {partition: len(present) for partition, present in log.items()}
    known = make(share, ends=ends, positions=dict.fromkeys(PARTITIONS, 0))
    assert rows(run(known, chunks_of(log, cuts, {}), order)) == rows(flushed)


def test_each_partition_gives_its_share_in_turn() -> None:
    blocks = run(
        make(share=2),
        chunks_of({P0: [True] * 4, P1: [True] * 4, P2: [True] * 4}, UNCUT, {}),
        [],
    )
    assert [row for block in rows(blocks) for row in block] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3),
    ]  # fmt: skip


def test_the_rotation_waits_for_an_empty_partition_and_says_for_which() -> None:
    assembler = make(share=2)
    assert assembler.wanted() == P0
    assembler.add(chunk(P0, [True] * 9))
    assembler.add(chunk(P2, [True] * 9))
    assert assembler.take(1e9) is None
    assert assembler.wanted() == P1
    assembler.add(chunk(P1, [True]))
    assert assembler.wanted() == P1, "one more row of its share is missing"
    assembler.add(chunk(P1, [True], start=1))
    assert assembler.full
    assert assembler.wanted() is None


def test_a_partition_that_has_ended_is_not_waited_for() -> None:
    assembler = make(share=2, ends={P0: 3, P1: 0}, positions={P0: 0, P1: 0})
    assembler.add(chunk(P0, [True] * 3))
    assert assembler.wanted() == P2
    assembler.add(chunk(P2, [True] * 4))
    assert rows([block for block in [assembler.take(0.0)] if block]) == [[(0, 0), (0, 1), (2, 0), (2, 1)]]


def test_the_facts_say_where_the_rotation_stands() -> None:
    (block,) = run(make(share=3), [chunk(P0, [True] * 3), chunk(P1, [True] * 5)], [], flush=False)
    assert block.facts.turn == Turn(P1, 1)


def test_a_limit_cuts_the_rotation_to_the_row() -> None:
    log = {partition: [True] * 9 for partition in PARTITIONS}
    blocks = run(make(share=4, limit=5), chunks_of(log, UNCUT, {}), [])
    assert [block.facts.rows for block in blocks] == [4, 1]
    assert blocks[-1].facts.turn == Turn(P1, 1)


def test_time_may_not_close_a_block_of_a_rotation() -> None:
    with pytest.raises(ConfigError, match="max_wait"):
        AssembleOptions(batch_size=2, batches_per_call=2, max_wait_s=0.5, rotation=RotationOptions(share=1))


def test_a_partition_that_nobody_ordered_does_not_join() -> None:
    with pytest.raises(ConfigError, match="clicks:7"):
        make().add(chunk(Partition("clicks", 7), [True]))


def test_a_rotation_that_stands_at_an_unknown_partition_is_refused() -> None:
    with pytest.raises(ConfigError, match="clicks:7"):
        make(start=Turn(Partition("clicks", 7), 0))


def test_a_share_of_no_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="share"):
        make(share=0)


def test_a_flush_leaves_the_turn_at_the_first_row_that_waits_for_a_whole_batch() -> None:
    log = {partition: [True] for partition in PARTITIONS}
    (block,) = run(make(share=1, whole=True), chunks_of(log, dict.fromkeys(PARTITIONS, ()), {}), [])
    assert block.facts.rows == 2
    assert block.facts.turn == Turn(PARTITIONS[2], 0)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({}, [64, 64, 64]),
        ({"clicks": 3, "refunds": 1}, [96, 96, 64]),
        ({"clicks": 1, "refunds": 1}, [64, 64, 128]),
        ({"clicks": 1, "refunds": 1e6}, [1, 1, 4096]),
    ],
)
def test_a_topic_gives_rows_by_its_weight_however_many_partitions_it_has(weights: Any, expected: list[int]) -> None:
    assert [*shares(weights, PARTITIONS, 64).values()] == expected


def test_a_turn_that_other_weights_have_used_up_passes_to_the_next_partition() -> None:
    rotation = make(share=2, start=Turn(P0, 9), weights={"clicks": 2.0, "refunds": 1.0})
    blocks = run(rotation, chunks_of({P0: [True] * 4, P1: [True] * 4, P2: [True] * 4}, UNCUT, {}), [])
    assert rows(blocks)[0] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def mixing(weights: Mapping[str, float], rows_of_a_block: int = 2048) -> Assembler:
    options = AssembleOptions(batch_size=rows_of_a_block, batches_per_call=1, weights=weights)
    return Assembler(SCHEMA, options, PARTITIONS, incarnation=1)


def topics_of(block: Block) -> list[str]:
    """Return the topic of each row."""
    return [PARTITIONS[at].topic for at in block.rows.partitions.ravel().tolist() if at >= 0]


@given(LOGS, CUTS, ORDER, st.sampled_from([{"clicks": 3.0, "refunds": 1.0}, {"clicks": 1.0, "refunds": 100.0}]))
def test_a_mixture_gives_every_row_once_and_those_of_a_partition_in_their_order(
    log: Log, cuts: Any, order: list[int], weights: Any
) -> None:
    given_rows = [row for block in rows(run(mixing(weights, 4), chunks_of(log, cuts, {}), order)) for row in block]
    for partition, present in log.items():
        offsets = [offset for number, offset in given_rows if number == partition.number and offset >= 0]
        assert offsets == [offset for offset, here in enumerate(present) if here]


def test_topics_that_wait_are_mixed_by_their_weights_within_a_batch() -> None:
    mixed = mixing({"clicks": 3, "refunds": 1})
    for partition, count in ((P0, 5000), (P1, 5000), (P2, 5000)):
        mixed.add(chunk(partition, [True] * count))
    block = mixed.take(0.0)
    assert block is not None
    # The oldest chunk found no other topic, so its rows came without a turn; the block after it is mixed.
    block = mixed.take(0.0)
    assert block is not None
    found = topics_of(block)
    assert abs(found.count("clicks") - 3 * 512) <= 2 * GRAIN
    runs = [len(list(group)) for _, group in groupby(found)]
    assert max(runs) <= 4 * GRAIN


def test_a_topic_that_comes_late_neither_waits_nor_makes_up_for_what_it_missed() -> None:
    mixed = mixing({"clicks": 1, "refunds": 1}, 1024)
    mixed.add(chunk(P0, [True] * 10_240))
    for _ in range(5):
        block = mixed.take(0.0)
        assert block is not None
        assert set(topics_of(block)) == {"clicks"}
    mixed.add(chunk(P2, [True] * 4_096))
    blocks = [mixed.take(0.0) for _ in range(4)]
    found = [topics_of(block) for block in blocks if block is not None]
    assert abs(found[1].count("refunds") - 512) <= GRAIN, "the block that was open takes what it took before"
    assert abs(sum(one.count("refunds") for one in found[1:]) - 3 * 512) <= GRAIN


def test_offsets_without_a_row_settle_at_once_whatever_their_topic_weighs() -> None:
    mixed = mixing({"clicks": 1000, "refunds": 1}, 1024)
    mixed.add(chunk(P0, [True] * 1000))
    mixed.add(chunk(P2, [False] * 50))
    mixed.add(chunk(P0, [True] * 24, 1000))
    block = mixed.take(0.0)
    assert block is not None
    assert {span.partition: span.end for span in block.facts.spans} == {P0: 1024, P2: 50}
