"""The benchmark's model in Keras, for the peers that train it.

Keras scores a batch by its forward pass before the update: the accuracy is tested before it is learnt, at no cost.
"""

import keras
from stopwatch import FEATURES, HIDDEN


def build_model() -> keras.Model:
    """An MLP 28-64-64-1 with Adam, accuracy and AUC; everything else at its default."""
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.001),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model
