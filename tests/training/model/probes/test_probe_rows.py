"""Probe rows: real records where there are any, without those on which the user's code raises."""

import base64
import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.app.service.model_setup import examine
from millrace.consumers.errors import ConfigError
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.record_sample import RecordSample
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.proof.proof import Finding
from millrace.training.model.setup.strategy import DeviceOptions
from tests.training.conftest import mlp

pytestmark = pytest.mark.tensorflow
SIZE = 8
CANARY = b"canary-4711"


def png(number: int) -> bytes:
    pixels = np.full((2, 2, 1), number % 256, np.uint8)
    return base64.urlsafe_b64encode(tf.io.encode_png(pixels).numpy()).rstrip(b"=")


def from_png(texts: Any) -> Any:
    images = tf.map_fn(
        lambda one: tf.io.decode_png(one, channels=1), tf.io.decode_base64(texts), fn_output_signature=tf.uint8
    )
    return tf.cast(tf.ensure_shape(images, [None, 2, 2, 1])[:, 0, 0, 0], tf.float32) / 255.0


def iso_time(number: int) -> bytes:
    return f"2026-11-{number % 28 + 1:02}T{number % 24:02}:00:00Z".encode()


def from_iso_time(texts: Any) -> Any:
    return tf.strings.to_number(tf.strings.substr(texts, 11, 2)) / 24.0


def in_json(number: int) -> bytes:
    return json.dumps({"user": "a", "price": number / 7}).encode()


def from_json(texts: Any) -> Any:
    after = tf.strings.split(texts, '"price": ').to_tensor()[:, 1]
    return tf.strings.to_number(tf.strings.regex_replace(after, r"\}.*", ""))


Parser = Callable[[Any], Any]
PARSERS = {"png": (png, from_png), "iso time": (iso_time, from_iso_time), "json": (in_json, from_json)}


def sample(texts: list[bytes]) -> RecordSample:
    column = np.array(texts, object)
    return RecordSample(
        features={"text": column}, labels={"y": np.arange(len(texts), dtype=np.float32) % 2}, rows=len(texts)
    )


def build() -> Any:
    value = keras.Input((), name="value")
    hidden = keras.layers.Dense(4, activation="relu")(keras.layers.Reshape((1,))(value))
    model = keras.Model({"value": value}, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(optimizer="sgd", loss="binary_crossentropy", metrics=["accuracy"])
    return model


def learner_on(
    parse: Parser, *samples: RecordSample | None, examples: tuple[str, ...] | None = None, size: int = SIZE
) -> Learner:
    def preprocess(features: Any, label: Any, weight: Any) -> Any:
        return {"value": parse(features["text"])}, label, weight

    schema = Schema(
        features=(Field(name="text", source="text", dtype="string", example=examples),),
        labels=(Field(name="y", source="y", dtype="float32"),),
    )
    sources = tuple(lambda one=one: one for one in samples)
    options = LearnerOptions(schema=schema, batch_size=size, devices=DeviceOptions(replicas=1), seed=7, samples=sources)
    return Learner(build, preprocess, options)


@pytest.mark.slow
# The other parsers read the examples of a schema, below.
@pytest.mark.parametrize(
    "name", ["png", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("iso time", "json"))]
)
def test_a_preprocess_that_parses_text_is_proven_on_real_records(name: str) -> None:
    make, parse = PARSERS[name]
    learner = learner_on(parse, sample([make(number) for number in range(40)]))
    assert learner.probes.sample is not None
    learner.trace(learner.rows_of(learner.probe()), deterministic=False)
    assert [finding.holds for finding in examine(learner)].count(False) == 0
    assert learner.call(learner.rows_of(learner.probe())).finite.all()


@pytest.mark.parametrize("name", PARSERS)
def test_without_records_the_examples_of_the_schema_are_read(name: str) -> None:
    make, parse = PARSERS[name]
    examples = tuple(make(number).decode() for number in range(3))
    learner = learner_on(parse, None, examples=examples)
    assert learner.probes.sample is None
    assert {*learner.probe().features["text"].tolist()} == {text.encode() for text in examples}


@pytest.mark.parametrize("name", PARSERS)
def test_without_records_and_examples_one_line_says_what_to_give(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        learner_on(PARSERS[name][1], None)
    text = str(raised.value)
    assert "on made-up rows, and the topic holds no record to try it on" in text
    assert "give records.features.text.example a value that it can read" in text
    assert "test_probe_rows.py, line" in text


def test_records_that_raise_are_left_out_wherever_they_are() -> None:
    texts = [CANARY if number % 3 == 0 else iso_time(number) for number in range(60)]
    learner = learner_on(from_iso_time, sample(texts))
    assert learner.probes.sample is not None
    assert CANARY not in learner.probes.sample.features["text"].tolist()
    assert len(learner.probes.sample) >= SIZE


def test_the_next_sample_is_taken_where_the_first_does_not_parse() -> None:
    old, new = sample([CANARY] * 30), sample([iso_time(number) for number in range(30)])
    learner = learner_on(from_iso_time, old, new)
    assert learner.probes.sample is not None
    assert {*learner.probes.sample.features["text"].tolist()} <= {*new.features["text"].tolist()}


def test_records_that_all_raise_are_counted_and_never_quoted() -> None:
    with pytest.raises(ConfigError) as raised:
        learner_on(from_iso_time, sample([CANARY] * 30))
    assert "on each of 30 records of the topic: correct it" in str(raised.value)
    assert CANARY.decode() not in str(raised.value)


def test_what_an_assertion_states_is_repeated_and_the_record_is_not() -> None:
    def strict(texts: Any) -> Any:
        tf.debugging.assert_equal(tf.strings.length(texts), 3, message="a text has three letters")
        return tf.cast(tf.strings.length(texts), tf.float32)

    with pytest.raises(ConfigError) as raised:
        learner_on(strict, sample([CANARY] * 30), examples=("abcd",))
    assert "): a text has three letters, on each of 30 records of the topic" in str(raised.value)
    assert CANARY.decode() not in str(raised.value)


def test_two_real_records_do_where_made_up_ones_cannot_be_read() -> None:
    learner = learner_on(from_iso_time, sample([iso_time(1), CANARY, iso_time(2)]))
    assert {*learner.probe().features["text"].tolist()} == {iso_time(1), iso_time(2)}


def test_two_real_records_give_way_to_made_up_ones_that_can_be_read() -> None:
    learner = learner_on(lambda texts: tf.cast(tf.strings.length(texts), tf.float32), sample([b"a", b"b"]))
    assert learner.probes.sample is None


def test_a_fault_of_the_code_is_reported_as_such_and_not_blamed_on_rows() -> None:
    def wrong(texts: Any) -> Any:
        return texts["no such field"]

    with pytest.raises(ConfigError, match=r"preprocess: .* on rows of the schema"):
        learner_on(wrong, sample([iso_time(number) for number in range(30)]))


def test_a_record_that_the_model_cannot_look_up_is_left_out_too() -> None:
    def lookup() -> Any:
        code = keras.Input((), name="x", dtype="int32")
        model = keras.Model(code, keras.layers.Dense(1)(keras.layers.Embedding(10, 2)(code)))
        model.compile(optimizer="sgd", loss="mse")
        return model

    schema = Schema(
        features=(Field(name="x", source="x", dtype="int32"),), labels=(Field(name="y", source="y", dtype="float32"),)
    )
    codes = np.array([*range(10), 77, *range(10)], np.int32)
    rows = RecordSample(features={"x": codes}, labels={"y": np.ones(21, np.float32)}, rows=21)
    options = LearnerOptions(schema=schema, batch_size=16, devices=DeviceOptions(replicas=1), samples=(lambda: rows,))
    learner = Learner(lookup, None, options)
    assert learner.probes.sample is not None
    assert 77 not in learner.probe().features["x"]


def test_real_records_leave_the_first_weights_as_they_are() -> None:
    """A start that has read a sample and one that has not begin with the same bits."""
    schema = Schema(
        features=(Field(name="x", source="x", dtype="float32", shape=(6,)),),
        labels=(Field(name="y", source="y", dtype="float32"),),
    )
    random = np.random.default_rng(0)
    rows = RecordSample(
        features={"x": random.normal(size=(30, 6)).astype(np.float32)},
        labels={"y": np.ones(30, np.float32)},
        rows=30,
    )

    def weights(*samples: RecordSample) -> list[Any]:
        sources = tuple(lambda one=one: one for one in samples)
        options = LearnerOptions(
            schema=schema, batch_size=12, devices=DeviceOptions(replicas=1), seed=3, samples=sources
        )
        learner = Learner(lambda: mlp(keras.layers.Dropout(0.5)), None, options)
        examine(learner)
        return [np.asarray(variable) for variable in learner.state]

    for one, other in zip(weights(), weights(rows), strict=True):
        np.testing.assert_array_equal(one, other)


def test_features_of_millions_do_not_keep_a_sound_model_from_starting() -> None:
    schema = Schema(
        features=(Field(name="x", source="x", dtype="float32", shape=(6,)),),
        labels=(Field(name="y", source="y", dtype="float32"),),
    )
    random = np.random.default_rng(0)
    rows = RecordSample(
        features={"x": (random.normal(size=(64, 6)) * 1e7).astype(np.float32)},
        labels={"y": (random.normal(size=64) * 1e8).astype(np.float32)},
        rows=64,
    )
    options = LearnerOptions(
        schema=schema, batch_size=32, devices=DeviceOptions(replicas=1), seed=3, samples=(lambda: rows,)
    )
    findings = examine(Learner(lambda: mlp(loss="mse", metrics=()), None, options))
    assert not [finding for finding in findings if finding.holds is False]


class MeanOfAll(keras.layers.Layer):
    """Mixes rows if one is large, as made-up rows never are."""

    def call(self, x: Any) -> Any:
        return x + keras.ops.where(keras.ops.max(x) > 100.0, keras.ops.mean(x, axis=0), 0.0)


class MeanOfLarge(keras.layers.Layer):
    """Mixes rows in large numbers only."""

    def call(self, x: Any) -> Any:
        return keras.ops.where(keras.ops.abs(x) > 3.0, keras.ops.mean(x, axis=0), x)


class ByTheLargest(keras.layers.Layer):
    """Scales all rows by the largest number of the batch."""

    def call(self, x: Any) -> Any:
        return x / keras.ops.maximum(1.0, keras.ops.max(keras.ops.abs(x)))


def _findings_on(layer: Any, x: Any, y: Any = 1.0, batch: int = 16, dropout: float = 0.2) -> list[Finding]:
    """Examine a model with this layer on these records, or on made-up rows where there are none."""

    def build() -> Any:
        inputs = keras.Input((6,), name="x")
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(dropout)(layer(inputs))))
        model.compile(optimizer="sgd", loss="mse")
        return model

    schema = Schema(
        features=(Field(name="x", source="x", dtype="float32", shape=(6,)),),
        labels=(Field(name="y", source="y", dtype="float32"),),
    )
    samples: tuple[Any, ...] = ()
    if x is not None:
        labels = np.broadcast_to(np.float32(y), len(x))
        rows = RecordSample(features={"x": x.astype(np.float32)}, labels={"y": labels}, rows=len(x))
        samples = (lambda: rows,)
    options = LearnerOptions(schema=schema, batch_size=batch, devices=DeviceOptions(replicas=1), samples=samples)
    return examine(Learner(build, None, options))


def _one_outlier() -> Any:
    x = np.random.default_rng(0).normal(size=(256, 6))
    x[200] *= 20
    return x


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (MeanOfAll, np.random.default_rng(0).uniform(100, 200, (32, 6))),
        (MeanOfLarge, _one_outlier()),
        (MeanOfLarge, None),
        (ByTheLargest, _one_outlier()),
        (ByTheLargest, None),
    ],
    ids=["mean-if-large", "mean-of-large", "mean-of-large-made-up", "by-largest", "by-largest-made-up"],
)
def test_a_layer_that_mixes_rows_on_some_values_only_is_refused(layer: Any, x: Any) -> None:
    found = {finding.claim: finding for finding in _findings_on(layer(), x)}["absent rows change nothing"]
    assert found.holds is False
    assert "mixes the rows of a batch" in found.detail


@pytest.mark.parametrize("x", [_one_outlier() * 1e6, None], ids=["outlier", "made-up"])
def test_a_layer_that_leaves_rows_apart_passes_on_extreme_records(x: Any) -> None:
    findings = _findings_on(keras.layers.LayerNormalization(), x)
    assert [finding.holds for finding in findings] == [True, True]


def test_what_rounding_hides_on_real_records_is_doubted() -> None:
    # Errors of 1e14 that cancel to the last digits, in each half too.
    y = np.random.default_rng(0).normal(size=32) * 1e14
    for half in (0, 1):
        y[half::2] -= y[half::2].mean()
    found = _findings_on(keras.layers.Identity(), np.full((32, 6), 1e6), y, batch=32, dropout=0.0)[1]
    assert found.claim == "a present row pulls with 1/B of the global batch"
    assert found.holds is None
    assert "rounding hides it, and it holds on made-up rows: scale the features" in found.detail
