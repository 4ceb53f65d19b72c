"""Row 34. Recorded blocks are made again, row by row, wherever the chunks of the run and of the rebuild are cut."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.app.tools.rebuild.plan import BlockStep, Origin, SegmentEnds, steps_of
from millrace.consumers.errors import DataLossError
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Block, Turn
from millrace.pipelines.stream.decode import decode_chunk
from millrace.pipelines.stream.offset_counts import OffsetCounts
from millrace.pipelines.stream.recorded_feed import RecordedFeed, RecordedOptions
from millrace.pipelines.stream.row_order import RotationOptions
from millrace.training.history.journal import Chain, Segment
from millrace.training.history.journal_blocks import BlockRecorder
from millrace.training.ledger.interventions import Interventions, Skip
from millrace.training.ledger.ledger import NAME, Ledger
from tests.properties.effort import tried

pytestmark = pytest.mark.row(34)
SCHEMA = Schema(features=(Field(name="id", source="id", dtype="int64"),))
DECODER = make_decoder("raw", SCHEMA)
ROW, BAD, GAP = "row", "bad", "gap"
LOGS = st.lists(
    st.lists(st.sampled_from([ROW, ROW, ROW, ROW, BAD, GAP]), max_size=60).map(lambda log: [*log, ROW]),
    min_size=1,
    max_size=3,
)


@dataclass(frozen=True)
class Log:
    """The records of all partitions."""

    kinds: Mapping[Partition, Sequence[str]]

    def chunk(self, partition: Partition, start: int, end: int) -> Chunk:
        offsets = [offset for offset in range(start, end) if self.kinds[partition][offset] != GAP]
        values = [
            np.int64(1000 * partition.number + offset).tobytes() if self.kinds[partition][offset] == ROW else b"bad"
            for offset in offsets
        ]
        return Chunk(
            partition=partition,
            incarnation=1,
            start=start,
            end=end,
            offsets=np.array(offsets, np.int64),
            timestamps=np.array(offsets, np.int64),
            keys=[None] * len(offsets),
            values=values,
            headers=[()] * len(offsets),
            nbytes=8 * len(offsets),
            fetched_at=0.0,
        )

    def cut(self, partition: Partition, start: int, end: int, random: Random) -> Iterator[Chunk]:
        while start < end:
            at = min(end, start + random.randint(1, 9))
            yield self.chunk(partition, start, at)
            start = at


class Reader:
    """Reads the log in chunks of its own, some of which reach beyond what is asked for."""

    def __init__(self, log: Log, random: Random) -> None:
        self._log, self._random = log, random

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Chunk]:
        last = len(self._log.kinds[partition])
        for chunk in self._log.cut(partition, start, last, self._random):
            if chunk.end >= end:
                yield chunk if chunk.end == end else chunk.split(end)[0]
                return
            yield chunk

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Shape:
    batch: int
    batches: int
    shuffle: int
    share: int

    def assembly(self, rotation: RotationOptions) -> AssembleOptions:
        return AssembleOptions(
            batch_size=self.batch, batches_per_call=self.batches, shuffle=self.shuffle, seed=7, rotation=rotation
        )


SHAPES = st.builds(
    Shape, batch=st.integers(1, 5), batches=st.integers(1, 3), shuffle=st.sampled_from([0, 8]), share=st.integers(1, 6)
)


def _run(
    log: Log, shape: Shape, origin: Origin, ends: Mapping[Partition, int], skips: Sequence[Skip], random: Random
) -> list[Block]:
    """Make the blocks of one run up to these ends, as a trainer does."""
    rotation = RotationOptions(share=shape.share, start=origin.turn, positions=origin.positions, ends=ends)
    assembler = Assembler(SCHEMA, shape.assembly(rotation), sorted(origin.positions), 1, skips)
    waiting = {p: list(log.cut(p, origin.positions[p], ends[p], random)) for p in origin.positions}
    blocks: list[Block] = []
    while any(waiting.values()):
        partition = random.choice([p for p, chunks in waiting.items() if chunks])
        assembler.add(decode_chunk(waiting[partition].pop(0), DECODER))
        while (block := assembler.take(0.0)) is not None:
            blocks.append(block)
    while (block := assembler.take(0.0, flush=True)) is not None:
        blocks.append(block)
    return blocks


def _segment(number: int, blocks: Sequence[Block], ends: Mapping[Partition, int], skips: Sequence[Skip]) -> Segment:
    recorder = BlockRecorder(lambda: sorted(ends))
    for block in blocks:
        recorder.note(block.facts, refused=0, searched=False, bypassed=False)
    return Segment(
        number=number,
        parent=number - 1,
        term=1,
        step=0,
        reason="skip" if skips else "steps",
        created_at="",
        positions={str(partition): end for partition, end in ends.items()},
        files={},
        ledger_sha256="",
        model_sha256=None,
        versions={},
        orders=Interventions(skips=tuple(skips)).facts() if skips else None,
        blocks=recorder.since(),
    )


def _counts(block: Block) -> list[tuple[Partition, int, int, OffsetCounts]]:
    return [(span.partition, span.start, span.end, OffsetCounts(**span.fields())) for span in block.facts.spans]


def _columns(block: Block) -> list[object]:
    rows = block.rows
    return [rows.features["id"], rows.weights, rows.offsets, rows.partitions]


def _feed(log: Log, shape: Shape, chain: Chain, origin: Origin, random: Random) -> RecordedFeed:
    options = RecordedOptions(batch_size=shape.batch, shuffle=shape.shuffle, seed=7, share=shape.share)
    planned = (step.planned for step in steps_of(chain, origin) if isinstance(step, BlockStep))
    return RecordedFeed(planned, Reader(log, random), DECODER, SCHEMA, options)


def _chain(segments: Sequence[Segment], blocks: int) -> Chain:
    by_number = {segment.number: segment for segment in segments}
    numbers = [segment.number for segment in segments]
    return Chain(
        number=numbers[-1], base=0, beginning=None, numbers=numbers, blocks=blocks, rows=0, read=by_number.__getitem__
    )


@given(LOGS, SHAPES, st.randoms(use_true_random=False))
@tried(60)
def test_every_block_of_two_runs_and_a_skip_is_made_again(kinds: list[list[str]], shape: Shape, random: Random) -> None:
    log = Log({Partition("clicks", number): log for number, log in enumerate(kinds)})
    origin = Origin(positions=dict.fromkeys(log.kinds, 0))
    until = {partition: random.randint(0, len(one)) for partition, one in log.kinds.items()}
    first = _run(log, shape, origin, until, (), random)
    start, end = sorted((random.randint(0, 60), random.randint(0, 61)))
    skips = [
        Skip(order="rewind-2", partition=p, start=max(at, start), end=max(at, start, end) + 1, reason="")
        for p, at in until.items()
    ]
    turn: Turn | None = first[-1].facts.turn if first else None
    last = {partition: len(one) for partition, one in log.kinds.items()}
    second = _run(log, shape, Origin(positions=until, turn=turn), last, skips, random)
    segments = [_segment(1, first, until, ()), _segment(2, [], until, skips), _segment(3, second, last, ())]
    chain = _chain(segments, len(first) + len(second))
    assert [step.segment.number for step in steps_of(chain, origin) if isinstance(step, SegmentEnds)] == [1, 2, 3]
    made = list(_feed(log, shape, chain, origin, random))
    assert len(made) == len(first) + len(second)
    for ours, theirs in zip(made, [*first, *second], strict=True):
        assert (ours.facts.seed, ours.facts.turn, _counts(ours)) == (
            theirs.facts.seed,
            theirs.facts.turn,
            _counts(theirs),
        )
        for one, other in zip(_columns(ours), _columns(theirs), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_block_whose_records_are_gone_is_named_with_its_checkpoint() -> None:
    clicks = Partition("clicks", 0)
    shape, origin = Shape(batch=4, batches=1, shuffle=0, share=3), Origin(positions={clicks: 0})
    log = Log({clicks: [ROW] * 8})
    blocks = _run(log, shape, origin, {clicks: 8}, (), Random(1))
    chain = _chain([_segment(1, blocks, {clicks: 8}, ())], len(blocks))
    compacted = Log({clicks: [*[ROW] * 6, GAP, ROW]})
    made = iter(_feed(compacted, shape, chain, origin, Random(1)))
    next(made)
    with pytest.raises(DataLossError, match=r"block 2 of checkpoint 1 had 4 rows, and 3 are made of clicks:0:4-7 now"):
        next(made)


def test_blocks_behind_a_checkpoint_of_a_later_incarnation_are_settled() -> None:
    clicks = Partition("clicks", 0)
    ledger = Ledger()
    ledger.join(clicks, 0)
    ledger.raise_incarnation(4)
    shape = Shape(batch=4, batches=1, shuffle=0, share=3)
    origin = Origin(positions={clicks: 0}, parts={NAME: ledger.snapshot()})
    log = Log({clicks: [ROW] * 8})
    blocks = _run(log, shape, origin, {clicks: 8}, (), Random(1))
    chain = _chain([_segment(1, blocks, {clicks: 8}, ())], len(blocks))
    learning = origin.ledger()
    learning.begin_incarnation()
    assert all(learning.settle(block.facts) for block in _feed(log, shape, chain, origin, Random(1)))
    assert learning.positions() == {clicks: 8}
