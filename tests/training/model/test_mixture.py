"""Members of a model: each learns as if it were alone, they are mixed by their losses, one begins anew."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.pipelines.shaping import BalanceSettings, ReservoirSettings
from millrace.training.errors import ModelError, OtherModelError
from millrace.training.model.call.compiled_call import batch_of
from millrace.training.model.export.answers import SIGNATURE
from millrace.training.model.export.export_reference import expected_answers
from millrace.training.model.export.served_module import ServedModel, ServedModule
from millrace.training.model.learner import Learner
from millrace.training.model.proof.function_proofs import states_add_up
from millrace.training.model.proof.proof import ModelProof
from millrace.training.model.setup.mixture import MixedModel
from millrace.training.model.variables import model_variables, read
from millrace.training.model.weights.initial_weights import match, take_over
from millrace.training.model.weights.weight_files import FoundWeights
from tests.training.conftest import BATCH, SCHEMA, block, largest_difference, mlp, options_of, state_of, with_feature
from tests.training.learner_pool import POOL
from tests.training.model.call.test_recent_rows import PASSES, held, sgd

pytestmark = pytest.mark.tensorflow
RECENT, SINCE_DRIFT, SEED = 20, 60, 7


def two(build: Any = sgd) -> Any:
    """Build a mixture."""
    return MixedModel.of(build, RECENT, SINCE_DRIFT)


def three(build: Any = sgd) -> Any:
    """Build a mixture with the member that learns each record once."""
    return MixedModel.of(build, RECENT, SINCE_DRIFT, once=True)


def learner_of(build: Any = two, **given: Any) -> Learner:
    """Return a learner of members as it is when it has just been built."""
    extra = {name: given.pop(name) for name in ("balance", "augment", "reservoir") if name in given}
    return POOL.lend(build, replace(options_of(passes=PASSES, **given), members=SINCE_DRIFT, **extra))


def state(learner: Learner, name: str) -> Any:
    """Return a variable of the state by which members are mixed."""
    return model_variables(learner.model)[f"members/{name}"]


def expects_a_drift(learner: Learner) -> None:
    """Have the next 64 records be a drift: their loss is far above what is usual."""
    state(learner, "rise").assign([0, 0, 100, 0.01, 1e-4, 0, 0])


# The first two of three members are those of two.
@pytest.mark.parametrize("build", [pytest.param(two, marks=pytest.mark.nightly), three])
def test_each_member_learns_its_own_rows_by_a_plain_keras_loop_and_the_mean_is_scored_before(build: Any) -> None:
    learner = learner_of(build)
    plain = [sgd() for _ in learner.model.members]
    for model, member in zip(plain, learner.model.members, strict=True):
        model.jit_compile = False
        for variable, mine in zip(model.variables, member.variables, strict=True):
            variable.assign(read(mine))
    identity, faded, rows_so_far = np.int64(learner.witness.identities.numpy()[0]), np.zeros(len(plain)), list[Any]()
    loss, first = keras.losses.BinaryCrossentropy(), 0
    for seed, (batches, absent) in enumerate([(1, 3), (3, 0), (2, BATCH - 1), (3, 5)]):
        rows = block(batches, rows=batches * BATCH - absent, seed=seed, first=first)
        result = learner.learn(rows).result
        for index in range(batches):
            x, y, offsets = (np.asarray(one[index]) for one in (rows.features["x"], rows.labels, rows.offsets))
            here = (offsets >= 0).astype(np.float32)
            answers = [np.asarray(model(x)) for model in plain]
            shares = np.exp(-0.3 * faded) / np.exp(-0.3 * faded).sum()
            mixed = sum(share * answer for share, answer in zip(shares, answers, strict=True))
            assert result.losses[index] == pytest.approx(float(loss(y[:, None], mixed, here)), rel=1e-4)
            losses = [float(loss(y[:, None], answer, here)) * BATCH for answer in answers]
            faded = faded * math.exp(-here.sum() / 100) + losses
            rows_so_far += [(x[row], y[row]) for row in range(BATCH) if offsets[row] >= 0]
            drawn = uniforms(int(offsets[0]), identity)
            for model in plain:
                model.train_on_batch(x, y, here)
            for model, reach, mine in zip(plain[:2], (RECENT, SINCE_DRIFT), drawn, strict=True):
                last = rows_so_far[-reach:]
                for taken in (mine * len(last)).astype(int):
                    pairs = [last[place] for place in taken]
                    model.train_on_batch(np.array([x for x, _ in pairs]), np.array([y for _, y in pairs]), here)
        first += batches * BATCH
    np.testing.assert_allclose(np.asarray(state(learner, "losses")), faded, rtol=1e-4)
    for model, member in zip(plain, learner.model.members, strict=True):
        for theirs, mine in zip(model.variables, member.variables, strict=True):
            np.testing.assert_allclose(np.asarray(read(mine)), np.asarray(theirs), rtol=1e-4, atol=1e-5)


def uniforms(offset: int, identity: Any) -> Any:
    """Return by what the later passes of a batch draw, [member, pass, row]."""
    from millrace.pipelines.stream.offset_mix import mix

    [seed] = mix(
        mix(mix(np.array([offset])) ^ identity) ^ mix(np.array([SEED * 256 + 2], np.int64)) ^ mix(np.array([0]))
    )
    drawn = mix(seed + np.arange(2 * (PASSES - 1) * BATCH)).astype(np.uint64) >> np.uint64(11)
    return (drawn.astype(np.float64) * 2.0**-53).reshape(2, PASSES - 1, BATCH)


class Rise:
    """When the loss has risen, as docs/model.md says it, record by record of blocks of 32."""

    def __init__(self) -> None:
        self.records = self.since = 0
        self.loss = self.mean = self.variance = self.risen = 0.0
        self.blocks = 0

    def young(self, loss: float, records: int) -> int | None:
        """Take in a batch; return how many records there are since the rise began, where it is a drift."""
        self.records, self.loss, self.since = self.records + records, self.loss + loss, self.since + records
        if self.records < 32:
            return None
        apart = self.loss / self.records - self.mean
        error = math.sqrt(self.variance / 32)
        if self.blocks >= 16:
            self.risen = max(0.0, self.risen + (min(apart / error, 8.0) - 0.75) * self.records / 32)
            if self.risen > 11:
                young = min(max(self.since, 64), 1000)
                self.__init__()  # type: ignore[misc]
                return young
        self.blocks = min(self.blocks + 1, 128)
        share, most = 1 / self.blocks, math.inf if self.blocks < 16 else 16 * self.variance
        self.mean += share * apart
        self.variance = (1 - share) * (self.variance + share * min(self.records * apart**2, most))
        self.since = self.since if self.risen else 0
        self.records, self.loss = 0, 0.0
        return None


def test_a_rise_of_its_loss_has_the_second_member_begin_anew() -> None:
    model, rise, random = two(mlp), Rise(), np.random.default_rng(5)
    first, second = model.members
    fresh = [np.asarray(one) for one in second.variables]
    for one in (*first.variables, *second.variables, *second.optimizer.variables):
        one.assign(tf.cast(one, tf.float32) + 1 if one.name != "learning_rate" else 0.5)
    before = [np.asarray(one) for one in first.variables]
    note, drifts = tf.function(model.note), 0
    for number in range(400):
        records = int(random.integers(5, 50))
        loss = float(random.exponential(0.3 if number % 150 < 120 else 1.2, records).sum())
        young = rise.young(loss, records)
        reach, mine = note(tf.constant([0.1, loss]), tf.constant(records)).numpy()
        assert reach == RECENT
        if young is None:
            assert int(state_of_model(model, "restarts")) == drifts, number
            continue
        drifts += 1
        assert (mine, int(state_of_model(model, "restarts"))) == (min(young, SINCE_DRIFT), drifts)
    assert drifts > 1
    for one, value in zip(second.variables, fresh, strict=True):
        np.testing.assert_array_equal(np.asarray(one), value)
    for one in second.optimizer.variables:
        np.testing.assert_array_equal(np.asarray(one), 0.5 if one.name == "learning_rate" else 0)
    for one, value in zip(first.variables, before, strict=True):
        np.testing.assert_array_equal(np.asarray(one), value)
    assert model.figures().restarts == drifts


def state_of_model(model: Any, name: str) -> Any:
    """Return a number of the state by which members are mixed."""
    return np.asarray(model_variables(model)[f"members/{name}"])


def test_a_restored_checkpoint_goes_on_with_the_same_bits_through_a_drift() -> None:
    whole, second = (learner_of(partial(three, mlp)) for _ in range(2))
    expects_a_drift(whole)
    for seed in range(6):
        rows = block(2, seed=seed, first=2 * BATCH * seed)
        whole.learn(rows)
        if seed == 1:
            for part, saved in zip(second.parts, [part.snapshot() for part in whole.parts], strict=True):
                part.restore(saved)
        for index in range(2 * (seed > 1)):  # cut into other calls
            second.learn(batch_of(rows, index))
    assert second.model.figures().restarts == 1
    assert largest_difference(state_of(whole), state_of(second)) == 0
    np.testing.assert_array_equal(held(whole), held(second))


def test_a_checkpoint_of_two_members_is_refused_by_three_and_the_setting_is_named() -> None:
    [saved, *_] = [part.snapshot() for part in learner_of(two).parts if part.name == "model"]
    [model, *_] = [part for part in learner_of(three).parts if part.name == "model"]
    with pytest.raises(OtherModelError, match=r"members/losses is \[3\] here and \[2\] there.*training\.members"):
        model.restore(saved)


def test_a_batch_that_is_not_applied_leaves_nothing_behind() -> None:
    learner = learner_of(three)
    learner.learn(block(3))
    before, weights = held(learner), state_of(learner)
    bad = with_feature(block(1, seed=1, first=100), 2, np.inf)
    assert not learner.call(bad).finite.any()
    assert largest_difference(weights, state_of(learner)) == 0
    np.testing.assert_array_equal(held(learner), before)
    assert learner.learn(bad).culprits.offsets == ((0, 102),)
    assert not learner.not_finite()


@pytest.mark.slow
# Two replicas learn the weights of one in the next test.
@pytest.mark.parametrize(("members", "replicas"), [(two, 1), pytest.param(three, 2, marks=pytest.mark.nightly)])
def test_the_proofs_at_a_start_hold(members: Any, replicas: int) -> None:
    learner = learner_of(partial(members, regularized), replicas=replicas)
    learner.trace(learner.rows_of(learner.probe()), deterministic=True)
    findings = [*ModelProof(learner).findings(), *states_add_up(learner)]
    assert {finding.holds for finding in findings} == {True}, findings


def regularized() -> Any:
    """Build a model of which a layer adds to its loss."""
    return mlp(keras.layers.Dense(8, kernel_regularizer="l2"))


@pytest.mark.slow
def test_one_and_two_replicas_learn_the_same_weights() -> None:
    states = []
    for replicas in (1, 2):
        learner = learner_of(replicas=replicas)
        expects_a_drift(learner)
        for seed in range(4):
            learner.learn(block(2, rows=BATCH + 5, seed=seed, first=100 * seed))
        states.append(state_of(learner))
    assert states[0]["model/members/restarts"] == 1
    assert largest_difference(*states) < 1e-4


@pytest.mark.slow
def test_members_learn_beside_all_that_shapes_the_rows() -> None:
    shaped = {
        "balance": BalanceSettings(by="label", target={"0": 0.5, "1": 0.5}),
        "reservoir": ReservoirSettings(size=40, share=0.25),
        "augment": lambda features, label, weight: (features, label, weight),
    }
    learner, states = learner_of(**shaped), []
    for _ in range(2):
        POOL.anew(learner)
        for seed in range(5):
            assert learner.learn(block(2, seed=seed, first=2 * BATCH * seed)).result.finite.all()
        states.append(state_of(learner))
    assert largest_difference(*states) == 0


def named() -> Any:
    """Build a model with two outputs by name, of layers that have names."""
    x = keras.Input((6,), name="x")
    hidden = keras.layers.Dense(8, activation="relu", name="hidden")(x)
    outputs = {name: keras.layers.Dense(1, activation="sigmoid", name=name)(hidden) for name in ("y", "z")}
    model = keras.Model({"x": x}, outputs)
    model.compile("adam", {"y": "binary_crossentropy", "z": "mse"}, metrics={"y": ["accuracy"]})
    return model


def test_weights_of_one_model_begin_all_members_and_those_of_a_mixture_each_its_own() -> None:
    plain, mixture, other = named(), two(named), two(named)
    weights = {key: np.asarray(one) for key, one in model_variables(plain).items()}
    table = match(mixture, FoundWeights(what="it", sha256="", arrays=weights))
    assert (len(table.kept), table.new, table.dropped) == (len(weights), (), ())
    take_over(mixture, table)
    for variables in (*(member.variables for member in mixture.members), mixture._fresh()):
        for one, wanted in zip(variables, plain.variables, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(wanted))
    arrays = {key: np.asarray(one) + 1 for key, one in model_variables(mixture).items()}
    table = match(other, FoundWeights(what="it", sha256="", arrays=arrays))
    take_over(other, table)
    for key, one in model_variables(other).items():
        np.testing.assert_array_equal(np.asarray(one), arrays[key])


def test_an_export_answers_as_the_mixture_does(tmp_path: Any) -> None:
    learner = learner_of()
    learner.learn(block(4))
    served = ServedModel(model=learner.model, schema=SCHEMA, preprocess=None)
    ServedModule(served).save(tmp_path / "saved", ())
    probe = learner.probe()
    answered = tf.saved_model.load(tmp_path / "saved").signatures[SIGNATURE](x=tf.constant(probe.features["x"]))
    shares = tf.nn.softmax(-0.3 * np.asarray(state(learner, "losses"))).numpy()
    members = [np.asarray(member(probe.features["x"])) for member in learner.model.members]
    np.testing.assert_allclose(answered["y"], shares[0] * members[0] + shares[1] * members[1], rtol=1e-5)
    np.testing.assert_array_equal(answered["y"], expected_answers(served, probe)["y"])
    assert len(np.unique(shares)) == 2


class Own(keras.Model):
    """A model of a class of one's own."""


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: mlp(model=Own), "training.members: it takes a functional or Sequential model .* returned Own;"),
        (lambda: compiled(keras.Sequential([keras.layers.Dense(1)])), "with keras.Input, .* returned Sequential;"),
        (lambda: compiled(rounded()), "training.members: an output of the model is no float"),
    ],
)
def test_a_model_of_which_no_members_can_be_made_is_refused_by_name(build: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        two(build)


def compiled(model: Any) -> Any:
    """Return the model compiled."""
    model.compile("sgd", "mse")
    return model


def rounded() -> Any:
    """Build a model with whole numbers as its output."""
    x = keras.Input((6,), name="x")
    return keras.Model(x, keras.ops.cast(keras.layers.Dense(1)(x), "int32"))
