"""A model with all that a signature may take: text, lists of varying length, listed texts, a table in `preprocess`."""

import hashlib
from pathlib import Path

import numpy as np

from millrace.app.settings import Loaded, load
from millrace.training.model.setup.model_file import ModelFile
from millrace.training.model.setup.model_file import load as load_model
from millrace.training.model.variables import model_variables
from tests.app import checkpoint_history

CONFIG = """
name: clicks
kafka: {bootstrap_servers: [127.0.0.1:1], topics: [clicks]}
records:
  features:
    price: float32
    ad: string
    color: {dtype: int32, one_of: [red, green, blue]}
    seen: {dtype: float32, shape: [4], pad: -1.0, length: seen_count}
    tags: {dtype: string, shape: [5], ragged: true}
  label: {kind: {dtype: int32, one_of: [cat, dog, cow]}}
model: {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
export: {path: ./exports, keep: 2}
"""
MODEL = '''
import keras
import tensorflow as tf

RATES = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["1", "2"], [1.0, 2.0]), 0.5)


def preprocess(features, label, weight):
    return {**features, "price": tf.math.log1p(features["price"]) * RATES.lookup(features["ad"])}, label, weight


class Bag(keras.layers.Layer):
    """The sum of the embeddings of a list of texts."""

    def build(self, _shape):
        self.table = self.add_weight(shape=(16, 3), name="table", initializer="uniform")

    def call(self, texts):
        return tf.reduce_sum(tf.gather(tf.convert_to_tensor(self.table), tf.strings.to_hash_bucket_fast(texts, 16)), 1)

    def compute_output_spec(self, _texts):
        return keras.KerasTensor((None, 3))


def build_model():
    price, count = keras.Input((), name="price"), keras.Input((), name="seen_count", dtype="int32")
    ad, color = keras.Input((), name="ad", dtype="string"), keras.Input((), name="color", dtype="int32")
    seen = keras.Input((4,), name="seen")
    tags = keras.Input((None,), name="tags", dtype="string", ragged=True)
    column = keras.layers.Reshape((1,))
    known = keras.layers.StringLookup(vocabulary=["0", "1", "x"])(ad)
    parts = [column(price), column(keras.ops.cast(count, "float32")), keras.layers.Embedding(5, 2)(known), seen,
             keras.layers.Embedding(50, 3)(keras.layers.Hashing(50)(ad)), keras.layers.Embedding(3, 2)(color),
             Bag()(tags)]
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(8, "relu")(keras.layers.Concatenate()(parts)))
    kind = keras.layers.Dense(3, activation="softmax")(hidden)
    inputs = {"price": price, "seen_count": count, "ad": ad, "color": color, "seen": seen, "tags": tags}
    model = keras.Model(inputs, kind)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model
'''


def project(path: Path, config: str = CONFIG, model: str = MODEL, saves: int = 2) -> Loaded:
    """Write config and model, publish checkpoints of it, and return the settings."""
    (path / "clicks.yaml").write_text(config)
    file = path / "model.py"
    file.write_text(model)
    built = load_model(ModelFile(path=file, function="build_model")).build()
    weights = {key: np.asarray(variable.value) for key, variable in model_variables(built).items()}
    provenance = {**checkpoint_history.PROVENANCE, "model_sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    before, checkpoint_history.PROVENANCE = checkpoint_history.PROVENANCE, provenance
    try:
        checkpoint_history.publish_history(checkpoint_history.folder_in(path), saves, weights)
    finally:
        checkpoint_history.PROVENANCE = before
    return load(path / "clicks.yaml")
