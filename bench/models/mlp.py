"""The benchmark's model: an MLP 28-64-64-1 with Adam, accuracy and AUC. The frozen references build the same."""

import keras


def build_model(hidden: int = 64, learning_rate: float = 0.001) -> keras.Model:
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
