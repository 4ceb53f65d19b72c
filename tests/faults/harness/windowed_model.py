"""The model of `model.py` for sequences of a user's last records; it counts the newest of each as that does."""

import keras

from tests.faults.harness.model import WIDTH, Counting, Ids
from tests.faults.harness.shaped_model import augment

__all__ = ["LENGTH", "augment", "build_model"]
LENGTH = 6


def build_model() -> keras.Model:
    """Build and compile it."""
    print("model: building", flush=True)  # noqa: T201 - seen by whoever waits for this moment
    inputs = {
        "x": keras.Input((LENGTH, WIDTH), name="x"),
        "gaps": keras.Input((LENGTH,), name="gaps"),
        "known": keras.Input((), name="known", dtype="int32"),
        "user": keras.Input((), name="user", dtype="int64"),
        "curse": keras.Input((), name="curse"),
        "id": keras.Input((), name="id", dtype="int64"),
        "partition": keras.Input((), name="partition", dtype="int32"),
    }
    ids = Ids(name="ids")
    gaps = keras.ops.log1p(keras.ops.relu(inputs["gaps"]))
    steps = keras.layers.Concatenate()([inputs["x"], gaps[..., None]])
    hidden = keras.layers.GRU(8)(ids(steps)) * keras.ops.exp(inputs["curse"])[:, None]
    known = keras.ops.cast(inputs["known"], "float32")[:, None] / LENGTH
    hidden = keras.layers.Dropout(0.3)(keras.layers.Concatenate()([hidden, known]))
    model = Counting(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.ids = ids
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=["accuracy"])
    return model
