"""Several passes over each batch: scored once, counted once, and all of its updates applied or none."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import Rows
from millrace.training.checkpoints.parts import PartState
from millrace.training.ledger.offset_checksum import Evidence
from millrace.training.model.call.compiled_call import batch_of
from millrace.training.model.learner import Learner
from millrace.training.model.variables import read
from tests.training.conftest import (
    BATCH,
    FEATURES,
    MakeLearner,
    block,
    largest_difference,
    mlp,
    state_of,
    with_feature,
)
from tests.training.learner_pool import POOL
from tests.training.trainer_rig import P0, Topic, running

pytestmark = pytest.mark.tensorflow
PARTITION = Partition("t", 0)
DIVERGING = 1e15
"""In a feature of `linear`: the first update is finite, and the loss after it is not."""


def linear() -> Any:
    """Build a linear regression that a large feature makes diverge."""
    inputs = keras.Input((FEATURES,), name="x")
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.5), loss="mse", metrics=["mae"])
    return model


def test_four_passes_in_the_trainer_give_the_bits_of_a_plain_keras_loop(tmp_path: Path) -> None:
    topic, records = Topic(), 4 * BATCH + 5
    topic.produce(3 * BATCH)
    with running(tmp_path, topic, passes=4) as run:
        run.reaches(3 * BATCH)
        run.stop()
    topic.produce(records - 3 * BATCH)
    with running(tmp_path, topic, passes=4) as run:
        run.reaches(records)
        run.stop()
        learnt, live = state_of(run.learner), run.live.look()
    keras.utils.set_random_seed(7)
    plain = mlp()
    plain.jit_compile = False  # XLA computes the same sums in another order
    for first in range(0, records, BATCH):
        present = np.arange(BATCH) < records - first
        offsets = first + np.where(present, np.arange(BATCH), 0)
        x = np.array([topic.x(P0, int(offset)) for offset in offsets])
        for _ in range(4):
            plain.train_on_batch(x, (x.sum(axis=1) > 0).astype(np.float32), present.astype(np.float32))
    expected = [np.asarray(variable) for variable in [*plain.variables, *plain.optimizer.variables]]
    assert len(learnt) == len(expected)
    for mine, theirs in zip(learnt.values(), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert run.ledger.learnt() == {P0: records}
    assert run.learner.witness.testimonies() == {P0: Evidence.of(range(records))}
    assert live.cumulative_records == records


def test_only_the_first_pass_scores_a_batch(learner_of: MakeLearner) -> None:
    once, often = learner_of(), learner_of(passes=3)
    one, other = once.learn(block(1, rows=7)).result, often.learn(block(1, rows=7)).result
    np.testing.assert_array_equal(one.losses, other.losses)
    for mine, theirs in zip(one.states, other.states, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert [_updates(learner) for learner in (once, often)] == [1, 3]


def test_a_model_with_dropout_is_scored_once_and_draws_anew_in_each_pass(learner_of: MakeLearner) -> None:
    learner = learner_of(lambda: mlp(keras.layers.Dropout(0.5)), passes=3)
    seeds = [v for v in learner.model.non_trainable_variables if "seed" in v.path]
    before = [np.asarray(seed) for seed in seeds]
    _total, count = learner.learn(block(2)).result.states
    assert count == 2 * BATCH
    assert [int((np.asarray(seed) - old)[-1]) for seed, old in zip(seeds, before, strict=True)] == [6]


def test_the_weights_do_not_depend_on_how_batches_are_cut_into_calls(learner_of: MakeLearner) -> None:
    learner, rows = learner_of(passes=3), block(4)
    learner.learn(rows)
    whole = state_of(learner)
    POOL.anew(learner)
    for index in range(4):
        learner.learn(batch_of(rows, index))
    assert largest_difference(whole, state_of(learner)) == 0


def test_one_and_two_replicas_learn_the_same_weights_in_three_passes(learner_of: MakeLearner) -> None:
    states = []
    for replicas in (1, 2):
        learner = learner_of(replicas=replicas, passes=3)
        for seed in range(3):
            learner.learn(block(2, rows=BATCH + 5, seed=seed))
        states.append(state_of(learner))
    assert largest_difference(*states) < 1e-5


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_second_update_that_is_not_finite_takes_back_the_first(learner_of: MakeLearner, replicas: int) -> None:
    learner = learner_of(linear, replicas=replicas, passes=2)
    learner.learn(block(1))
    before = state_of(learner)
    bad = with_feature(block(1, seed=1), 2, DIVERGING)
    assert learner.call(bad, passes=1).finite.all(), "the first update by itself is finite"
    _put_back(learner, before)
    result = learner.call(bad)
    assert not result.finite.any()
    assert largest_difference(before, state_of(learner)) == 0
    assert all(not state.any() for state in result.states), "metrics count the batch that was taken back"


def test_a_record_that_diverges_in_a_later_pass_is_a_culprit(learner_of: MakeLearner) -> None:
    learner = learner_of(linear, passes=2)
    learner.witness.know(PARTITION, 0)
    lesson = learner.learn(with_feature(block(2), BATCH + 2, DIVERGING))
    assert lesson.culprits.offsets == ((0, BATCH + 2),)
    assert learner.witness.testimonies() == {PARTITION: Evidence.of({*range(2 * BATCH)} - {BATCH + 2})}
    assert all(np.isfinite(value).all() for value in state_of(learner).values())
    _total, count = lesson.result.states
    assert count == 2 * BATCH - 1
    assert _updates(learner) % 2 == 0, "a batch's updates are applied all or not at all"


def test_the_graph_does_not_grow_with_the_number_of_passes(fresh_learner_of: MakeLearner) -> None:
    def nodes(passes: int) -> int:
        learner = fresh_learner_of(passes=passes)
        graph = learner.call.traced(_any_number(block(1))).graph.as_graph_def()
        return len(graph.node) + sum(len(function.node_def) for function in graph.library.function)

    assert nodes(2) == nodes(64)


def _any_number(rows: Rows) -> Rows:
    specs: Rows = tf.nest.map_structure(lambda column: tf.TensorSpec([None, *column.shape[1:]], column.dtype), rows)
    return specs


def _updates(learner: Learner) -> int:
    return int(read(learner.model.optimizer.iterations).numpy())


def _put_back(learner: Learner, state: dict[str, Any]) -> None:
    for part in learner.parts[:2]:
        wanted = {key.removeprefix(f"{part.name}/"): array for key, array in state.items()}
        part.restore(PartState(arrays={key: wanted[key] for key in part.snapshot().arrays}))
