"""Blocks: the range of offsets that each covers, the rows that it holds, and when it closes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.errors import ConfigError
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Block, CallTarget
from millrace.pipelines.stream.decode import Decoded, Refused
from millrace.pipelines.stream.row_order import RotationOptions

SCHEMA = Schema(
    features=(
        Field(name="id", source="id", dtype="int64"),
        Field(name="pair", source="pair", dtype="float32", shape=(2,)),
        Field(name="word", source="word", dtype="string"),
    ),
    labels=(Field(name="y", source="y", dtype="float32"),),
)
P0, P1, P2 = (Partition("clicks", number) for number in range(3))
ROW, REFUSED, GAP = "row", "refused", "gap"


@dataclass(frozen=True)
class Skip:
    order: str
    partition: Partition
    start: int
    end: int


def identity(partition: Partition, offsets: Any) -> Any:
    """Return the number that a record holds: its own place, so that every row is different."""
    return partition.number * 1_000_000 + offsets


def decoded(
    partition: Partition, kinds: Sequence[str], start: int = 0, fetched_at: float = 0.0, **changes: Any
) -> Decoded:
    """Return a decoded chunk that covers len(kinds) offsets from `start`."""
    offsets = np.array([start + at for at, kind in enumerate(kinds) if kind == ROW], dtype=np.int64)
    ids = identity(partition, offsets)
    chunk = Decoded(
        partition=partition,
        incarnation=1,
        start=start,
        end=start + len(kinds),
        fetched_at=fetched_at,
        lost=0,
        offsets=offsets,
        event_times=offsets + 1000,
        features={
            "id": ids,
            "pair": np.stack([ids, -ids], axis=1).astype(np.float32),
            "word": np.array([b"%d" % number for number in ids], dtype=object),
        },
        labels={"y": ids.astype(np.float32)},
        weights=np.full(len(offsets), 0.5, np.float32),
        refused=tuple(
            Refused(start + at, Reason.MALFORMED if at % 2 else Reason.EMPTY)
            for at, kind in enumerate(kinds)
            if kind == REFUSED
        ),
        nbytes=100 * len(offsets),
    )
    return replace(chunk, **changes)


def split(partition: Partition, kinds: Sequence[str], cuts: Sequence[int], start: int = 0) -> list[Decoded]:
    """Return the same log in chunks, cut at these places."""
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(kinds)}), len(kinds)]
    return [decoded(partition, kinds[a:b], start + a) for a, b in pairwise(bounds) if a < b]


def make(
    partitions: Sequence[Partition] = (P0, P1, P2),
    skips: Sequence[Skip] = (),
    target: CallTarget | None = None,
    **options: Any,
) -> Assembler:
    chosen = AssembleOptions(**{"batch_size": 4, "batches_per_call": 2, **options})
    return Assembler(SCHEMA, chosen, partitions, incarnation=1, skips=skips, target=target)


def drain(assembler: Assembler, now: float = 0.0, *, flush: bool = True) -> list[Block]:
    blocks = []
    while (block := assembler.take(now, flush=flush)) is not None:
        blocks.append(block)
    return blocks


def feed(assembler: Assembler, chunks: Sequence[Decoded], now: float = 0.0) -> list[Block]:
    """Return all blocks of these chunks, taken as soon as they are ready, and the flush."""
    blocks = []
    for chunk in chunks:
        assembler.add(chunk)
        blocks += drain(assembler, now, flush=False)
    return blocks + drain(assembler, now)


def present(block: Block) -> list[tuple[int, int]]:
    """Return (place in the table, offset) of the present rows, in order."""
    flat = zip(block.rows.partitions.ravel().tolist(), block.rows.offsets.ravel().tolist(), strict=True)
    return [row for row in flat if row[1] >= 0]


def learnt(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    return [row for block in blocks for row in present(block)]


KINDS = st.lists(st.sampled_from([ROW, ROW, ROW, REFUSED, GAP]), max_size=60)
CUTS = st.lists(st.integers(1, 59), max_size=8)


@st.composite
def logs(draw: st.DrawFn) -> tuple[dict[Partition, list[str]], list[Decoded]]:
    """Draw the logs of three partitions, in any chunks, interleaved in any way."""
    kinds = {partition: draw(KINDS) for partition in (P0, P1, P2)}
    queues = [split(partition, log, draw(CUTS)) for partition, log in kinds.items()]
    order = draw(st.permutations([at for at, queue in enumerate(queues) for _ in queue]))
    return kinds, [queues[at].pop(0) for at in order]


@given(logs(), st.integers(1, 5), st.integers(1, 3), st.sampled_from([0, 0, 7, 30]), st.booleans())
def test_every_offset_is_accounted_for_once_whatever_the_chunks(
    log: tuple[dict[Partition, list[str]], list[Decoded]], batch_size: int, batches: int, shuffle: int, eager: bool
) -> None:
    kinds, chunks = log
    skips = [Skip("rewind-17", P0, 5, 20), Skip("rewind-18", P0, 15, 25), Skip("rewind-17", P2, 0, 3)]
    wait = 0.0 if eager else None
    assembler = make(skips=skips, batch_size=batch_size, batches_per_call=batches, shuffle=shuffle, max_wait_s=wait)

    blocks = feed(assembler, chunks)

    ends = dict.fromkeys(kinds, 0)
    counts: Counter[Any] = Counter()
    for block in blocks:
        assert block.facts.rows == sum(span.learnt for span in block.facts.spans) == len(present(block))
        for span in block.facts.spans:
            assert span.balanced
            assert span.start == ends[span.partition] < span.end
            ends[span.partition] = span.end
            counts.update({(span.partition, order): number for order, number in span.skipped.items()})
            counts[span.partition, REFUSED] += sum(span.set_aside.values())
            counts[span.partition, GAP] += span.gaps
    assert ends == {partition: len(log) for partition, log in kinds.items()}

    expected: Counter[Any] = Counter()
    rows: dict[Partition, list[int]] = {partition: [] for partition in kinds}
    for partition, log_kinds in kinds.items():
        for offset, kind in enumerate(log_kinds):
            by = next((s.order for s in skips if s.partition == partition and s.start <= offset < s.end), None)
            if kind == GAP or by is None:
                expected[partition, kind] += 1
            else:
                expected[partition, by] += 1
            if kind == ROW and by is None:
                rows[partition].append(offset)
    assert +counts == +Counter({key: number for key, number in expected.items() if key[1] != ROW})
    for index, partition in enumerate(assembler.partitions):
        offsets = [offset for at, offset in learnt(blocks) if at == index]
        assert (sorted(offsets) if shuffle else offsets) == rows[partition]
    assert (assembler.held_rows, assembler.held_bytes) == (0, 0)


@given(logs(), st.sampled_from([0, 7]))
def test_every_row_brings_its_own_columns_and_absent_rows_are_copies_of_weight_0(
    log: tuple[dict[Partition, list[str]], list[Decoded]], shuffle: int
) -> None:
    assembler = make(shuffle=shuffle)
    for block in feed(assembler, log[1]):
        rows = block.rows
        assert rows.offsets.shape == (block.facts.batches, 4)
        assert rows.features["pair"].shape == (block.facts.batches, 4, 2)
        here = rows.offsets >= 0
        assert here.any(axis=1).all(), "a batch without any present row"
        expected = identity(P0, rows.offsets) + rows.partitions * 1_000_000
        assert (rows.features["id"][here] == expected[here]).all()
        assert rows.weights[here].tolist() == [0.5] * block.facts.rows
        assert not rows.weights[~here].any()
        assert set(rows.features["id"][~here].tolist()) <= set(rows.features["id"][here].tolist())
        assert (rows.features["pair"].sum(axis=-1) == 0).all()
        assert (rows.features["pair"][..., 0] == rows.features["id"]).all()
        assert (rows.labels["y"] == rows.features["id"]).all()
        assert rows.features["word"].ravel().tolist() == [b"%d" % number for number in rows.features["id"].ravel()]


def test_a_partial_batch_cycles_through_the_rows_that_are_there() -> None:
    block = feed(make(batch_size=8), [decoded(P0, [ROW] * 3)])[0]
    assert block.rows.features["id"].ravel().tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert block.rows.offsets.ravel().tolist() == [0, 1, 2, -1, -1, -1, -1, -1]


def test_a_slice_settles_what_was_refused_before_its_rows_and_the_last_one_the_rest() -> None:
    kinds = [REFUSED, ROW, GAP, ROW, REFUSED, ROW, REFUSED, GAP]
    assembler = make(batch_size=2, batches_per_call=1)
    first, second = feed(assembler, [decoded(P0, kinds, start=10)])
    assert [(span.start, span.end) for block in (first, second) for span in block.facts.spans] == [(10, 14), (14, 18)]
    assert first.facts.spans[0].set_aside == {Reason.EMPTY: 1}
    assert second.facts.spans[0].set_aside == {Reason.EMPTY: 2}
    assert [block.facts.spans[0].gaps for block in (first, second)] == [1, 1]


def test_rows_that_fill_no_whole_batch_wait_even_at_a_flush() -> None:
    assembler = make(batch_size=4, max_wait_s=1.0, whole_batches=True)
    assembler.add(decoded(P0, [ROW] * 6))
    block = assembler.take(5.0)
    assert block is not None
    assert (block.facts.batches, block.facts.spans[0].end) == (1, 4)
    assert assembler.deadline() is None, "what waits for a batch is late at no time"
    assembler.add(decoded(P0, [REFUSED], start=6))
    assert drain(assembler, 99.0) == []
    assembler.add(decoded(P1, [ROW] * 2, start=0))
    (last,) = drain(assembler, 99.0)
    assert [(span.start, span.end) for span in last.facts.spans] == [(4, 7), (0, 2)]
    assert (last.rows.offsets >= 0).all()
    assert assembler.held_rows == 0


def test_records_set_aside_wait_for_no_whole_batch() -> None:
    assembler = make(batch_size=4, max_wait_s=1.0, whole_batches=True)
    assembler.add(decoded(P0, [REFUSED] * 3))
    assert [block.facts.spans[0].end for block in drain(assembler, 5.0, flush=False)] == [3]


def test_a_limit_takes_whole_batches_only() -> None:
    assembler = make(batch_size=4, limit=7, whole_batches=True)
    assert [block.facts.rows for block in feed(assembler, [decoded(P0, [ROW] * 9)])] == [4]
    assert assembler.finished


def test_a_block_of_records_set_aside_alone_has_no_batch() -> None:
    block = feed(make(), [decoded(P0, [REFUSED] * 3)])[0]
    assert (block.facts.batches, block.facts.rows, block.facts.oldest_ms) == (0, 0, 0)
    assert block.rows.features["pair"].shape == (0, 4, 2)
    assert block.facts.spans[0].balanced


def test_offsets_that_retention_removed_are_lost_and_not_gaps() -> None:
    chunk = decoded(P0, [GAP] * 5 + [ROW, GAP, ROW], lost=5)
    (block,) = feed(make(), [chunk])
    assert (block.facts.spans[0].lost, block.facts.spans[0].gaps) == (5, 1)


def test_a_block_closes_when_the_time_of_its_oldest_chunk_has_run_out() -> None:
    assembler = make(max_wait_s=0.5)
    assert assembler.deadline() is None
    assembler.add(decoded(P0, [ROW], fetched_at=10.0))
    assembler.add(decoded(P1, [ROW], fetched_at=9.8))
    assert assembler.deadline() == pytest.approx(10.3)
    assert not assembler.ready(10.29)
    assert assembler.take(10.29) is None
    block = assembler.take(10.31)
    assert block is not None
    assert (block.facts.rows, block.facts.fetched_at) == (2, 9.8)
    assert assembler.deadline() is None


def test_a_chunk_of_refused_records_alone_is_settled_in_time_too() -> None:
    assembler = make(max_wait_s=0.5)
    assembler.add(decoded(P0, [REFUSED], fetched_at=1.0))
    block = assembler.take(1.5)
    assert block is not None
    assert block.facts.spans[0].end == 1


def test_a_full_block_closes_at_once_and_the_rest_of_the_chunk_waits() -> None:
    assembler = make(max_wait_s=5.0)
    assembler.add(decoded(P0, [ROW] * 11, fetched_at=1.0))
    assert assembler.full
    assert assembler.held_rows == 11
    block = assembler.take(1.0)
    assert block is not None
    assert block.facts.spans[0].end == 8
    assert not assembler.ready(1.0)
    assert (assembler.held_rows, assembler.deadline()) == (3, 6.0)


def test_the_limit_is_met_to_the_row() -> None:
    assembler = make(limit=10)
    blocks = feed(assembler, [decoded(P0, [ROW] * 7), decoded(P1, [ROW] * 7)])
    assert [block.facts.rows for block in blocks] == [8, 2]
    assert assembler.finished
    assert not assembler.full
    assert blocks[-1].facts.spans[0].end == 3


def test_a_shuffle_permutes_within_the_block_and_a_replay_shuffles_alike() -> None:
    chunks = [decoded(P0, [ROW] * 40), decoded(P1, [ROW] * 24)]
    blocks, again = (feed(make(shuffle=30, seed=7), chunks) for _ in range(2))
    assert learnt(blocks) == learnt(again)
    assert [block.facts.rows for block in blocks] == [32, 32]
    rows = [row for row in present(blocks[0]) if row[0] == 0]
    assert rows != sorted(rows)
    assert sorted(learnt(blocks)) == [(0, at) for at in range(40)] + [(1, at) for at in range(24)]
    other = feed(make(shuffle=30, seed=8), chunks)
    assert learnt(other) != learnt(blocks)


def test_a_shuffle_does_not_depend_on_chunks() -> None:
    cut = split(P0, [REFUSED] + [ROW] * 40, [1, 13, 30])
    whole = [decoded(P0, [REFUSED] + [ROW] * 40)]
    assert learnt(feed(make(shuffle=8), cut)) == learnt(feed(make(shuffle=8), whole))


def test_a_chunk_of_an_older_incarnation_is_dropped_and_counted() -> None:
    assembler = make()
    assembler.add(decoded(P0, [ROW] * 5, incarnation=0))
    assert (assembler.dropped, assembler.held_rows) == (5, 0)
    assert drain(assembler) == []


def test_a_hole_between_two_chunks_is_never_passed_over() -> None:
    assembler = make()
    assembler.add(decoded(P0, [ROW] * 5))
    with pytest.raises(ValueError, match="does not follow 5"):
        assembler.add(decoded(P0, [ROW], start=6))


def test_a_partition_that_joins_gets_the_next_place_in_the_table() -> None:
    assembler = make(partitions=[P1, P0])
    late = Partition("clicks", 9)
    (block,) = feed(assembler, [decoded(late, [ROW]), decoded(P1, [ROW])])
    assert assembler.partitions == (P0, P1, late)
    assert [(span.partition, span.index) for span in block.facts.spans] == [(P1, 1), (late, 2)]
    assert present(block) == [(2, 0), (1, 0)]


def test_a_record_without_weight_weighs_1() -> None:
    (block,) = feed(make(), [decoded(P0, [ROW] * 2, weights=None)])
    assert block.rows.weights.ravel().tolist() == [1.0, 1.0, 0.0, 0.0]


def test_the_facts_name_the_span_of_event_times() -> None:
    (block,) = feed(make(), [decoded(P0, [ROW] * 3)])
    assert (block.facts.oldest_ms, block.facts.newest_ms) == (1000, 1002)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batches_per_call": 0}, {"shuffle": -1}, {"limit": 0}])
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make(**options)


def test_a_fingerprint_is_of_the_block_that_settles_the_last_offset_of_its_chunk() -> None:
    marks = [Fingerprint(end - 1, 0, end) for end in (6, 8, 10, 12)]
    chunks = [
        decoded(P0, [ROW] * 6, 0, fingerprint=marks[0]),
        decoded(P0, [REFUSED] * 2, 6, fingerprint=marks[1]),
        decoded(P0, [ROW] * 2, 8, fingerprint=marks[2]),
        decoded(P1, [GAP] * 3),
        decoded(P0, [ROW] * 2, 10, fingerprint=marks[3]),
    ]
    assembler = make(batch_size=4, batches_per_call=1, skips=[Skip("rewind-1", P0, 8, 10)])
    found = [
        (str(span.partition), span.start, span.end, span.fingerprint)
        for block in feed(assembler, chunks)
        for span in block.facts.spans
    ]
    zero, one = str(P0), str(P1)
    assert found == [(zero, 0, 4, None), (zero, 4, 12, marks[3]), (one, 0, 3, None)]


def test_blocks_to_come_have_the_target_size_and_lose_nothing() -> None:
    target = CallTarget(4)
    assembler = make([P0], target=target, batches_per_call=4)
    target.batches = 1
    blocks = feed(assembler, [decoded(P0, [ROW] * 40)])
    assert [block.facts.batches for block in blocks[:2]] == [4, 1], "the first was begun before"
    assert [offset for _, offset in learnt(blocks)] == list(range(40))


@pytest.mark.parametrize("batches", [0, 1000])
def test_no_target_makes_a_block_empty_or_larger_than_was_set(batches: int) -> None:
    target = CallTarget(4)
    assembler = make([P0], target=target, batches_per_call=4)
    target.batches = batches
    assert {block.facts.batches for block in feed(assembler, [decoded(P0, [ROW] * 64)])} <= {1, 4}


def test_strict_rotation_ignores_the_target_size() -> None:
    assembler = make([P0], target=CallTarget(1), batches_per_call=4, rotation=RotationOptions(share=2))
    assert [block.facts.batches for block in feed(assembler, [decoded(P0, [ROW] * 32)])] == [4, 4]
