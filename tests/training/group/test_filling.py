"""Blocks filled up for a call of a group."""

import numpy as np
import pytest
import tensorflow as tf

from millrace.pipelines.stream.blocks import BlockFacts, Delivery
from millrace.training.group.lockstep_trainer import Filling
from tests.training.conftest import block

pytestmark = pytest.mark.tensorflow
_BATCH = 8
_NOTHING = BlockFacts(
    number=0, incarnation=0, spans=(), batches=0, rows=0, seed=0, fetched_at=0.0, oldest_ms=0, newest_ms=0
)


def _delivery(batches: int, rows: int, seed: int = 0) -> Delivery:
    facts = BlockFacts(
        number=seed,
        incarnation=1,
        spans=(),
        batches=batches,
        rows=rows,
        seed=0,
        fetched_at=0.0,
        oldest_ms=0,
        newest_ms=0,
    )
    return Delivery(block(batches, rows=rows, batch=_BATCH, seed=seed), facts)


def test_a_full_block_goes_into_the_call_as_it_is() -> None:
    full = _delivery(2, 16)
    assert Filling(block(1, batch=_BATCH)).filled(full, 2, _NOTHING).rows is full.rows


def test_a_short_block_keeps_its_rows_and_ends_with_absent_ones() -> None:
    short = _delivery(2, 11)
    rows = Filling(block(1, batch=_BATCH)).filled(short, 5, _NOTHING).rows
    tf.nest.map_structure(lambda a, b: np.testing.assert_array_equal(a[:2], b), rows, short.rows)
    assert rows.weights.shape[0] == 5
    assert not np.any(rows.weights[2:])
    assert np.all(rows.offsets[2:] == -1)


def test_without_a_block_the_rows_are_copies_of_the_last_that_was_not_full() -> None:
    filling, last = Filling(block(1, batch=_BATCH, seed=7)), _delivery(2, 11, seed=3)
    filling.filled(last, 2, _NOTHING)
    found = filling.filled(None, 3, _NOTHING)
    assert found.facts.batches == 3
    assert np.all(found.rows.offsets == -1)
    assert not np.any(found.rows.weights)
    for batch in range(3):
        tf.nest.map_structure(
            lambda column, given, at=batch: np.testing.assert_array_equal(column[at], given[-1]),
            found.rows.features,
            last.rows.features,
        )
