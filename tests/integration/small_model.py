"""The text of a small model file, for a trainer of one number."""

MODEL = """\
import keras


def build_model():
    x = keras.Input((1,), name="x")
    model = keras.Model(x, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile(optimizer="sgd", loss="binary_crossentropy", metrics=["accuracy"])
    return model
"""
