"""The drafted model file: plain Keras that learns these fields, to be changed. Pure.

Numbers are scaled by median and spread of the first records, and bent by arcsinh, so that neither outliers nor drift
leave the range of what the model can tell apart. Texts and categories are hashed and embedded, so that no record can
name a row that an embedding lacks; of a free text its words are. Of a list that varies the elements are averaged,
without what fills it up. An image goes through small convolutions; their outputs are normalized image by image, since
otherwise Adam's first steps may leave all of them negative, and dead behind a relu. The label decides loss and metrics:
a number has Huber's loss, as outliers in the target would outweigh all other records in a squared one.
"""

import json
from collections.abc import Sequence

from app.tools.init.column_roles import Roles, Task
from app.tools.init.columns import ColumnKind, ColumnLook
from app.tools.init.drafted_config import (
    DTYPES,
    dtype_of,
    input_names,
    length_names,
    rounded,
    rounded_centre,
)

_TABLES = {
    ColumnKind.NUMBER: "NUMBERS",
    ColumnKind.NUMBERS: "NUMBERS",
    ColumnKind.FLAG: "FLAGS",
    ColumnKind.TEXT: "CATEGORIES",
    ColumnKind.CATEGORY: "CATEGORIES",
    ColumnKind.VARYING_NUMBERS: "NUMBER_LISTS",
    ColumnKind.TEXTS: "TEXT_LISTS",
    ColumnKind.FREE_TEXT: "FREE_TEXTS",
    ColumnKind.IMAGE: "IMAGES",
}
"""The table of the drafted file that lists the fields of a kind."""
_HEADINGS = {
    "NUMBERS": "Median and spread of each number in the first records, shape and dtype; no stream has a first pass.",
    "FLAGS": "Those that are true or false, with their dtype.",
    "CATEGORIES": "Texts and categories, with their dtype; each is hashed, so that any value finds a bucket.",
    "NUMBER_LISTS": "Of varying length: median and spread, then the bound, and the input that has the length.",
    "TEXT_LISTS": "Of varying length: the bound, and the input that has the length.",
    "FREE_TEXTS": "Texts whose words are learnt from: how many words at most, and the input that has their number.",
    "IMAGES": "Height, width and channels of each image, as the config has them.",
}
_INPUTS = {
    "IMAGES": """\
    for name, shape in IMAGES.items():
        inputs[name] = keras.Input(shape, name=name, dtype="uint8")
        pixels = keras.ops.cast(inputs[name], "float32") / 64 - 2  # about 0, from -2 to 2
        for filters in (16, 32, 64):
            pixels = keras.layers.Conv2D(filters, 3, strides=2, padding="same")(pixels)
            pixels = keras.layers.Activation("relu")(keras.layers.GroupNormalization(1)(pixels))
        parts.append(keras.layers.Flatten()(keras.layers.AveragePooling2D(2, padding="same")(pixels)))
""",
    "NUMBERS": """\
    for name, (median, spread, shape, dtype) in NUMBERS.items():
        inputs[name] = keras.Input(shape, name=name, dtype=dtype)
        scaled = keras.ops.arcsinh(keras.ops.cast((inputs[name] - median) / spread, "float32"))
        parts.append(keras.layers.Flatten()(scaled))
""",
    "FLAGS": """\
    for name, dtype in FLAGS.items():
        inputs[name] = keras.Input((), name=name, dtype=dtype)
        parts.append(keras.layers.Reshape((1,))(keras.ops.cast(inputs[name], "float32")))
""",
    "CATEGORIES": """\
    for name, dtype in CATEGORIES.items():  # any value finds a bucket
        inputs[name] = keras.Input((), name=name, dtype=dtype)
        bucket = keras.layers.Hashing(buckets)(inputs[name])
        parts.append(keras.layers.Embedding(buckets, 8)(bucket))
""",
    "NUMBER_LISTS": """\
    for name, (median, spread, bound, length) in NUMBER_LISTS.items():
        inputs[name] = keras.Input((bound,), name=name, dtype="float32")
        inputs[length] = keras.Input((), name=length, dtype="int32")
        scaled = keras.ops.arcsinh((inputs[name] - median) / spread)
        elements = keras.layers.Dense(16, activation="relu")(scaled[:, :, None])
        parts += averaged(elements, inputs[length])
""",
    "FREE_TEXTS": """\
    for name, (bound, length) in FREE_TEXTS.items():  # `preprocess` has split them into words
        inputs[name] = keras.Input((bound,), name=name, dtype="string")
        inputs[length] = keras.Input((), name=length, dtype="int32")
        bucket = keras.layers.Hashing(buckets)(inputs[name])
        parts += averaged(keras.layers.Embedding(buckets, 16)(bucket), inputs[length])
""",
    "TEXT_LISTS": """\
    for name, (bound, length) in TEXT_LISTS.items():  # any value finds a bucket
        inputs[name] = keras.Input((bound,), name=name, dtype="string")
        inputs[length] = keras.Input((), name=length, dtype="int32")
        bucket = keras.layers.Hashing(buckets)(inputs[name])
        parts += averaged(keras.layers.Embedding(buckets, 8)(bucket), inputs[length])
""",
}
"""The code that makes inputs of a table's fields."""
_AVERAGED = '''

def averaged(elements, length):
    """Give the mean of a list's elements, and how full it is; what fills it up does not count."""
    bound = elements.shape[1]
    there = keras.ops.cast(length[:, None] > keras.ops.arange(bound), "float32")[:, :, None]
    count = keras.ops.cast(length, "float32")[:, None]
    mean = keras.ops.sum(elements * there, axis=1) / keras.ops.maximum(count, 1)  # of no element: zeros
    return [mean, count / bound]
'''
_PREPROCESS = '''

def preprocess(features, label, weight):
    """Turn texts into what the model takes; it runs while learning, and serving needs the same."""
'''
_WORDS_OF_TEXTS = """\
    for name, (bound, length) in FREE_TEXTS.items():
        plain = tf.strings.regex_replace(tf.strings.lower(features[name], "utf-8"), r"[^\\p{L}\\p{N}]+", " ")
        words = tf.strings.split(plain)
        features = {**features, name: words.to_tensor("", shape=[None, bound]),
                    length: tf.cast(tf.minimum(words.row_lengths(), bound), "int32")}
"""
_WORDS = 64
"""The most words of a free text that count."""
_CLASSIFIED = 'loss="sparse_categorical_crossentropy", metrics=["accuracy"]'
_HEADS = {
    Task.BINARY: (
        'units=1, activation="sigmoid"',
        'loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")]',
    ),
    Task.CLASSES: ('units={classes}, activation="softmax"', _CLASSIFIED),
    Task.NAMED_CLASSES: ('units=len(CLASSES), activation="softmax"', _CLASSIFIED),
    Task.NUMBER: ("units=1", 'loss=keras.losses.Huber(delta={spread}), metrics=["mae"]'),
}
"""The last layer for each task, and how it is compiled."""


def model_text(topic: str, roles: Roles) -> str:
    """Return the whole file."""
    tables = _tables(roles.features)
    listed = "".join(f"# {_HEADINGS[table]}\n{table} = {{\n{rows}}}\n" for table, rows in tables.items())
    buckets = "" if {"CATEGORIES", "TEXT_LISTS", "FREE_TEXTS"}.isdisjoint(tables) else "buckets: int = 10_000, "
    head, compiled = _HEADS[roles.task]
    classes, scale, prepared = "", "", ""
    after = "" if {"NUMBER_LISTS", "TEXT_LISTS", "FREE_TEXTS"}.isdisjoint(tables) else _AVERAGED
    if "FREE_TEXTS" in tables:
        prepared += _WORDS_OF_TEXTS
    if roles.task is Task.CLASSES:
        head = head.format(classes=roles.label.distinct[-1] + 1)
    elif roles.task is Task.NAMED_CLASSES:
        classes = f"CLASSES = {json.dumps(list(roles.label.distinct), ensure_ascii=False)}\n"
    elif roles.task is Task.NUMBER:
        centre, spread = rounded_centre(roles.label), rounded(roles.label.spread)
        compiled = compiled.format(spread=spread)
        comment = "the label's spread and median in the first records"
        scale = f"prediction = prediction * {spread} + {centre}  # {comment}\n    "
    imports = "import tensorflow as tf\n" if prepared else ""
    if prepared:
        after += f"{_PREPROCESS}{prepared}    return features, label, weight\n"
    return f'''\
"""Learns {json.dumps(roles.label.source)} from the records of {topic}.

Drafted by `millrace init`, and yours from here on: plain Keras, nothing of millrace is imported.
`millrace validate` checks that it fits, and docs/model.md describes what a start requires.
"""

import keras
{imports}
{listed}{classes}

def build_model({buckets}learning_rate: float = 0.003) -> keras.Model:
    """Build and compile the model; its inputs bear the names of the features."""
    inputs, parts = {{}}, []
{"".join(_INPUTS[table] for table in tables)}\
    hidden = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    hidden = keras.layers.Dense(64, activation="relu")(hidden)
    hidden = keras.layers.Dense(32, activation="relu")(hidden)
    prediction = keras.layers.Dense({head}, name="prediction")(hidden)
    {scale}model = keras.Model(inputs, prediction)
    model.compile(optimizer=keras.optimizers.Adam(learning_rate),
                  {compiled})
    return model
{after}'''


def _tables(features: Sequence[ColumnLook]) -> dict[str, str]:
    """Return the rows of each table that has any."""
    names, lengths = input_names(features), length_names(features)
    tables: dict[str, str] = {}
    for column in features:
        scale = f"{rounded_centre(column)}, {rounded(column.spread)}"
        length = f'{column.bound}, "{lengths.get(column.source)}"'
        words = f'{_WORDS}, "{lengths.get(column.source)}"'
        row = {
            ColumnKind.NUMBER: f'({scale}, (), "{dtype_of(column)}")',
            ColumnKind.NUMBERS: f'({scale}, ({column.lengths[0]},), "{dtype_of(column)}")',
            ColumnKind.VARYING_NUMBERS: f"({scale}, {length})",
            ColumnKind.TEXTS: f"({length})",
            ColumnKind.FREE_TEXT: f"({words})",
            ColumnKind.IMAGE: f"{column.shape}",
        }.get(column.kind, f'"{DTYPES[column.kind]}"')
        table = _TABLES[column.kind]
        tables[table] = tables.get(table, "") + f'    "{names[column.source]}": {row},\n'
    return tables
