"""Which digit is it? A small convolutional network; bytes of grey go in, and are scaled inside the model."""

import keras


def build_model(learning_rate: float = 0.002) -> keras.Model:
    """Build and compile the model; its input bears the name of the feature."""
    image = keras.Input((20, 20), name="image", dtype="uint8")
    grey = keras.layers.Rescaling(1 / 255)(keras.layers.Reshape((20, 20, 1))(image))
    seen = keras.layers.Conv2D(16, 3, activation="relu", name="strokes")(grey)
    seen = keras.layers.MaxPooling2D()(seen)
    seen = keras.layers.Conv2D(32, 3, activation="relu", name="shapes")(seen)
    seen = keras.layers.MaxPooling2D()(seen)
    hidden = keras.layers.Dense(64, activation="relu")(keras.layers.Flatten()(seen))
    digit = keras.layers.Dense(10, activation="softmax", name="digit")(hidden)

    model = keras.Model({"image": image}, digit)
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
