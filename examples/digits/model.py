"""Which digit is it? A small convolutional network; bytes of grey go in, and are scaled inside the model."""

from functools import cache

import keras
import tensorflow as tf


@cache
def moved() -> keras.Layer:
    """Make the layers on their first use, because importing this file must not compute anything."""
    return keras.Sequential(
        [
            keras.layers.RandomTranslation(0.05, 0.05, fill_mode="nearest"),
            keras.layers.RandomRotation(0.02, fill_mode="nearest"),
        ]
    )


def augment(
    features: dict[str, tf.Tensor], label: tf.Tensor, weight: tf.Tensor
) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
    """Learn each image a little shifted and turned; it is scored as it came."""
    image = moved()(features["image"][..., None], training=True)[..., 0]
    return {"image": tf.cast(tf.round(image), tf.uint8)}, label, weight


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
