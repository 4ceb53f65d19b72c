"""Will a visitor buy? A small network, as plain Keras has it; edit it and see what a restart says."""

import keras


def build_model(learning_rate: float = 0.004) -> keras.Model:
    """Build and compile the model; its inputs bear the names of the features."""
    item = keras.Input((), name="item", dtype="string")
    price = keras.Input((), name="price", dtype="float32")
    discount = keras.Input((), name="discount", dtype="float32")
    hour = keras.Input((), name="hour", dtype="int32")

    # Any text finds a bucket and any number an hour, so no record can name a row that an embedding lacks.
    parts = [
        keras.layers.Embedding(2048, 8, name="item_embedding")(keras.layers.Hashing(2048, name="bucket")(item)),
        keras.layers.Embedding(24, 4, name="hour_embedding")(keras.ops.mod(hour, 24)),
        keras.layers.Reshape((1,))(keras.ops.log1p(keras.ops.relu(price)) - 3.0),
        keras.layers.Reshape((1,))(4.0 * discount - 1.0),
    ]
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()(parts))
    bought = keras.layers.Dense(1, activation="sigmoid", name="bought")(hidden)

    model = keras.Model({"item": item, "price": price, "discount": discount, "hour": hour}, bought)
    model.compile(optimizer=keras.optimizers.Adam(learning_rate), loss="binary_crossentropy", metrics=["accuracy"])
    return model
