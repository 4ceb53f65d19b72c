"""What does an ad cost at this hour? Raw records go in: hashing and embedding are layers of the model."""

import keras


def build_model(buckets: int = 10_000, learning_rate: float = 0.001) -> keras.Model:
    """Build and compile the model; its inputs bear the names of the features."""
    ad = keras.Input((), name="ad", dtype="string")
    hour = keras.Input((), name="hour", dtype="int32")
    bucket = keras.layers.Hashing(buckets, name="ad_bucket")(ad)
    parts = [
        keras.layers.Embedding(buckets, 8, name="ad_embedding")(bucket),
        keras.layers.Embedding(24, 4, name="hour_embedding")(keras.ops.mod(hour, 24)),
    ]
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()(parts))
    price = keras.layers.Dense(1, activation="softplus", name="price")(hidden)

    model = keras.Model({"ad": ad, "hour": hour}, price)
    # Few ads are very expensive: Huber's loss lets them pull no harder than others.
    model.compile(optimizer=keras.optimizers.Adam(learning_rate), loss=keras.losses.Huber(), metrics=["mae"])
    return model
