"""A model whose weights stay as they were built, so that its answer is a function of the record; it adds up ids."""

import keras

from tests.faults.harness.model import WIDTH, Counting, Ids


def build_model() -> keras.Model:
    """Build and compile it."""
    x = keras.Input((WIDTH,), name="x")
    curse = keras.Input((), name="curse")
    counted = {
        "id": keras.Input((), name="id", dtype="int64"),
        "partition": keras.Input((), name="partition", dtype="int32"),
    }
    ids = Ids(name="ids")
    answer = keras.layers.Dense(1, activation="sigmoid", kernel_initializer="ones")
    model = Counting({"x": x, "curse": curse, **counted}, answer(ids(x * keras.ops.exp(curse)[:, None])))
    model.ids = ids
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="binary_crossentropy", metrics=["accuracy"])
    return model
