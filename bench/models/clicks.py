"""A model of texts by vocabulary and by hash, listed texts, lists of varying length and a number, with `preprocess`."""

from typing import Any

import keras
import tensorflow as tf

RATES = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a1", "a2"], [1.0, 2.0]), 0.5)
ADS = [f"a{number}" for number in range(20)]


def preprocess(features: dict[str, Any], label: Any, weight: Any) -> tuple[dict[str, Any], Any, Any]:
    """Take the price's logarithm, weighted by its ad."""
    price = tf.math.log1p(features["price"]) * RATES.lookup(features["ad"])
    return {**features, "price": price}, label, weight


@keras.saving.register_keras_serializable("bench")
class TagBag(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """The sum of the embeddings of a list of texts."""

    def build(self, _shape: Any) -> None:
        """Make the table."""
        self.table = self.add_weight(shape=(64, 8), name="table", initializer="uniform")

    def call(self, texts: Any) -> Any:
        """Look each text up by its hash."""
        places = tf.strings.to_hash_bucket_fast(texts, 64)
        return tf.reduce_sum(tf.gather(tf.convert_to_tensor(self.table), places), axis=1)

    def compute_output_spec(self, _texts: Any) -> Any:
        """Return a row of eight."""
        return keras.KerasTensor((None, 8))


def build_model() -> keras.Model:
    """Build and compile the model."""
    price, count = keras.Input((), name="price"), keras.Input((), name="seen_count", dtype="int32")
    ad, color = keras.Input((), name="ad", dtype="string"), keras.Input((), name="color", dtype="int32")
    seen = keras.Input((4,), name="seen")
    tags = keras.Input((None,), name="tags", dtype="string", ragged=True)
    column = keras.layers.Reshape((1,))
    parts = [
        column(price),
        column(keras.ops.cast(count, "float32")),
        seen,
        keras.layers.Embedding(len(ADS) + 1, 4)(keras.layers.StringLookup(vocabulary=ADS)(ad)),
        keras.layers.Embedding(50, 4)(keras.layers.Hashing(50)(ad)),
        keras.layers.Embedding(3, 2)(color),
        TagBag()(tags),
    ]
    hidden = keras.layers.Dropout(0.2)(keras.layers.Dense(32, "relu")(keras.layers.Concatenate()(parts)))
    inputs = {"price": price, "seen_count": count, "ad": ad, "color": color, "seen": seen, "tags": tags}
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
