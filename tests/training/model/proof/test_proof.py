"""The proof at start: what it holds to be true, what it names as the fault, and that it leaves no trace."""

import re
from typing import Any

import keras
import pytest
import tensorflow as tf

from millrace.app.service.model_setup import examine
from millrace.pipelines.schema import Field, Schema
from millrace.training.errors import ModelError
from millrace.training.model.call.compiled_call import TrainingCall
from millrace.training.model.proof.proof import Finding, ModelProof
from millrace.training.model.variables import copies
from tests.training.conftest import BATCH, FEATURES, MakeLearner, block, largest_difference, mlp, state_of

pytestmark = pytest.mark.tensorflow


class Deaf(keras.Model):
    """A custom train_step that ignores the weights."""

    def train_step(self, data: Any) -> Any:
        x, y, _ = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class Sum(keras.metrics.Metric):
    """A metric of the user's own that ignores the weights."""

    def __init__(self) -> None:
        super().__init__(name="sum")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(tf.reduce_sum(y_pred))

    def result(self) -> Any:
        return self.total.value


class Weighing(Sum):
    """A metric of the user's own that cannot do without weights."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(tf.reduce_sum(tf.cast(sample_weight, tf.float32) * y_pred[:, 0]))


class Stepping(keras.Model):
    """A custom train_step whose loss is made by `reduce`, and whose update by `update`."""

    def train_step(self, data: Any) -> Any:
        x, y, weight = data
        with tf.GradientTape() as tape:
            rows = tf.square(y - self(x, training=True)[:, 0]) * weight
            loss = self.reduced(rows, weight)
        self.update(tape.gradient(loss, self.trainable_variables))
        return self.reported(loss)

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.reduce_sum(rows) / BATCH

    def update(self, gradients: Any) -> None:
        self.optimizer.apply(gradients, self.trainable_variables)

    def reported(self, loss: Any) -> Any:
        return {"loss": loss}


class OverPresent(Stepping):
    """Takes the mean over present rows, and reports a loss of 0, as a tracker that nobody updates does."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.reduce_sum(rows) / tf.reduce_sum(weight)

    def reported(self, loss: Any) -> Any:
        return {"loss": tf.zeros(())}


class Guarded(OverPresent):
    """Takes the mean over present rows, by a divisor that is never 0."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.reduce_sum(rows) / tf.maximum(tf.reduce_sum(weight), 1.0)


class GuardedMean(OverPresent):
    """Divides the mean over all rows by the share of those that are present, which counts as one percent at least."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.reduce_mean(rows) / tf.maximum(tf.reduce_mean(weight), 0.01)


class GuardedByOne(OverPresent):
    """Adds 1 to the divisor."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.reduce_sum(rows) / (tf.reduce_sum(weight) + 1.0)


class GuardedCount(OverPresent):
    """Counts present rows."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.reduce_sum(rows) / tf.maximum(tf.reduce_sum(tf.cast(weight > 0, tf.float32)), 1.0)


class GuardedNoNan(OverPresent):
    """Divides by what may be 0."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.math.divide_no_nan(tf.reduce_sum(rows), tf.reduce_sum(weight))


class ByTheLargest(OverPresent):
    """Divides by the largest loss of the batch, if that is large."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.reduce_mean(rows) / tf.maximum(tf.reduce_max(rows), 0.01)


class ClippedSum(OverPresent):
    """Takes a sum over rows, and clips its gradient."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.reduce_sum(rows)

    def update(self, gradients: Any) -> None:
        clipped, _ = tf.clip_by_global_norm(gradients, 1e-3)
        super().update(clipped)


class Summing(Stepping):
    """Takes the sum over rows."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.reduce_sum(rows)


class ByHand(Stepping):
    """Assigns its weights itself."""

    def update(self, gradients: Any) -> None:
        for variable, gradient in zip(self.trainable_variables, gradients, strict=True):
            variable.assign(variable - 0.01 * gradient)


class ByHandOverPresent(ByHand):
    """Assigns its weights itself, by a mean over present rows."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.reduce_sum(rows) / tf.reduce_sum(weight)


class Idle(Stepping):
    """Updates nothing."""

    def update(self, gradients: Any) -> None:
        pass


class Clipping(Stepping):
    """Clips its gradients itself, far below what they are."""

    def update(self, gradients: Any) -> None:
        clipped, _ = tf.clip_by_global_norm(gradients, 1e-3)
        super().update(clipped)


class ClippingALittle(Stepping):
    """Clips its gradients where only a whole batch of rows reaches the bound."""

    def update(self, gradients: Any) -> None:
        clipped, _ = tf.clip_by_global_norm(gradients, 0.06)
        super().update(clipped)


class ClippingWhatIsRegularised(Clipping):
    """Clips the gradient of a loss that grows with the weights."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        decay = 1e-5 * sum(tf.reduce_sum(tf.square(variable)) for variable in self.trainable_variables)
        return super().reduced(rows, weight) + decay


class ClippingEach(Stepping):
    """Clips the gradient of each variable by its norm."""

    def update(self, gradients: Any) -> None:
        super().update([tf.clip_by_norm(gradient, 1e-3) for gradient in gradients])


class ClippingValues(Stepping):
    """Clips each number of its gradients."""

    def update(self, gradients: Any) -> None:
        super().update([tf.clip_by_value(gradient, -1e-4, 1e-4) for gradient in gradients])


class Randomly(Stepping):
    """Draws random numbers outside of Keras' seed generators."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        return tf.reduce_mean(rows) * tf.random.uniform([])


class Reporting(Stepping):
    """Learns as it should, and reports a mean over present rows."""

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        return {"loss": logs["loss"] * BATCH / tf.maximum(tf.reduce_sum(data[2]), 1.0)}


class Adversaries(keras.Model):
    """Two optimizers in one step, each with its own gradients, and a mean of losses that is shown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.second = keras.optimizers.Adam(1e-3, clipnorm=0.1)
        self.mean_loss = keras.metrics.Mean(name="mean_loss")

    def build_second(self) -> "Adversaries":
        self.second.build(self.layers[1].trainable_variables)
        return self

    def train_step(self, data: Any) -> Any:
        x, y, weight = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weight)
            other = self.compute_loss(x, 1.0 - y, self(x, training=True), weight)
        first, last = self.layers[1].trainable_variables, self.layers[-1].trainable_variables
        self.second.apply(tape.gradient(other, first), first)
        self.optimizer.apply(tape.gradient(loss, last), last)
        self.mean_loss.update_state(loss)
        return {"loss": loss}


class Adding(keras.layers.Layer):
    """Adds the mean over the batch to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        return x


class Rows(keras.metrics.Metric):
    """Counts rows, absent ones among them."""

    def __init__(self) -> None:
        super().__init__(name="rows")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(tf.cast(tf.shape(y_pred)[0], tf.float32))

    def result(self) -> Any:
        return self.count.value


def embedding() -> Any:
    inputs = keras.Input((), name="x", dtype="int32")
    hidden = keras.layers.Embedding(50, 4, embeddings_regularizer="l2")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.3)(hidden)))
    model.compile(optimizer=keras.optimizers.AdamW(1e-2, weight_decay=0.1, global_clipnorm=0.01), loss="mse")
    return model


def coarse() -> Any:
    inputs = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(32, activation="gelu", dtype="mixed_bfloat16")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid", dtype="float32")(hidden))
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="binary_crossentropy", metrics=["auc"])
    return model


@pytest.fixture
def learner_of(fresh_learner_of: MakeLearner) -> MakeLearner:
    """Build every learner: what the proof traces and runs is its own."""
    return fresh_learner_of


def _findings(learner_of: MakeLearner, build: Any, **kwargs: Any) -> list[Finding]:
    return ModelProof(learner_of(build, **kwargs)).findings()


NORMALISED = (keras.layers.LayerNormalization,)
REGULARISED = (lambda: keras.layers.Dense(4, kernel_regularizer="l2"),)


@pytest.mark.parametrize(
    ("layers", "replicas"),
    [
        pytest.param((), 1, id="plain-1"),
        pytest.param((*NORMALISED, *REGULARISED), 1, id="normalised-regularised-1"),
        pytest.param((*NORMALISED, *REGULARISED), 2, id="normalised-regularised-2", marks=pytest.mark.slow),
        # One by one what the last has together.
        *(
            pytest.param(layers, replicas, id=f"{name}-{replicas}", marks=pytest.mark.nightly)
            for name, layers in {"plain": (), "normalised": NORMALISED, "regularised": REGULARISED}.items()
            for replicas in (2, 3)
        ),
    ],
)
def test_a_plain_model_passes(learner_of: MakeLearner, replicas: int, layers: Any) -> None:
    found = _findings(learner_of, lambda: mlp(*(layer() for layer in layers)), replicas=replicas)
    assert [finding.holds for finding in found] == [True] * (2 if replicas == 1 else 3)


@pytest.mark.slow
def test_dropout_passes_where_masks_are_the_same_and_is_left_as_it_was(learner_of: MakeLearner) -> None:
    learner = learner_of(lambda: mlp(keras.layers.Dropout(0.5)), replicas=2)
    before = state_of(learner)
    assert [finding.holds for finding in ModelProof(learner).findings()] == [True, True, None]
    assert largest_difference(before, state_of(learner)) == 0
    assert learner.witness.testimonies() == {}


def test_batch_normalization_is_named_with_a_way_out(learner_of: MakeLearner) -> None:
    found = _findings(learner_of, lambda: mlp(keras.layers.BatchNormalization(name="bn")))
    assert found[0].holds is False
    assert found[0].detail.startswith("layer bn (BatchNormalization)")
    assert "LayerNormalization" in found[0].detail


def test_batch_normalization_passes_where_batches_are_whole(learner_of: MakeLearner) -> None:
    learner = learner_of(lambda: mlp(keras.layers.BatchNormalization()))
    found = ModelProof(learner, whole_batches=True).findings()
    assert [finding.holds for finding in found] == [None, True]
    assert "partial_batches: wait" in found[0].detail


# How a loss is reduced is told on one replica as on two.
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_loss_that_is_a_mean_over_present_rows_is_refused(learner_of: MakeLearner, replicas: int) -> None:
    loss = keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")
    found = _findings(learner_of, lambda: mlp(loss=loss), replicas=replicas)
    assert found[1].holds is False
    assert "sum_over_batch_size" in found[1].detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (OverPresent, "as if the loss were a mean over present rows"),
        # Other guards against a division by 0 than those below; the words are the same.
        pytest.param(Guarded, "as if the loss were a mean over present rows", marks=pytest.mark.nightly),
        pytest.param(GuardedMean, "as if the loss were a mean over present rows", marks=pytest.mark.nightly),
        (GuardedByOne, "as if the loss were a mean over present rows"),
        pytest.param(GuardedCount, "as if the loss were a mean over present rows", marks=pytest.mark.nightly),
        (GuardedNoNan, "as if the loss were a mean over present rows"),
        (ByTheLargest, "is not the sum of what the rows pull by themselves"),
        (ClippedSum, "is not the sum of what the rows pull by themselves"),
        (Summing, "the loss is a sum over rows"),
        (ByHandOverPresent, ", assigned by the step, is not the sum"),
        (Idle, "Idle.train_step updates nothing"),
        (Reporting, "the loss that train_step reports is a mean over present rows"),
    ],
)
def test_a_train_step_that_pulls_otherwise_is_refused(learner_of: MakeLearner, model: Any, words: str) -> None:
    found = _findings(learner_of, lambda: mlp(model=model))
    assert [finding.holds for finding in found] == [True, False]
    assert words in found[1].detail


# So it is with a sum.
@pytest.mark.parametrize(("replicas", "batch"), [(1, BATCH), pytest.param(2, BATCH, marks=pytest.mark.nightly), (1, 5)])
def test_a_compiled_loss_that_is_a_sum_is_refused(learner_of: MakeLearner, replicas: int, batch: int) -> None:
    loss = keras.losses.BinaryCrossentropy(reduction="sum")
    found = _findings(learner_of, lambda: mlp(loss=loss), replicas=replicas, batch=batch)
    assert found[1].holds is False
    assert "the loss is a sum over rows" in found[1].detail


class Demanding(Stepping):
    """Raises where no row is present."""

    def reduced(self, rows: Any, weight: Any) -> Any:
        tf.debugging.assert_positive(tf.reduce_sum(weight), message="a batch has to have a row")
        return super().reduced(rows, weight)


def test_a_step_that_raises_in_the_proof_is_told_with_its_line_and_reason(learner_of: MakeLearner) -> None:
    with pytest.raises(ModelError) as raised:
        examine(learner_of(lambda: mlp(model=Demanding)))
    assert re.fullmatch(
        r"model\.build: it fails on the rows of the proof: InvalidArgumentError \([^()]*; test_proof\.py, line \d+\): "
        r"a batch has to have a row\.",
        str(raised.value),
    )


def test_a_sum_is_refused_though_the_step_needs_whole_batches(learner_of: MakeLearner) -> None:
    class Folding(Summing):
        def reduced(self, rows: Any, weight: Any) -> Any:
            return tf.reduce_sum(tf.reshape(rows, [-1, BATCH]))

    found = _findings(learner_of, lambda: mlp(model=Folding))
    assert [finding.holds for finding in found] == [True, False]
    assert "the loss is a sum over rows" in found[1].detail


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        # What those below do less of.
        pytest.param(Stepping, marks=pytest.mark.nightly),
        ByHand,
        pytest.param(Clipping, marks=pytest.mark.nightly),
        ClippingALittle,
        ClippingWhatIsRegularised,
        pytest.param(ClippingEach, marks=pytest.mark.nightly),
        ClippingValues,
        lambda *layers: Adversaries(*layers).build_second(),
    ],
)
def test_an_honest_train_step_passes(learner_of: MakeLearner, model: Any) -> None:
    assert [finding.holds for finding in _findings(learner_of, lambda: mlp(model=model))] == [True, True]


def test_an_embedding_that_is_clipped_decayed_and_regularised_passes(learner_of: MakeLearner) -> None:
    schema = Schema(
        features=(Field(name="x", source="x", dtype="int32"),), labels=(Field(name="y", source="y", dtype="float32"),)
    )
    assert [finding.holds for finding in _findings(learner_of, embedding, schema=schema)] == [True, True]


def test_a_model_in_bfloat16_passes_on_two_replicas(learner_of: MakeLearner) -> None:
    assert [finding.holds for finding in _findings(learner_of, coarse, replicas=2)] == [True] * 3


def test_a_step_that_is_random_by_itself_cannot_be_examined(learner_of: MakeLearner) -> None:
    (found,) = _findings(learner_of, lambda: mlp(model=Randomly))
    assert found.holds is None
    assert "seed generators" in found.detail


def test_a_gradient_that_grows_with_the_replicas_is_refused_though_adam_hides_it(learner_of: MakeLearner) -> None:
    class Local(Stepping):
        def reduced(self, rows: Any, weight: Any) -> Any:
            return tf.reduce_mean(rows)

    found = _findings(learner_of, lambda: mlp(model=Local), replicas=2)
    assert [finding.holds for finding in found] == [True, True, False]
    assert "is 2 times as large on 2 replicas" in found[2].detail


def test_a_metric_that_counts_rows_without_their_weights_is_named(learner_of: MakeLearner) -> None:
    found = _findings(learner_of, lambda: mlp(metrics=["accuracy", "r2_score", Rows()]))
    assert found[0].holds is False
    assert found[0].detail.startswith("metric rows counts a batch without any records")


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda: keras.layers.Dense(4, name="active", activity_regularizer="l2"), "layer active has an activity_reg"),
        (Adding, "a layer calls add_loss with one number"),
    ],
)
def test_a_loss_of_activations_is_named_with_a_way_out(learner_of: MakeLearner, layer: Any, words: str) -> None:
    found = _findings(learner_of, lambda: mlp(layer()))
    assert found[0].holds is False
    assert found[0].detail.startswith(words)


def test_a_train_step_that_ignores_the_weights_is_refused(learner_of: MakeLearner) -> None:
    found = _findings(learner_of, lambda: mlp(model=Deaf))
    assert found[0].holds is False
    assert "sample_weight" in found[0].detail


def test_a_metric_that_counts_absent_rows_is_named(learner_of: MakeLearner) -> None:
    found = _findings(learner_of, lambda: mlp(metrics=["accuracy", Sum()]))
    assert found[0].holds is False
    assert found[0].detail == (
        "metric sum counts absent rows: have its update_state multiply by sample_weight whatever it adds up"
    )


@pytest.mark.parametrize("how", ["metrics", "weighted_metrics"])
def test_a_metric_that_relies_on_weights_is_always_given_some(learner_of: MakeLearner, how: str) -> None:
    def build() -> Any:
        model = mlp()
        model.compile(optimizer="sgd", loss="mse", **{how: [Weighing()]})
        return model

    assert [finding.holds for finding in _findings(learner_of, build)] == [True, True]


def test_the_proof_computes_no_batch_twice(learner_of: MakeLearner, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, rows = learner_of(mlp), list[int]()
    call, record = TrainingCall.__call__, TrainingCall.record

    def counted(run: Any) -> Any:
        def counting(self: Any, block: Any, **kwargs: Any) -> Any:
            rows.append(block.weights.shape[1])
            return run(self, block, **kwargs)

        return counting

    monkeypatch.setattr(TrainingCall, "__call__", counted(call))
    monkeypatch.setattr(TrainingCall, "record", counted(record))
    assert [finding.holds for finding in ModelProof(learner).findings()] == [True, True]
    # Four calls (all rows, none, absent ones filled in two ways), and as records: all rows twice, none, two halves,
    # absent ones filled in two ways, a quarter's rows four times over, all in another order; and a quarter, with and
    # without its rows.
    assert sum(rows) == (4 + 9 + 2 * 0.25) * BATCH


def test_what_reaches_the_optimizers_is_recorded_without_metrics(learner_of: MakeLearner) -> None:
    learner = learner_of(lambda: mlp(metrics=["accuracy", "auc"]))
    graph = learner.call.record(learner.rows_of(learner.probe())).graph
    metrics = {id(copy) for variable in learner.call.metrics.variables for copy in copies(variable)}
    counted = [variable.name for variable in graph.variables if id(variable) in metrics]
    assert learner.learn(block(1)).result.states[0].sum() > 0
    assert counted == []
