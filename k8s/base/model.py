"""Will it be clicked? Raw records go in: hashing and embedding are layers, so they are saved and served with it."""

import keras


def build_model(buckets: int = 10_000, learning_rate: float = 0.001) -> keras.Model:
    """Build and compile the model; its inputs bear the names of the features."""
    price = keras.Input((), name="price", dtype="float32")
    ad = keras.Input((), name="ad", dtype="string")
    hour = keras.Input((), name="hour", dtype="int32")

    # Any text finds a bucket and any number an hour, so no record can name a row that an embedding lacks.
    bucket = keras.layers.Hashing(buckets, name="ad_bucket")(ad)
    hour_of_day = keras.ops.mod(hour, 24)
    parts = [
        keras.layers.Reshape((1,))(keras.ops.log1p(keras.ops.relu(price))),
        keras.layers.Embedding(buckets, 8, name="ad_embedding")(bucket),
        keras.layers.Embedding(24, 4, name="hour_embedding")(hour_of_day),
    ]
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()(parts))
    clicked = keras.layers.Dense(1, activation="sigmoid", name="clicked")(hidden)

    model = keras.Model({"price": price, "ad": ad, "hour": hour}, clicked)
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model
