"""The drafted model file: plain Keras that learns these fields, to be changed. Pure.

Numbers are scaled by median and spread of the first records, and bent by arcsinh, so that neither outliers nor drift
leave the range of what the model can tell apart. Texts are hashed and embedded, so that no record can name a row that
an embedding lacks; of a free text its words are. A whole number of few values is both, as nothing tells whether their
order means anything. The last layer is given the inputs beside the hidden layers: what is linear is learnt soon, from
few records of a class, too. Of a list that varies the elements are averaged,
without what fills it up. An image goes through small convolutions; their outputs are normalized image by image, since
otherwise Adam's first steps may leave all of them negative, and dead behind a relu. The label decides loss and metrics:
a number has Huber's loss, as outliers in the target would outweigh all other records in a squared one.
"""

import json
from collections.abc import Collection, Sequence

from millrace.app.tools.init.column_roles import LENGTH, Roles, Sequences, Task
from millrace.app.tools.init.columns import ColumnKind, ColumnLook
from millrace.app.tools.init.drafted_config import (
    DTYPES,
    dtype_of,
    input_names,
    known_name,
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
    "WHOLE_NUMBERS": "Those of few values, learnt as numbers and as categories: median and spread, and buckets.",
    "CATEGORIES": "Texts and identities: dtype, and buckets to hash them to, more than there are values.",
    "KEYS": "The key of the sequences, given once for each.",
    "NUMBER_LISTS": "Of varying length: median and spread, then the bound, and the input that has the length.",
    "TEXT_LISTS": "Of varying length: the bound, the input that has the length, and buckets to hash the texts to.",
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
    "WHOLE_NUMBERS": """\
    for name, (median, spread, buckets) in WHOLE_NUMBERS.items():
        inputs[name] = keras.Input((), name=name, dtype="int64")
        scaled = keras.ops.arcsinh((keras.ops.cast(inputs[name], "float32") - median) / spread)
        parts.append(keras.layers.Reshape((1,))(scaled))
        bucket = keras.layers.Hashing(buckets)(inputs[name])
        parts.append(keras.layers.Embedding(buckets, 8)(bucket))
""",
    "CATEGORIES": """\
    for name, (dtype, buckets) in CATEGORIES.items():  # any value finds a bucket
        inputs[name] = keras.Input((), name=name, dtype=dtype)
        bucket = keras.layers.Hashing(buckets)(inputs[name])
        parts.append(keras.layers.Embedding(buckets, 8)(bucket))
""",
    "NUMBER_LISTS": """\
    for name, (median, spread, bound, filled) in NUMBER_LISTS.items():
        inputs[name] = keras.Input((bound,), name=name, dtype="float32")
        inputs[filled] = keras.Input((), name=filled, dtype="int32")
        scaled = keras.ops.arcsinh((inputs[name] - median) / spread)
        elements = keras.layers.Dense(16, activation="relu")(scaled[:, :, None])
        parts += averaged(elements, inputs[filled])
""",
    "FREE_TEXTS": """\
    for name, (bound, filled) in FREE_TEXTS.items():  # `preprocess` has split them into words
        inputs[name] = keras.Input((bound,), name=name, dtype="string")
        inputs[filled] = keras.Input((), name=filled, dtype="int32")
        bucket = keras.layers.Hashing(words)(inputs[name])
        parts += averaged(keras.layers.Embedding(words, 16)(bucket), inputs[filled])
""",
    "TEXT_LISTS": """\
    for name, (bound, filled, buckets) in TEXT_LISTS.items():  # any value finds a bucket
        inputs[name] = keras.Input((bound,), name=name, dtype="string")
        inputs[filled] = keras.Input((), name=filled, dtype="int32")
        bucket = keras.layers.Hashing(buckets)(inputs[name])
        parts += averaged(keras.layers.Embedding(buckets, 8)(bucket), inputs[filled])
""",
}
"""The code that makes inputs of a table's fields."""
_AS_STEPS = {
    "keras.Input(shape,": "keras.Input((length, *shape),",
    "keras.Input((),": "keras.Input((length,),",
    "Flatten()(scaled)": "Reshape((length, -1))(scaled)",
    "Reshape((1,))": "Reshape((length, 1))",
    "parts.append": "steps.append",
}
"""What is another in that code if the fields are sequences, the newest record last."""
_RECURRENT = """\
    inputs["{known}"] = keras.Input((), name="{known}", dtype="int32")
    steps = keras.layers.Concatenate()(steps) if len(steps) > 1 else steps[0]
    there = inputs["{known}"][:, None] >= length - keras.ops.arange(length)  # a new key has fewer records
    parts += [keras.layers.GRU(32)(steps, mask=there), steps[:, -1]]  # the sequence, and the newest record
"""
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
        'loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc", thresholds=THRESHOLDS)]',
    ),
    Task.CLASSES: ('units={classes}, activation="softmax"', _CLASSIFIED),
    Task.NAMED_CLASSES: ('units=len(CLASSES), activation="softmax"', _CLASSIFIED),
    Task.NUMBER: ("units=1", 'loss=keras.losses.Huber(delta={spread}), metrics=["mae"]'),
}
"""The last layer for each task, and how it is compiled."""
_THRESHOLDS = """\
# Where AUC is measured: closer near 0 and 1 than Keras' own, as the probabilities of a rare class are all near 0.
THRESHOLDS = [1 / (1 + math.exp(-step / 10)) for step in range(-99, 100)]
"""


def model_text(topic: str, roles: Roles, sequences: Sequences | None = None) -> str:
    """Return the whole file."""
    recurrent = sequences if sequences is not None and sequences.whole else None
    tables = _tables(roles.features, recurrent)
    listed = "".join(f"# {_HEADINGS[table]}\n{table} = {{\n{rows}}}\n" for table, rows in tables.items())
    words = "words: int = 10_000, " if "FREE_TEXTS" in tables else ""
    length = "" if recurrent is None else f"length: int = {LENGTH}, "
    head, compiled = _HEADS[roles.task]
    classes, scale, prepared = "", "", ""
    after = "" if {"NUMBER_LISTS", "TEXT_LISTS", "FREE_TEXTS"}.isdisjoint(tables) else _AVERAGED
    if "FREE_TEXTS" in tables:
        prepared += _WORDS_OF_TEXTS
    if roles.task is Task.BINARY:
        classes = _THRESHOLDS
    elif roles.task is Task.CLASSES:
        head = head.format(classes=roles.label.distinct[-1] + 1)
    elif roles.task is Task.NAMED_CLASSES:
        classes = f"CLASSES = {json.dumps(list(roles.label.distinct), ensure_ascii=False)}\n"
    elif roles.task is Task.NUMBER:
        centre, spread = rounded_centre(roles.label), rounded(roles.label.spread)
        compiled = compiled.format(spread=spread)
        comment = "the label's spread and median in the first records"
        scale = f"prediction = prediction * {spread} + {centre}  # {comment}\n    "
    imports = "import tensorflow as tf\n" if prepared else ""
    standard = "import math\n\n" if roles.task is Task.BINARY else ""
    if prepared:
        after += f"{_PREPROCESS}{prepared}    return features, label, weight\n"
    return f'''\
"""Learns {json.dumps(roles.label.source)} from the records of {topic}.

Drafted by `millrace init`, and yours from here on: plain Keras, nothing of millrace is imported.
`millrace validate` checks all that a start requires of it.
"""

{standard}import keras
{imports}
{listed}{classes}

def build_model({length}{words}learning_rate: float = 0.003) -> keras.Model:
    """Build and compile the model; its inputs bear the names of the features."""
    {"inputs, parts = {}, []" if recurrent is None else "inputs, parts, steps = {}, [], []"}
{_inputs(tables, roles, recurrent)}\
    given = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    hidden = keras.layers.Dense(64, activation="relu")(given)
    hidden = keras.layers.Dense(32, activation="relu")(hidden)
    both = keras.layers.Concatenate()([hidden, given])  # what is linear needs no hidden layer
    prediction = keras.layers.Dense({head}, name="prediction")(both)
    {scale}model = keras.Model(inputs, prediction)
    model.compile(optimizer=keras.optimizers.Adam(learning_rate),
                  {compiled})
    return model
{after}'''


def _inputs(tables: Collection[str], roles: Roles, recurrent: Sequences | None) -> str:
    """Return the code of all inputs."""
    if recurrent is None:
        return "".join(_INPUTS[table] for table in tables)
    of_steps = {_table(one) for one in recurrent.steps(roles.features)}
    code = [_as_steps(_INPUTS[table]) if table in of_steps else _INPUTS[table] for table in tables if table != "KEYS"]
    code.append(_INPUTS["CATEGORIES"].replace("CATEGORIES", "KEYS"))
    return "".join(code) + _RECURRENT.format(known=known_name(roles.features))


def _as_steps(code: str) -> str:
    for plain, of_steps in _AS_STEPS.items():
        code = code.replace(plain, of_steps)
    return code


def _table(column: ColumnLook) -> str:
    """Return the table of a field; whole numbers of two values are numbers, since any two lie on a line."""
    if column.kind is not ColumnKind.CATEGORY or column.names_things:
        return _TABLES[column.kind]
    return "NUMBERS" if column.values_seen <= 2 else "WHOLE_NUMBERS"


def _tables(features: Sequence[ColumnLook], recurrent: Sequences | None) -> dict[str, str]:
    """Return the rows of each table that has any."""
    names, lengths = input_names(features), length_names(features)
    tables: dict[str, str] = {}
    for column in features:
        scale = f"{rounded_centre(column)}, {rounded(column.spread)}"
        length = f'{column.bound}, "{lengths.get(column.source)}"'
        words = f'{_WORDS}, "{lengths.get(column.source)}"'
        table = "KEYS" if recurrent is not None and column.source == recurrent.key.source else _table(column)
        shape = f"({column.lengths[0]},)" if column.kind is ColumnKind.NUMBERS else "()"
        row = {
            "NUMBERS": f'({scale}, {shape}, "{dtype_of(column)}")',
            "WHOLE_NUMBERS": f"({scale}, {column.buckets})",
            "FLAGS": f'"{DTYPES[column.kind]}"',
            "NUMBER_LISTS": f"({scale}, {length})",
            "TEXT_LISTS": f"({length}, {column.buckets})",
            "FREE_TEXTS": f"({words})",
            "IMAGES": f"{column.shape}",
        }.get(table, f'("{DTYPES[column.kind]}", {column.buckets})')
        tables[table] = tables.get(table, "") + f'    "{names[column.source]}": {row},\n'
    return tables
