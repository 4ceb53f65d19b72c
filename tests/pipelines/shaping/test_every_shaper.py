"""What every kind of shaping of rows must do, run over the table: rows follow from each partition's records alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping import (
    LEFT_OUT_BY_SHAPING,
    OTHER_COLUMNS,
    SHAPINGS,
    BalanceSettings,
    GoldenSettings,
    ShapingSection,
    ThinningSettings,
    WindowSettings,
)
from millrace.pipelines.shaping.shaper import Shaper
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.training.checkpoints.parts import PartState
from millrace.training.group.one_state import remembered_portion
from tests.consumers.archive.records import chunk, shard_of
from tests.pipelines.shaping.labels.label_log import read_labels

SCHEMA = Schema(
    features=(
        Field(name="user", source="user", dtype="int64"),
        Field(name="price", source="price", dtype="float32"),
        Field(name="kind", source="kind", dtype="string"),
    ),
    labels=(Field(name="clicked", source="clicked", dtype="int64"),),
    key=Field(name="key", source="user", dtype="int64"),
)
DECODER = make_decoder("json", SCHEMA)
_GOLDEN = TemporaryDirectory()
for _partition, _start, _end in ((Partition("clicks", 0), 50, 300), (Partition("clicks", 0), 1200, 1201)):
    shard_of(Path(_GOLDEN.name), [chunk(_start, _end, partition=_partition)])
EXAMPLES: Mapping[str, ShapingSection] = {
    "golden": GoldenSettings(path=Path(_GOLDEN.name)),
    "thinning": ThinningSettings(share="20 %", by="kind"),
    "labels": read_labels(),
    "windows": WindowSettings(length=3, by="user", lengths="known", min_length=2, max_bytes="4000B"),
    "balance": BalanceSettings(target={"0": 0.5, "1": 0.5}, how="resample", half_life=200),
}
"""Settings of each kind by which it makes other rows, or leaves some out, and has to remember something for that."""
PARTITIONS = (Partition("clicks", 0), Partition("views", 0))
COUNT = 1500
"""Records of a partition: more than there are in a cell, in which resampling has the same rates."""
Rows = dict[tuple[Partition, int], str]
Log = Mapping[int, bytes]
kinds = pytest.mark.parametrize("name", sorted(EXAMPLES))
# The same with other cuts and kills.
seeds = pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])


def made_up(random: Random) -> Log:
    """Make the records of a partition: some offsets hold none, and some records do not decode."""
    log = dict[int, bytes]()
    for offset in range(COUNT):
        if random.random() < 0.9:
            row = {"user": random.randrange(12), "price": offset / 4, "kind": random.choice("abc"), "clicked": 0}
            row["clicked"] = int(random.random() < 0.1)
            log[offset] = b"{" if random.random() < 0.05 else json.dumps(row).encode()
    return log


LOGS = {partition: made_up(Random(number)) for number, partition in enumerate(PARTITIONS)}


def decoded_of(partition: Partition, start: int, end: int) -> Decoded:
    """Decode the records of a partition between two offsets."""
    found = [offset for offset in range(start, end) if offset in LOGS[partition]]
    offsets = np.array(found, np.int64)
    found_there = Chunk(
        partition=partition,
        incarnation=1,
        start=start,
        end=end,
        offsets=offsets,
        timestamps=offsets + 1000,
        keys=[None] * len(found),
        values=[LOGS[partition][offset] for offset in found],
        headers=[()] * len(found),
        nbytes=100 * len(found),
        fetched_at=0.0,
    )
    return decode_chunk(found_there, DECODER)


def rows_of(decoded: Decoded) -> Rows:
    """Return each row as a text, by where it comes from."""
    columns = {**decoded.features, **{f"label {name}": one for name, one in decoded.labels.items()}}
    whole = {name: np.asarray(column[:]).tolist() for name, column in sorted(columns.items())}
    weights = [1.0] * len(decoded) if decoded.weights is None else decoded.weights.tolist()
    return {
        (decoded.partition, offset): repr([[column[row] for column in whole.values()], weights[row]])
        for row, offset in enumerate(decoded.offsets.tolist())
    }


def new(name: str) -> Shaper:
    """Return a shaper of a kind that remembers nothing."""
    shaper = EXAMPLES[name].shaper(SCHEMA)
    assert shaper is not None
    return shaper


def facts_of(partition: Partition, start: int, end: int, incarnation: int) -> BlockFacts:
    span = Span(partition=partition, index=0, start=start, end=end, learnt=end - start)
    return BlockFacts(
        number=0,
        incarnation=incarnation,
        spans=(span,),
        batches=1,
        rows=end - start,
        seed=0,
        fetched_at=0.0,
        oldest_ms=0,
        newest_ms=0,
    )


def saved(shaper: Shaper) -> PartState:
    """Return what it remembers as a checkpoint holds it."""
    arrays, facts = shaper.saved()
    return PartState(arrays=arrays, facts=json.loads(json.dumps(facts)))


def shown(part: PartState) -> tuple[Any, ...]:
    """Return what is remembered of records; what became of labels that come later is a matter of all partitions."""
    arrays = {name: (array.dtype, array.tolist()) for name, array in sorted(part.arrays.items())}
    return (
        {name: fact for name, fact in part.facts.items() if name != "labels"},
        {name: array for name, array in arrays.items() if not name.startswith("labels/")},
    )


def at_once(name: str, partition: Partition, end: int) -> tuple[Rows, PartState]:
    """Return the rows of a partition that is shaped in one piece up to an offset, and what is remembered there."""
    shaper = new(name)
    rows, _ = shaper.open(1, {partition: 0})(decoded_of(partition, 0, end))
    shaper.settle(facts_of(partition, 0, end, 1))
    return rows_of(rows), saved(shaper)


def test_each_kind_of_rows_has_an_example_that_shapes() -> None:
    assert EXAMPLES.keys() == LEFT_OUT_BY_SHAPING
    for name, section in EXAMPLES.items():
        assert isinstance(section, SHAPINGS[name])
        assert section.used
        assert not SHAPINGS[name]().used, "nothing is shaped unless the settings ask for it"
        assert name.isidentifier(), "what is left out counts under this name, and a command's has a dash"


@kinds
def test_rows_and_those_left_out_are_all_records_and_fit_the_schema(name: str) -> None:
    section, decoded = EXAMPLES[name], decoded_of(PARTITIONS[0], 0, COUNT)
    rows, left_out = new(name).open(1, {PARTITIONS[0]: 0})(decoded)
    offsets = [offset for offset, _ in left_out]
    assert {why for _, why in left_out} == {name}
    assert offsets == sorted(offsets)
    assert sorted([*rows.offsets.tolist(), *offsets]) == decoded.offsets.tolist()
    schema = section.row_schema(SCHEMA)
    assert (schema != SCHEMA) == (name in OTHER_COLUMNS)
    for fields, columns in ((schema.inputs, rows.features), (schema.labels, rows.labels)):
        whole = {key: np.asarray(column[:]) for key, column in columns.items()}
        shapes = {field.name: (len(rows), *field.shape) for field in fields}
        assert {key: column.shape for key, column in whole.items()} == shapes
        assert {key: column.dtype for key, column in whole.items()} == {one.name: one.numpy_dtype for one in fields}


@kinds
@seeds
def test_neither_cuts_nor_other_partitions_change_a_row(name: str, seed: int) -> None:
    random, found = Random(seed), dict[tuple[Partition, int], str]()
    shape, at = new(name).open(1, dict.fromkeys(PARTITIONS, 0)), dict.fromkeys(PARTITIONS, 0)
    while waiting := [partition for partition in PARTITIONS if at[partition] < COUNT]:
        partition = random.choice(waiting)
        end = min(COUNT, at[partition] + random.randrange(1, 600))
        found |= rows_of(shape(decoded_of(partition, at[partition], end))[0])
        at[partition] = end
    assert found == {key: row for partition in PARTITIONS for key, row in at_once(name, partition, COUNT)[0].items()}


@kinds
@seeds
def test_a_kill_between_any_two_blocks_changes_no_row_and_nothing_remembered(name: str, seed: int) -> None:
    random, part = Random(seed), PartState()
    rows = {partition: at_once(name, partition, COUNT)[0] for partition in PARTITIONS}
    settled, incarnation = dict.fromkeys(PARTITIONS, 0), 0
    while min(settled.values()) < COUNT:
        incarnation += 1
        shaper = new(name)
        shaper.load(part.arrays, part.facts)
        shape, ahead = shaper.open(incarnation, settled), dict(settled)
        for _ in range(6):
            partition = random.choice(PARTITIONS)
            start, ahead[partition] = ahead[partition], min(COUNT, ahead[partition] + random.randrange(1, 900))
            found = rows_of(shape(decoded_of(partition, start, ahead[partition]))[0])
            assert found == {key: row for key, row in rows[partition].items() if start <= key[1] < ahead[partition]}
        # A block ends anywhere in what is shaped, and what is shaped ahead of it is lost with the process.
        for partition, end in ahead.items():
            upto = random.randint(settled[partition], end)
            shaper.settle(facts_of(partition, settled[partition], upto, incarnation))
            settled[partition] = upto
        shaper.settle(facts_of(PARTITIONS[0], 0, COUNT, incarnation - 1))  # a block of a closed incarnation
        part = saved(shaper)
        assert {text: facts["position"] for text, facts in part.facts["partitions"].items()} == {
            str(partition): position for partition, position in settled.items()
        }
        partition = random.choice(PARTITIONS)
        alone = at_once(name, partition, settled[partition])[1]
        assert shown(remembered_portion(part, [partition])) == shown(alone)


@kinds
def test_of_a_checkpoint_without_it_or_a_topic_made_again_nothing_is_known(name: str) -> None:
    partition = PARTITIONS[0]
    shaper = new(name)
    shaper.load({}, {})
    assert shown(saved(shaper)) == shown(saved(new(name)))
    shaper.open(1, {partition: 0})(decoded_of(partition, 0, COUNT))
    shaper.settle(facts_of(partition, 0, COUNT, 1))
    shaper.forget(partition)
    rows, _ = shaper.open(2, {partition: 0})(decoded_of(partition, 0, COUNT))
    assert rows_of(rows) == at_once(name, partition, COUNT)[0]


@kinds
def test_records_that_are_settled_as_they_are_shaped_give_the_same_rows(name: str) -> None:
    partition, found = PARTITIONS[0], dict[tuple[Partition, int], str]()
    shaper = new(name)
    shape = shaper.open(0, {partition: 0}, at_once=True)
    for start in range(0, COUNT, 470):
        found |= rows_of(shape(decoded_of(partition, start, min(COUNT, start + 470)))[0])
    rows, remembered = at_once(name, partition, COUNT)
    assert (found, shown(saved(shaper))) == (rows, shown(remembered))
