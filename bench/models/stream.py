"""The model of the drifting streams: an MLP of 64 and 64 with Adam, on features scaled by constants.

There is no first pass over a stream, so the constants are what is known of the source: of each feature the middle and
the spread.
"""

import keras


def build_model(middles: list[float], spreads: list[float], classes: int, learning_rate: float = 0.001) -> keras.Model:
    """Build and compile the model; its input bears the feature's name."""
    x = keras.Input((len(middles),), name="x")
    scaled = (x - keras.ops.array([middles])) / keras.ops.array([spreads])
    first = keras.layers.Dense(64, activation="relu")(scaled)
    second = keras.layers.Dense(64, activation="relu")(first)
    model = keras.Model(x, keras.layers.Dense(classes, activation="softmax")(second))
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model
