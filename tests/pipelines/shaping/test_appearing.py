"""Classes that appear: numbers by the sequence of the rows, the same ones however records are cut, and after kills."""

import json
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Appearing, Field, Schema
from millrace.pipelines.shaping.appearing import AppearingClasses, appearing_classes, with_classes
from millrace.pipelines.shaping.figures import LabelFigures
from millrace.pipelines.shaping.shaper import closed_by
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Block, Turn
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.pipelines.stream.row_order import RotationOptions
from millrace.training.ledger.ledger import Ledger

pytestmark = pytest.mark.row(36)
PARTITIONS = (Partition("news", 0), Partition("news", 1))
COUNT, MOST, BATCH = 120, 9, 4
Place = tuple[Partition, int]


def schema_of(most: int) -> Schema:
    """Return a schema whose label may have so many classes."""
    label = Field(name="kind", source="kind", dtype="string", appearing=Appearing(most=most, dtype="int32"))
    return Schema(features=(Field(name="id", source="id", dtype="int64"),), labels=(label,))


SCHEMA = schema_of(MOST)
DECODER = make_decoder("json", SCHEMA)


def text_of(partition: Partition, offset: int) -> str:
    """Return the label of a record: of twelve texts, rare ones among them."""
    return f"kind-{Random(f'{partition} {offset}').choice([*'aaaabbbcc', *map(str, range(9))])}"


def chunk_of(partition: Partition, start: int, end: int, incarnation: int = 1) -> Decoded:
    """Decode the records between two offsets."""
    offsets = np.arange(start, end)
    records = [{"id": offset, "kind": text_of(partition, offset)} for offset in offsets.tolist()]
    chunk = Chunk(
        partition=partition,
        incarnation=incarnation,
        start=start,
        end=end,
        offsets=offsets,
        timestamps=offsets + 1000,
        keys=[None] * len(offsets),
        values=[json.dumps(record).encode() for record in records],
        headers=[()] * len(offsets),
        nbytes=100 * len(offsets),
        fetched_at=0.0,
    )
    return decode_chunk(chunk, DECODER)


def new(most: int = MOST) -> AppearingClasses:
    classes = appearing_classes(schema_of(most))
    assert classes is not None
    return classes


class Life:
    """A run in strict rotation, which may be killed after any block."""

    def __init__(self, random: Random) -> None:
        self.random, self.classes = random, new()
        self.positions = dict.fromkeys(PARTITIONS, 0)
        self.turn: Turn | None = None
        self.numbers = dict[Place, int]()
        self.set_aside = list[Place]()

    def live(self, incarnation: int, blocks: int) -> None:
        """Settle some blocks, and make some more that are never settled."""
        random, self.made = self.random, 0
        self.classes.open(incarnation, self.positions)
        rotation = RotationOptions(
            share=3, start=self.turn, positions=self.positions, ends=dict.fromkeys(PARTITIONS, COUNT)
        )
        options = AssembleOptions(
            batch_size=BATCH, batches_per_call=2, shuffle=8, rotation=rotation, finish=closed_by([self.classes])
        )
        assembler = Assembler(SCHEMA, options, PARTITIONS, incarnation)
        reached, ready = dict(self.positions), list[Block]()
        while self.made < blocks:
            wanted = assembler.wanted()
            at = wanted if wanted is not None and random.random() < 0.7 else random.choice(PARTITIONS)
            end = min(COUNT, reached[at] + random.randrange(1, 40))
            if end > reached[at]:
                assembler.add(chunk_of(at, reached[at], end, incarnation))
                reached[at] = end
            ended = all(offset == COUNT for offset in reached.values())
            while (block := assembler.take(0.0, flush=ended)) is not None:
                ready.append(block)
            while ready and self.made < blocks and (ended or random.random() < 0.5):
                self.settle(ready.pop(0))
            if ended and not ready:
                return

    def settle(self, block: Block) -> None:
        """Take in what a block has, as a trainer does when its call has returned."""
        self.made += 1
        rows, facts = block.rows, block.facts
        assert rows.weights.shape[0] == facts.batches
        table = {span.index: span.partition for span in facts.spans}
        for index, offset, number, weight in zip(
            *(column.ravel().tolist() for column in (rows.partitions, rows.offsets, rows.labels["kind"], rows.weights)),
            strict=True,
        ):
            assert (offset >= 0) == (weight > 0)
            if offset >= 0:
                assert (table[index], offset) not in self.numbers
                self.numbers[table[index], offset] = number
        self.set_aside += facts.unplaced
        self.classes.settle(facts)
        self.positions |= {span.partition: span.end for span in facts.spans}
        self.turn = facts.turn

    def killed(self) -> None:
        """Go on from what a checkpoint holds."""
        arrays, facts = self.classes.saved()
        self.classes = new()
        self.classes.load(arrays, json.loads(json.dumps(facts)))


def test_numbers_are_the_same_however_records_come_and_whatever_is_killed() -> None:
    calm = Life(Random(0))
    calm.live(1, 10**6)
    assert len(set(calm.numbers.values())) == MOST
    assert calm.set_aside, "three texts come too late"
    assert len(calm.numbers) + len(calm.set_aside) == 2 * COUNT
    for seed in range(1, 30):
        life = Life(Random(seed))
        for incarnation in range(1, 8):
            life.live(incarnation, life.random.randrange(1, 7))
            life.killed()
        life.live(9, 10**6)
        assert life.numbers == calm.numbers
        assert sorted(life.set_aside) == sorted(calm.set_aside)
        assert life.classes.saved() == calm.classes.saved()


def test_a_record_without_a_number_leaves_its_block_and_is_set_aside_when_that_is_settled() -> None:
    classes, at = new(most=2), PARTITIONS[1]
    classes.open(1, {at: 0})
    options = AssembleOptions(batch_size=BATCH, batches_per_call=3, finish=closed_by([classes]))
    assembler = Assembler(schema_of(2), options, [at], 1)
    assembler.add(chunk_of(at, 0, 12))
    [block] = [assembler.take(0.0, flush=True)]
    assert block is not None
    texts = [text_of(at, offset) for offset in range(12)]
    known = list(dict.fromkeys(texts))[:2]
    kept = [offset for offset in range(12) if texts[offset] in known]
    assert 4 < len(kept) <= 8
    rows, facts = block.rows, block.facts
    assert rows.offsets.ravel().tolist() == [*kept, *[-1] * (8 - len(kept))]
    assert [known[number] for number in rows.labels["kind"].ravel()[: len(kept)]] == [texts[at] for at in kept]
    assert rows.features["id"].ravel()[: len(kept)].tolist() == kept
    assert rows.labels["kind"].dtype == np.int32
    assert facts.unplaced == tuple((at, offset) for offset in range(12) if offset not in kept)
    assert (facts.rows, facts.batches, assembler.held_rows) == (12, 2, 0)
    ledger = Ledger()
    ledger.join(at, 0)
    ledger.begin_incarnation()
    ledger.settle(facts, {at: {Reason.CLASS_LIMIT: 12 - len(kept)}})
    account = ledger.statistics().partitions[at]
    assert (account.learnt, account.set_aside) == (len(kept), {Reason.CLASS_LIMIT: 12 - len(kept)})
    assert classes.figures()["kind"] == LabelFigures(known=0, most=2, classes=())
    classes.settle(facts)
    assert classes.figures()["kind"] == LabelFigures(known=2, most=2, classes=tuple(known))
    listed = with_classes(schema_of(4), json.loads(json.dumps(classes.saved()[1]))).labels[0]
    assert (listed.classes, listed.one_of, listed.dtype) == ((*known, "", ""), (0, 1, 2, 3), "int32")


def test_a_block_of_such_records_alone_has_no_batch() -> None:
    classes, at = new(most=2), PARTITIONS[0]
    classes.load({}, {"labels": {"kind": ["one", "other"]}})
    classes.open(1, {at: 0})
    options = AssembleOptions(batch_size=BATCH, batches_per_call=3, finish=closed_by([classes]))
    assembler = Assembler(SCHEMA, options, [at], 1)
    assembler.add(chunk_of(at, 0, 6))
    block = assembler.take(0.0, flush=True)
    assert block is not None
    assert (block.facts.batches, block.rows.weights.shape, len(block.facts.unplaced)) == (0, (0, BATCH), 6)


def test_fewer_classes_than_have_appeared_and_texts_that_are_too_long_are_refused() -> None:
    facts: Mapping[str, Any] = {"labels": {"kind": ["a", "b", "\udcff"]}}
    classes = new(most=2)
    classes.load({}, facts)
    with pytest.raises(
        ConfigError, match=r"records.label.classes: 2 for kind, and 3 have appeared; write that or more"
    ):
        classes.open(1, {})
    classes = new(most=4)
    classes.load({}, facts)
    assert classes.saved()[1] == facts
    # What is no UTF-8 can be in no answer, and in no export.
    assert classes.figures()["kind"].classes == ("a", "b", r"\xff")
    assert with_classes(schema_of(4), facts).labels[0].classes == ("a", "b", r"\xff", "")
    classes.open(1, {})
    classes.load({}, {})
    assert classes.saved()[1] == {"labels": {"kind": []}}, "a rewind to what knows no class"
    numbers, appeared = classes._ahead["kind"].take(np.array([b"\xff", b"x" * 501, b"c", b"d", b"c"], object))
    assert (numbers.tolist(), appeared) == ([2, -1, 3, -1, 3], [b"c"])
