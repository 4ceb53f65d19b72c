"""The drafted model file: plain Keras that learns these fields, to be changed. Pure.

Numbers are scaled by what the first records showed, texts and categories hashed and embedded, so that no record can
name a row that an embedding lacks. Of a list that varies the elements are averaged, without what fills it up. The
label decides loss and metrics.
"""

import json
from collections.abc import Sequence

from app.tools.init.column_roles import Roles, Task
from app.tools.init.columns import ColumnKind, ColumnLook
from app.tools.init.drafted_config import DTYPES, input_names, length_names, rounded

_TABLES = {
    ColumnKind.NUMBER: "NUMBERS",
    ColumnKind.NUMBERS: "NUMBERS",
    ColumnKind.FLAG: "FLAGS",
    ColumnKind.TEXT: "CATEGORIES",
    ColumnKind.CATEGORY: "CATEGORIES",
    ColumnKind.VARYING_NUMBERS: "NUMBER_LISTS",
    ColumnKind.TEXTS: "TEXT_LISTS",
}
"""The table of the drafted file that lists the fields of a kind."""
_HEADINGS = {
    "NUMBERS": "Mean and spread of each number in the first records, and its shape; a stream has no first pass.",
    "FLAGS": "Those that are true or false, with their dtype.",
    "CATEGORIES": "Texts and categories, with their dtype; each is hashed, so that any value finds a bucket.",
    "NUMBER_LISTS": "Of varying length: mean and spread, then the bound, and the input that has the length.",
    "TEXT_LISTS": "Of varying length: the bound, and the input that has the length.",
}
_INPUTS = {
    "NUMBERS": """\
    for name, (mean, spread, shape) in NUMBERS.items():
        inputs[name] = keras.Input(shape, name=name, dtype="float32")
        scaled = keras.ops.clip((inputs[name] - mean) / spread, -10, 10)
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
    for name, (mean, spread, bound, length) in NUMBER_LISTS.items():
        inputs[name] = keras.Input((bound,), name=name, dtype="float32")
        inputs[length] = keras.Input((), name=length, dtype="int32")
        scaled = keras.ops.clip((inputs[name] - mean) / spread, -10, 10)
        elements = keras.layers.Dense(16, activation="relu")(scaled[:, :, None])
        parts += averaged(elements, inputs[length])
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
    """Turn the label's text into its place among the classes."""
    return features, tf.argmax(tf.equal(label[:, tf.newaxis], CLASSES), axis=1), weight
'''
_CLASSIFIED = 'loss="sparse_categorical_crossentropy", metrics=["accuracy"]'
_HEADS = {
    Task.BINARY: (
        'units=1, activation="sigmoid"',
        'loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")]',
    ),
    Task.CLASSES: ('units={classes}, activation="softmax"', _CLASSIFIED),
    Task.NAMED_CLASSES: ('units=len(CLASSES), activation="softmax"', _CLASSIFIED),
    Task.NUMBER: ("units=1", 'loss="mse", metrics=["mae"]'),
}
"""The last layer for each task, and how it is compiled."""


def model_text(topic: str, roles: Roles) -> str:
    """Return the whole file."""
    tables = _tables(roles.features)
    listed = "".join(f"# {_HEADINGS[table]}\n{table} = {{\n{rows}}}\n" for table, rows in tables.items())
    buckets = "" if {"CATEGORIES", "TEXT_LISTS"}.isdisjoint(tables) else "buckets: int = 10_000, "
    head, compiled = _HEADS[roles.task]
    imports, classes, scale, after = "", "", "", ""
    if not {"NUMBER_LISTS", "TEXT_LISTS"}.isdisjoint(tables):
        after = _AVERAGED
    if roles.task is Task.CLASSES:
        head = head.format(classes=roles.label.distinct[-1] + 1)
    elif roles.task is Task.NAMED_CLASSES:
        imports, after = "import tensorflow as tf\n", after + _PREPROCESS
        classes = f"CLASSES = {json.dumps(list(roles.label.distinct), ensure_ascii=False)}\n"
    elif roles.task is Task.NUMBER:
        mean, spread = rounded(roles.label.mean), rounded(roles.label.spread)
        scale = f"prediction = prediction * {spread} + {mean}  # the label's spread and mean in the first records\n    "
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
        scale = f"{rounded(column.mean)}, {rounded(column.spread)}"
        length = f'{column.bound}, "{lengths.get(column.source)}"'
        row = {
            ColumnKind.NUMBER: f"({scale}, ())",
            ColumnKind.NUMBERS: f"({scale}, ({column.lengths[0]},))",
            ColumnKind.VARYING_NUMBERS: f"({scale}, {length})",
            ColumnKind.TEXTS: f"({length})",
        }.get(column.kind, f'"{DTYPES[column.kind]}"')
        table = _TABLES[column.kind]
        tables[table] = tables.get(table, "") + f'    "{names[column.source]}": {row},\n'
    return tables
