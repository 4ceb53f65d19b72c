"""A model of ten million parameters with Adam, so of 120 MB in a checkpoint: an MLP 28-3100-3100-1."""

import keras


def build_model(hidden: int = 3100, learning_rate: float = 0.0001) -> keras.Model:
    """Build and compile the model; its input bears the feature's name."""
    x = keras.Input((28,), name="x")
    first = keras.layers.Dense(hidden, activation="relu")(x)
    second = keras.layers.Dense(hidden, activation="relu")(first)
    model = keras.Model(x, keras.layers.Dense(1, activation="sigmoid")(second))
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model
