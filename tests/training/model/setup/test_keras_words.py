"""What Keras offers and a stream does not take: each is answered by name, with what to write instead."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.pipelines.schema import Field, Schema
from millrace.training.errors import ModelError, gist
from millrace.training.model.setup.build_errors import without_effect, without_mean
from tests.training.conftest import FEATURES, SCHEMA, MakeLearner, mlp

pytestmark = pytest.mark.tensorflow
Y = (Field(name="y", source="y", dtype="float32"),)
TEXT = Schema(features=(Field(name="x", source="x", dtype="string"),), labels=Y)
RAGGED = Schema(
    features=(Field(name="x", source="x", dtype="int64", shape=(4,), pad=0, ragged=True),),
    labels=Y,
)


def _compiled(inputs: Any, hidden: Any) -> Any:
    model = keras.Model({"x": inputs}, keras.layers.Dense(1)(hidden))
    model.compile(optimizer="sgd", loss="mse")
    return model


def unadapted() -> Any:
    inputs = keras.Input((), name="x", dtype="string")
    numbers = keras.layers.TextVectorization(100, output_sequence_length=3, name="words")(inputs)
    return _compiled(inputs, keras.layers.Flatten()(keras.layers.Embedding(100, 2)(numbers)))


def lookup(**given: Any) -> Any:
    inputs = keras.Input((), name="x", dtype="string")
    numbers = keras.layers.StringLookup(name="ads", **given)
    if not given:
        numbers.adapt(["a", "b"])
    return _compiled(inputs, keras.layers.Embedding(100, 2)(numbers(inputs)))


def normalized(*, adapted: bool) -> Any:
    inputs = keras.Input((FEATURES,), name="x")
    scaled = keras.layers.Normalization(name="scaled")
    if adapted:
        scaled.adapt(np.array([[1.0] * FEATURES, [2.0] * FEATURES], np.float32))
    return _compiled(inputs, scaled(inputs))


def recurrent() -> Any:
    inputs = keras.Input((None,), name="x", dtype="int64", ragged=True)
    return _compiled(inputs, keras.layers.LSTM(3, name="memory")(keras.layers.Embedding(10, 2)(inputs)))


@pytest.mark.parametrize(
    ("build", "schema", "words"),
    [
        (unadapted, TEXT, r"layer words \(TextVectorization\) has no vocabulary.*give it vocabulary="),
        (lambda: lookup(max_tokens=100), TEXT, r"layer ads \(StringLookup\) has no vocabulary.*give it vocabulary="),
        (recurrent, RAGGED, r"layer memory \(LSTM\) takes no ragged input: give the feature pad"),
    ],
)
def test_a_layer_that_cannot_take_the_stream_is_named(
    learner_of: MakeLearner, build: Callable[[], Any], schema: Schema, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        learner_of(build, schema=schema)


def test_a_layer_without_a_vocabulary_is_refused_before_tensorflow_says_so_by_row(
    learner_of: MakeLearner, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError, match="has no vocabulary"):
        learner_of(partial(lookup, max_tokens=100), schema=TEXT)
    assert "not initialized" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("build", "schema"), [(lookup, TEXT), (lambda: normalized(adapted=True), SCHEMA)], ids=["lookup", "normalization"]
)
def test_a_layer_that_build_model_adapts_is_taken(learner_of: MakeLearner, build: Any, schema: Schema) -> None:
    assert learner_of(build, schema=schema).model.built


def test_a_normalization_without_a_mean_is_taken_and_warned_of(learner_of: MakeLearner) -> None:
    (warning,) = without_mean(learner_of(lambda: normalized(adapted=False)).model)
    assert warning.startswith("layer scaled (Normalization) has no mean and variance, so it changes nothing")
    assert [*without_mean(learner_of(lambda: normalized(adapted=True)).model)] == []


def feature_space() -> Any:
    kinds = {"x": keras.utils.FeatureSpace.string_categorical(num_oov_indices=1), "price": "float_normalized"}
    space = keras.utils.FeatureSpace(features=kinds, output_mode="concat")
    rows = {"x": np.array(["a", "b", "a", "c"]), "price": np.arange(4, dtype=np.float32)}
    space.adapt(tf.data.Dataset.from_tensor_slices(rows))
    model = keras.Model(space.get_inputs(), keras.layers.Dense(1)(space.get_encoded_features()))
    model.compile(optimizer="sgd", loss="mse")
    return model


@pytest.mark.filterwarnings("error:The structure of")
def test_a_feature_space_learns_without_a_warning_of_its_inputs(learner_of: MakeLearner) -> None:
    features = (*TEXT.features, Field(name="price", source="price", dtype="float32"))
    learner = learner_of(feature_space, schema=Schema(features=features, labels=Y))
    assert learner.learn(learner.rows_of(learner.probe())).result.finite.all()


class Sometimes(keras.Model):
    """Updates in every second step, inside of a conditional."""

    def train_step(self, data: Any) -> Any:
        x, y, weight = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        if self.optimizer.iterations % 2 == 0:
            self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def test_an_update_inside_a_conditional_is_explained(learner_of: MakeLearner) -> None:
    learner = learner_of(lambda: mlp(model=Sometimes))
    with pytest.raises(RuntimeError) as raised:
        learner.trace(learner.rows_of(learner.probe()), deterministic=False)
    assert gist(raised.value).startswith("RuntimeError: train_step calls an optimizer's apply inside of tf.cond")


def test_options_without_effect_are_named() -> None:
    model = mlp()
    assert [*without_effect(model)] == []
    model.compile(optimizer="sgd", loss="mse", steps_per_execution=8, jit_compile=True)
    assert [sentence.split()[0] for sentence in without_effect(model)] == ["steps_per_execution=8", "jit_compile"]
    model.compile(optimizer="sgd", loss="mse", run_eagerly=True)
    assert [sentence.split()[0] for sentence in without_effect(model)] == ["run_eagerly"]


def test_shapes_that_do_not_fit_are_said_by_record() -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the words are Keras'
        keras.losses.BinaryCrossentropy()(tf.zeros(4), tf.zeros((4, 3)))
    assert gist(raised.value).endswith("(by record the label's shape is (), the prediction's (3,))")
    with pytest.raises(tf.errors.InvalidArgumentError) as other:
        keras.losses.BinaryCrossentropy()(tf.zeros((4, 3)), tf.zeros((4, 3)), sample_weight=tf.zeros(5))
    assert "by record" not in gist(other.value)
