"""Records without a label: `y` is `x`, as Keras' autoencoders have it, or the model brings its loss along."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.app.service.model_setup import examine
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.record_sample import RecordSample
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.proof.function_proofs import row_by_row
from millrace.training.model.proof.proof import ModelProof
from millrace.training.model.setup.model_file import ModelFile, load
from millrace.training.model.setup.strategy import DeviceOptions
from tests.training.conftest import BATCH, FEATURES, SCHEMA, MakeLearner, block, largest_difference, state_of

pytestmark = pytest.mark.tensorflow
ROOT = Path(__file__).parents[3]
NO_LABELS = replace(SCHEMA, labels=())
TWO = Schema(features=(Field(name="a", source="a", dtype="float32"), Field(name="b", source="b", dtype="float32")))


def autoencoder() -> Any:
    inputs = keras.Input((FEATURES,), name="x")
    model = keras.Model(inputs, keras.layers.Dense(FEATURES)(keras.layers.Dense(3, activation="tanh")(inputs)))
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    return model


def by_name() -> Any:
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    hidden = keras.layers.Dense(2)(keras.layers.Concatenate()([a, b]))
    model = keras.Model({"a": a, "b": b}, {name: keras.layers.Dense(1)(hidden) for name in ("a", "b")})
    model.compile(optimizer="adam", loss="mse")
    return model


class Distance(keras.layers.Layer):
    """Adds a loss of one value a record: the squared distance to a centre that is learnt."""

    def build(self, shape: Any) -> None:
        self.centre = self.add_weight(shape=(shape[-1],), name="centre")

    def call(self, x: Any) -> Any:
        distances = keras.ops.sum(keras.ops.square(x - self.centre), axis=-1)
        self.add_loss(distances)
        return distances


def with_a_loss_of_its_own() -> Any:
    inputs = keras.Input((FEATURES,), name="x")
    model = keras.Model(inputs, Distance()(inputs))
    model.compile(optimizer=keras.optimizers.SGD(0.05))
    return model


def without_labels(rows: Rows) -> Rows:
    return rows._replace(labels={})


@pytest.mark.parametrize(
    ("build", "schema", "replicas"),
    [
        pytest.param(autoencoder, NO_LABELS, 1, id="1-bare"),
        pytest.param(by_name, TWO, 2, id="2-by-name"),
        pytest.param(with_a_loss_of_its_own, NO_LABELS, 2, id="2-add_loss"),
        # Each model has one number of replicas above, and each number a model.
        pytest.param(autoencoder, NO_LABELS, 2, id="2-bare", marks=pytest.mark.nightly),
        pytest.param(by_name, TWO, 1, id="1-by-name", marks=pytest.mark.nightly),
        pytest.param(with_a_loss_of_its_own, NO_LABELS, 1, id="1-add_loss", marks=pytest.mark.nightly),
    ],
)
def test_a_model_without_a_label_builds_traces_and_is_proven(
    learner_of: MakeLearner, build: Callable[[], Any], schema: Schema, replicas: int
) -> None:
    learner = learner_of(build, schema=schema, replicas=replicas)
    learner.trace(learner.rows_of(learner.probe()), deterministic=False)
    assert [finding.holds for finding in ModelProof(learner).findings()] == [True] * (1 + replicas)


def test_an_autoencoder_learns_what_plain_keras_learns(learner_of: MakeLearner) -> None:
    learner, rows = learner_of(autoencoder, schema=NO_LABELS), without_labels(block(3))
    keras.utils.set_random_seed(7)
    plain = autoencoder()
    plain.jit_compile = False
    learner.learn(rows)
    for batch in rows.features["x"]:
        plain.train_on_batch(batch, batch)
    for mine, theirs in zip(learner.model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_added_loss_of_one_value_a_record_pulls_with_one_over_b(learner_of: MakeLearner, replicas: int) -> None:
    learner = learner_of(with_a_loss_of_its_own, schema=NO_LABELS, replicas=replicas)
    centre = learner.model.trainable_variables[0]
    centre.assign(np.zeros(FEATURES))
    rows = without_labels(block(1, rows=5))
    learner.learn(rows)
    x = rows.features["x"].numpy()[0, :5]
    np.testing.assert_allclose(centre.numpy(), 0.05 * 2 * x.sum(axis=0) / BATCH, rtol=1e-5)


def test_a_poisoned_record_without_a_label_is_found(learner_of: MakeLearner) -> None:
    learner = learner_of(autoencoder, schema=NO_LABELS)
    rows = without_labels(block(1))
    x = rows.features["x"].numpy().copy()
    x[0, 4, 0] = np.nan
    assert learner.learn(rows._replace(features={"x": tf.constant(x)})).culprits.offsets == ((0, 4),)
    assert all(np.isfinite(value).all() for value in state_of(learner).values())


def test_preprocess_gets_none_and_may_return_none() -> None:
    seen: list[Any] = []

    def preprocess(features: Any, label: Any, weight: Any) -> Any:
        seen.append(label)
        return {"x": features["x"] * 2.0}, label, weight

    devices = DeviceOptions(replicas=1)
    learner = Learner(autoencoder, preprocess, LearnerOptions(schema=NO_LABELS, batch_size=BATCH, devices=devices))
    assert set(seen) == {None}
    assert learner.rows_of(learner.probe()).labels == {}
    assert [finding.holds for finding in row_by_row(learner)] == [True]


def test_a_label_that_preprocess_drops_leaves_y_to_be_x() -> None:
    def preprocess(features: Any, label: Any, weight: Any) -> Any:
        assert label is not None
        return features, None, weight

    devices = DeviceOptions(replicas=1)
    options = LearnerOptions(schema=SCHEMA, batch_size=BATCH, devices=devices, seed=7)
    dropped = Learner(autoencoder, preprocess, options)
    plain = Learner(autoencoder, None, replace(options, schema=NO_LABELS))
    for learner in (dropped, plain):
        learner.learn(without_labels(block(2)))
    assert largest_difference(state_of(dropped), state_of(plain)) == 0


def test_the_recipe_for_lines_of_text_makes_its_label_and_passes_the_proof(tmp_path: Path) -> None:
    """The block of docs/model.md, as it stands there."""
    section = (ROOT / "docs" / "model.md").read_text().partition("### Lines of text, as in logfmt")[2]
    (tmp_path / "model.py").write_text(section.partition("```python\n")[2].partition("```")[0])
    loaded = load(ModelFile(path=tmp_path / "model.py", function="build_model"))
    lines = [f"ts=12:0{n % 10} path=/p{n % 3} ms={n}.5 status={200 + n % 2 * 300}".encode() for n in range(0, 224, 7)]
    assert loaded.preprocess is not None
    features, label, _ = loaded.preprocess({"line": tf.constant(lines[:20])}, None, None)
    assert features["path"].numpy().tolist() == [f"/p{n % 3}".encode() for n in range(0, 140, 7)]
    assert label.numpy().tolist() == [float(n >= 100) for n in range(0, 140, 7)]
    schema = Schema(features=(Field(name="line", source="$value", dtype="string"),), labels=())
    rows = RecordSample(features={"line": np.array(lines, object)}, labels={}, rows=len(lines))
    options = LearnerOptions(schema=schema, batch_size=8, devices=DeviceOptions(replicas=1), samples=(lambda: rows,))
    findings = examine(Learner(loaded.build, loaded.preprocess, options))
    assert [finding.detail for finding in findings if not finding.holds] == []
