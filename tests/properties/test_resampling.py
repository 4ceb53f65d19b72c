"""Resampling against a plain loop: any log, cut into any chunks, stopped at any settled position, keeps the same rows.

Rows are left out ahead of what is settled; a checkpoint is made of what is settled, and restored. The reference goes
through each partition record by record.
"""

import json
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.records import Partition
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping import BalanceSettings
from millrace.pipelines.shaping.balance import balance
from millrace.pipelines.shaping.balance.balance import LEFT_OUT, ResampleShaper
from millrace.pipelines.stream import offset_mix
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.pipelines.stream.decode import Decoded
from tests.properties.effort import tried

PARTITIONS = [Partition("clicks", number) for number in range(2)]
SCHEMA = Schema(
    features=(Field(name="x", source="x", dtype="float32"),), labels=(Field(name="y", source="y", dtype="int32"),)
)
RARE = BalanceSettings(target={"0": 0.5, "1": 0.5}, how="resample", half_life=5000)


def decoded(partition: Partition, start: int, end: int, offsets: list[int], labels: list[int]) -> Decoded:
    """Return a chunk of offsets from `start` to before `end`, of which some hold a record."""
    here = [(offset, label) for offset, label in zip(offsets, labels, strict=True) if start <= offset < end]
    found = np.array([offset for offset, _ in here], np.int64)
    return Decoded(
        partition=partition,
        incarnation=1,
        start=start,
        end=end,
        fetched_at=0.0,
        lost=0,
        offsets=found,
        event_times=found,
        features={"x": found.astype(np.float32)},
        labels={"y": np.array([label for _, label in here], np.int32)},
        weights=None,
        refused=(),
        nbytes=1,
    )


def reference(
    options: BalanceSettings, partition: Partition, offsets: list[int], labels: list[int]
) -> dict[int, float]:
    """Return the weight of each offset that is kept, decided one by one."""
    counts, cell, seen = dict.fromkeys(options.classes, 0.0), -1, Counter[str]()
    kept = {}
    for offset, label in zip(offsets, labels, strict=True):
        if offset // balance.CELL != cell:
            decay = 2.0 ** (-sum(seen.values()) / options.half_life)
            counts = {one: count * decay + seen[one] for one, count in counts.items()}
            cell, seen = offset // balance.CELL, Counter()
        total = sum(counts.values()) + 10
        weights = {one: share * total / (counts[one] + 10 * share) for one, share in options.target.items()}
        weight, most = weights.get(str(label), 1.0), max(*weights.values(), 1.0)
        drawn = offset_mix.drawn(np.array([offset]), offset_mix.salt_of(str(partition)))[0]
        if drawn < weight / most:
            kept[offset] = 1 / weight
        if str(label) in options.target:
            seen[str(label)] += 1
    return kept


def facts(partition: Partition, start: int, end: int) -> BlockFacts:
    """Return what settles these offsets."""
    span = Span(partition=partition, index=0, start=start, end=end)
    return BlockFacts(
        number=0, incarnation=1, spans=(span,), batches=1, rows=1, seed=0, fetched_at=0.0, oldest_ms=0, newest_ms=0
    )


@pytest.mark.row(36)
@tried(12)
@given(seed=st.integers(0, 2**32))
def test_any_cut_and_any_restart_keep_the_rows_of_a_plain_loop(seed: int) -> None:
    random = Random(seed)
    end = random.randint(50, 4000)
    logs = {}
    for partition in PARTITIONS:
        offsets = [offset for offset in range(end) if random.random() < 0.9]
        rate = random.choice([0.5, 0.02])
        logs[partition] = offsets, [random.choice([0, 1, 2]) if random.random() < rate else 0 for _ in offsets]
    expected = {partition: reference(RARE, partition, *log) for partition, log in logs.items()}
    found: dict[Partition, dict[int, float]] = {partition: {} for partition in PARTITIONS}
    settled, saved = dict.fromkeys(PARTITIONS, 0), None
    while min(settled.values()) < end:
        states = ResampleShaper(RARE, SCHEMA)
        if saved is not None:
            states.load({}, json.loads(json.dumps(saved)))
        shape, read = states.open(1, settled), dict(settled)
        for _ in range(random.randint(1, 12)):
            partition = random.choice(PARTITIONS)
            chunk_end = min(end, read[partition] + random.randint(1, 900))
            chunk = decoded(partition, read[partition], chunk_end, *logs[partition])
            rows, left_out = shape(chunk)
            assert rows.weights is not None
            assert sorted([*rows.offsets.tolist(), *(offset for offset, _ in left_out)]) == chunk.offsets.tolist()
            assert {why for _, why in left_out} <= {LEFT_OUT}
            found[partition] |= dict(zip(rows.offsets.tolist(), rows.weights.tolist(), strict=True))
            read[partition] = chunk_end
            if random.random() < 0.7 and settled[partition] < chunk_end:
                upto = random.randint(settled[partition] + 1, chunk_end)
                states.settle(facts(partition, settled[partition], upto))
                settled[partition] = upto
        saved = states.saved()[1]
        # What was read and not settled is read again.
        found = {at: {one: kept[one] for one in kept if one < settled[at]} for at, kept in found.items()}
    for partition, wanted in expected.items():
        assert found[partition] == {offset: pytest.approx(weight, rel=1e-6) for offset, weight in wanted.items()}


def test_what_is_kept_has_the_shares_of_the_target_and_its_weights_tell_the_stream() -> None:
    random = np.random.default_rng(1)
    labels = (random.random(200_000) < 1 / 200).astype(np.int32)
    offsets = np.arange(len(labels))
    chunk = decoded(PARTITIONS[0], 0, len(labels), offsets.tolist(), labels.tolist())
    rows, left_out = ResampleShaper(RARE, SCHEMA).open(1, {PARTITIONS[0]: 0})(chunk)
    late = rows.offsets > 20_000  # by then the shares are known
    kept: Any = rows.labels["y"][late]
    weights = rows.weights
    assert weights is not None
    assert kept.mean() == pytest.approx(0.5, abs=0.05)
    assert len(left_out) > 0.9 * len(labels)
    rare = labels[20_001:].mean()
    assert (kept * weights[late]).sum() / weights[late].sum() == pytest.approx(rare, rel=0.1)
    assert weights[late].mean() == pytest.approx(1.0, rel=0.1)
    assert set(np.flatnonzero(labels).tolist()) <= set(rows.offsets.tolist()), "of the rare class every record is kept"
