"""Is the card stolen? A payment is judged by the last twenty of its card: a thief pays fast, and everywhere."""

from typing import Any

import keras

LENGTH = 20


def preprocess(features: dict[str, Any], label: Any, weight: Any) -> tuple[dict[str, Any], Any, Any]:
    """Leave the card out: the model judges what it paid, not which one it is."""
    return {name: column for name, column in features.items() if name != "card"}, label, weight


def build_model(learning_rate: float = 0.003) -> keras.Model:
    """Build and compile the model; its inputs bear the names of the features, `known` and `gaps` those of windows."""
    amount = keras.Input((LENGTH,), name="amount")
    merchant = keras.Input((LENGTH,), name="merchant", dtype="string")
    gaps = keras.Input((LENGTH,), name="gaps")
    known = keras.Input((), name="known", dtype="int32")

    place = keras.layers.Embedding(1000, 8)(keras.layers.Hashing(1000)(merchant))
    numbers = [keras.ops.log1p(amount), keras.ops.log1p(keras.ops.relu(gaps))]
    steps = keras.layers.Concatenate()([place, keras.ops.stack(numbers, axis=-1)])
    # What lies in front of the first payment that is known is filling.
    is_there = keras.ops.greater_equal(keras.ops.arange(LENGTH), LENGTH - known[:, None])
    hidden = keras.layers.GRU(32)(steps, mask=is_there)
    fraud = keras.layers.Dense(1, activation="sigmoid", name="fraud")(hidden)

    model = keras.Model({"amount": amount, "merchant": merchant, "gaps": gaps, "known": known}, fraud)
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss="binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
    )
    return model
