"""The memory of the last records: later passes draw their rows from it, and nothing random is state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.shaping import BalanceSettings, ReservoirSettings
from millrace.pipelines.shaping.followed_states import unpacked
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.offset_mix import mix
from millrace.training.checkpoints.parts import PartState
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.call.compiled_call import batch_of
from millrace.training.model.call.recent_rows import RecentRows
from millrace.training.model.hyperparameters import HyperparameterOptions
from millrace.training.model.learner import Learner
from millrace.training.model.proof.function_proofs import states_add_up
from millrace.training.model.proof.proof import ModelProof
from millrace.training.model.variables import read
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.trainer.metric_guesses import plan_of
from millrace.training.trainer.state import TrainerState
from tests.training.conftest import BATCH, block, largest_difference, mlp, options_of, state_of, with_feature
from tests.training.learner_pool import POOL

pytestmark = pytest.mark.tensorflow
SIZE, PASSES, SEED = 40, 4, 7


def sgd() -> Any:
    """Build a model whose update is linear in its gradients, so that each row shows."""
    model = mlp()
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def remembering(memory: int | None = SIZE, build: Callable[[], Any] = sgd, **given: Any) -> Learner:
    """Return a learner with a memory as it is when it has just been built."""
    extra = {name: given.pop(name) for name in ("balance", "augment", "reservoir") if name in given}
    return POOL.lend(build, replace(options_of(passes=PASSES, **given), memory=memory, **extra))


def recent_of(learner: Learner) -> RecentRows:
    """Return the learner's memory."""
    assert learner.call.shaping.recent is not None
    return learner.call.shaping.recent


def held(learner: Learner) -> Any:
    """Return the rows that are held, the oldest first."""
    return np.array(recent_of(learner).snapshot().arrays["feature.x"])


class Reference:
    """The last rows and what is drawn of them, row by row."""

    def __init__(self, identity: int, size: int = SIZE, seed: int = SEED) -> None:
        self.identity, self.size = np.int64(identity), size
        self.salt = mix(np.array([seed * 256 + 2], np.int64))
        self.rows: list[Any] = []

    def passes(self, first: int, batch: list[Any], *, visit: int = 0) -> list[list[Any]]:
        """Take a batch in, of which the absent rows are None; return the rows of each later pass."""
        self.rows = [*self.rows, *(row for row in batch if row is not None)][-self.size :]
        [seed] = mix(mix(mix(np.array([first])) ^ self.identity) ^ self.salt ^ mix(np.array([visit])))
        drawn = mix(seed + np.arange((PASSES - 1) * len(batch))).astype(np.uint64) >> np.uint64(11)
        places = (drawn.astype(np.float64) * 2.0**-53 * len(self.rows)).astype(int).reshape(PASSES - 1, -1)
        return [
            [None if row is None else self.rows[place] for row, place in zip(batch, taken, strict=True)]
            for taken in places
        ]


def test_later_passes_learn_rows_of_the_last_records_by_a_plain_keras_loop() -> None:
    learner, plain = remembering(), sgd()
    plain.jit_compile = False
    for variable, mine in zip(plain.variables, learner.model.variables, strict=True):
        variable.assign(read(mine))
    reference = Reference(int(learner.witness.identities.numpy()[0]))
    first = 0
    for seed, (batches, absent) in enumerate([(1, 3), (3, 0), (2, BATCH - 1), (3, 5)]):
        rows = block(batches, rows=batches * BATCH - absent, seed=seed, first=first)
        result = learner.learn(rows).result
        for index in range(batches):
            x, y, offsets = (np.asarray(one[index]) for one in (rows.features["x"], rows.labels, rows.offsets))
            here = (offsets >= 0).astype(np.float32)
            scored = keras.losses.BinaryCrossentropy()(y[:, None], plain(x), sample_weight=here)
            assert result.losses[index] == pytest.approx(float(scored), rel=1e-4), "scored before, and alone"
            plain.train_on_batch(x, y, here)
            batch: list[Any] = [(x[row], y[row]) if offsets[row] >= 0 else None for row in range(BATCH)]
            for taken in reference.passes(int(offsets[0]), batch):
                pairs = [batch[0] if pair is None else pair for pair in taken]
                plain.train_on_batch(np.array([x for x, _ in pairs]), np.array([y for _, y in pairs]), here)
        assert result.states[1] == batches * BATCH - absent
        first += batches * BATCH
    np.testing.assert_array_equal(held(learner), [x for x, _ in reference.rows])
    for mine, theirs in zip(learner.model.variables, plain.variables, strict=True):
        np.testing.assert_allclose(np.asarray(read(mine)), np.asarray(theirs), rtol=1e-4, atol=1e-5)


def test_the_weights_do_not_depend_on_how_batches_are_cut_into_calls() -> None:
    learner, rows = remembering(), block(6, rows=6 * BATCH - 5)
    learner.learn(rows)
    whole, remembered = state_of(learner), held(learner)
    POOL.anew(learner)
    for index in range(6):
        learner.learn(batch_of(rows, index))
    assert largest_difference(whole, state_of(learner)) == 0
    np.testing.assert_array_equal(remembered, held(learner))


@pytest.mark.row(42)
# Calls of more batches than one are gone on with beside a reservoir, below.
@pytest.mark.parametrize("batches", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_a_restored_checkpoint_continues_with_the_same_bits(batches: int) -> None:
    whole, second = remembering(), remembering()
    for seed in range(8):
        rows = block(batches, seed=seed, first=batches * BATCH * seed)
        whole.learn(rows)
        if seed > 3:
            second.learn(rows)
        if seed == 3:
            for part, theirs in zip(second.parts, whole.parts, strict=True):
                part.restore(theirs.snapshot())
    assert largest_difference(state_of(whole), state_of(second)) == 0
    np.testing.assert_array_equal(held(whole), held(second))


def test_a_batch_that_is_not_applied_leaves_no_row() -> None:
    learner = remembering()
    learner.learn(block(3))
    before, weights = held(learner), state_of(learner)
    bad = with_feature(block(1, seed=1, first=100), 2, np.inf)
    assert not learner.call(bad).finite.any()
    np.testing.assert_array_equal(held(learner), before)
    assert largest_difference(weights, state_of(learner)) == 0
    lesson = learner.learn(bad)
    assert lesson.culprits.offsets == ((0, 102),)
    np.testing.assert_array_equal(
        np.sort(held(learner)[-BATCH + 1 :, 0]), np.sort(np.delete(bad.features["x"][0], 2, 0)[:, 0])
    )
    assert np.isfinite(held(learner)).all()
    assert np.isfinite(learner.learn(block(1, seed=2, first=200)).result.losses).all()


@pytest.mark.slow
# What two replicas remember is what they learn the same weights by, below.
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_proofs_at_a_start_hold_and_keep_no_row(replicas: int) -> None:
    learner = remembering(replicas=replicas)
    findings = [*ModelProof(learner).findings(), *states_add_up(learner)]
    assert {finding.holds for finding in findings} == {True}, findings
    assert len(held(learner)) == 0


@pytest.mark.slow
def test_one_and_two_replicas_learn_the_same_weights() -> None:
    states = []
    for replicas in (1, 2):
        learner = remembering(replicas=replicas)
        for seed in range(4):
            learner.learn(block(2, rows=BATCH + 5, seed=seed, first=100 * seed))
        states.append(state_of(learner))
    assert largest_difference(*states) < 1e-5


def test_without_replay_the_batch_is_repeated() -> None:
    memory, plain = remembering(), remembering(None)
    memory.learn(block(2))
    for variable, theirs in zip(plain.variables, memory.variables, strict=True):
        variable.assign(read(theirs))
    rows = block(2, rows=BATCH + 3, seed=1, first=100)
    for learner in (memory, plain):
        learner.call(rows, replay=False)
    assert largest_difference(state_of(memory), state_of(plain)) == 0
    np.testing.assert_array_equal(held(memory)[-3:], np.asarray(rows.features["x"][1, :3]))


@pytest.mark.slow
def test_each_epoch_of_a_pretraining_draws_other_rows() -> None:
    learner = remembering()

    def learnt(*visits: int) -> dict[str, Any]:
        POOL.anew(learner)
        for visit in visits:
            learner.call(block(2), visit=visit)
        assert len(held(learner)) == min(SIZE, 2 * BATCH * len(visits))
        return state_of(learner)

    assert largest_difference(learnt(0, 0), learnt(0, 1)) > 0
    assert largest_difference(learnt(0, 1), learnt(0, 1)) == 0


def test_a_memory_of_another_size_keeps_the_last_rows_and_is_filled_by_the_next() -> None:
    learner = remembering()
    learner.learn(block(5))
    saved, rows = recent_of(learner).snapshot(), held(learner)
    smaller, larger = remembering(20), remembering(90)
    for other in (smaller, larger):
        recent_of(other).restore(saved)
    np.testing.assert_array_equal(held(smaller), rows[-20:])
    np.testing.assert_array_equal(held(larger), rows)
    larger.learn(block(5, seed=1, first=200))
    assert len(held(larger)) == 90


def test_a_checkpoint_from_before_the_memory_is_restored_and_one_with_it_by_a_model_without() -> None:
    def state(learner: Learner, memory: int | None) -> TrainerState:
        metrics = learner.call.metrics
        plan = plan_of(learner.model, metrics)
        live = LiveMetrics(window_s=60.0, scored="", results=metrics.results, plan=plan, clock=lambda: 0.0)
        options = HyperparameterOptions(settings={"training.memory": memory})
        return TrainerState(learner, Ledger(), live, options)

    learners = {memory: remembering(memory) for memory in (None, SIZE)}
    for (memory, mine), theirs in zip(learners.items(), reversed(learners.values()), strict=True):
        for variable in mine.model.trainable_variables:
            variable.assign_add(np.ones(variable.shape))
        saved = state(mine, memory).snapshot()
        other = SIZE if memory is None else None
        restored = state(theirs, other)
        restored.restore(restored.fitting(3, saved))
        assert largest_difference(state_of(mine), state_of(theirs)) == 0
        assert [(one.name, one.then, one.now) for one in restored.hyperparameters.changes] == [
            ("training.memory", memory, other)
        ]
    assert len(held(learners[SIZE])) == 0


def test_rows_of_other_columns_are_left_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    learner = remembering()
    learner.learn(block(1))
    saved = recent_of(learner).snapshot()
    other = {**saved.facts, "columns": {**saved.facts["columns"], "feature.x": ["float32", 9]}}
    recent_of(learner).restore(replace(saved, facts=other))
    assert len(held(learner)) == 0
    recent_of(learner).restore(PartState())
    said = [record.message for record in caplog.records if record.message.startswith("training.memory: ")]
    assert said == [
        f"training.memory: the checkpoint holds {which} rows, so it is filled by the next {SIZE} records"
        for which in ("other", "no")
    ]


def test_texts_and_labels_with_names_come_back() -> None:
    def rows(first: int) -> Rows:
        offsets = np.arange(first, first + 4)[None]
        return Rows(
            features={"text": tf.constant([[[str(one), "é"] for one in offsets[0]]])},
            labels={"a": tf.constant(offsets), "b": tf.constant(offsets / 2)},
            weights=tf.ones(offsets.shape),
            offsets=tf.constant(offsets),
            partitions=tf.zeros(offsets.shape, tf.int32),
        )

    def entered(recent: RecentRows, block: Rows) -> tuple[Any, Rows]:
        draws = recent.draws(block, tf.constant([77], tf.int64), tf.constant(0), replay=yes)
        draws = tf.nest.map_structure(lambda one: one[0], draws._replace(live=yes[None]))
        batch = tf.nest.map_structure(lambda column: column[0], block)
        return recent.enter(batch, draws), batch

    yes = tf.constant(True)  # noqa: FBT003 - a tensor's value
    one, other = RecentRows(6, PASSES, rows(0), seed=1), RecentRows(6, PASSES, rows(0), seed=1)
    for first in (0, 4, 8):
        one.keep(entered(one, rows(first))[0], yes)
    state = one.snapshot()
    assert unpacked(state.arrays, "feature.text", (2,))[:, 0].tolist() == [b"%d" % number for number in range(6, 12)]
    other.restore(state)
    taken = []
    for each in (one, other):
        passes, batch = entered(each, rows(12))
        taken.append(each.take(passes, 1, batch))
    tf.nest.map_structure(np.testing.assert_array_equal, *taken)
    assert {int(number) for number in taken[0].labels["a"]} <= set(range(10, 16))


@pytest.mark.slow
def test_rows_that_are_drawn_have_the_weight_of_their_class_and_go_through_augment() -> None:
    def augment(features: Any, label: Any, weight: Any, seed: Any) -> Any:
        noise = tf.random.stateless_normal(tf.shape(features["x"]), seed)
        return {"x": features["x"] + noise}, label, weight

    halves = BalanceSettings(target={"0": 0.5, "1": 0.5}, half_life=1000)
    shaped, weighed = remembering(balance=halves), remembering(balance=halves, augment=augment)
    plain = sgd()
    plain.jit_compile = False
    for learner in (shaped, weighed):
        assert learner.call.shaping.balance is not None
        learner.call.shaping.balance.counts.assign([110.0, 10.0])
    assert shaped.call.shaping.balance is not None
    weights = shaped.call.shaping.balance.weights().numpy()
    for variable, mine in zip(plain.variables, shaped.model.variables, strict=True):
        variable.assign(read(mine))
    reference = Reference(int(shaped.witness.identities.numpy()[0]))
    rows = block(1)
    x, y = np.asarray(rows.features["x"][0]), np.asarray(rows.labels[0])
    plain.train_on_batch(x, y, weights[y.astype(int)])
    for taken in reference.passes(0, list(zip(x, y, strict=True))):
        y = np.array([label for _, label in taken])
        plain.train_on_batch(np.array([row for row, _ in taken]), y, weights[y.astype(int)])
    for learner in (shaped, weighed):
        learner.learn(rows)
    for mine, theirs in zip(shaped.model.variables, plain.variables, strict=True):
        np.testing.assert_allclose(np.asarray(read(mine)), np.asarray(theirs), rtol=1e-4, atol=1e-5)
    assert largest_difference(state_of(shaped), state_of(weighed)) > 0
    np.testing.assert_array_equal(held(shaped), held(weighed), "what is held is as it came")


@pytest.mark.slow
def test_it_works_beside_a_reservoir() -> None:
    past = ReservoirSettings(size=30, share=0.25)
    whole, second = (remembering(reservoir=past) for _ in range(2))
    for seed in range(6):
        rows = block(2, seed=seed, first=2 * BATCH * seed)
        whole.learn(rows)
        if seed > 2:
            second.learn(rows)
        if seed == 2:
            for part, theirs in zip(second.parts, whole.parts, strict=True):
                part.restore(theirs.snapshot())
    assert largest_difference(state_of(whole), state_of(second)) == 0
    assert whole.call.shaping.reservoir is not None
    assert whole.call.shaping.reservoir.figures().seen == 12 * BATCH, "what is drawn is not learnt once more"


def test_a_memory_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training.memory: 1,000,000,000,0\d\d rows take 40,000.0 GB, and this"):
        RecentRows(10**12, PASSES, block(1), seed=1)
