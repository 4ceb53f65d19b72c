"""The drafted model file: plain Keras that learns these fields, to be changed. Pure.

Each number is given twice. It is scaled by median and spread of some records, and bent by arcsinh, so that neither
outliers nor drift leave the range of what the model can tell apart. And it is cut into steps between quantiles: each
step grows from -1 to 1 while the number passes it, so that the model finds a threshold as soon as a tree does. A whole
number of few values is a number too, with an input more for each value, as nothing tells whether their order means
anything; these inputs are 0 or 2, so that they are learnt sooner. Texts and whole numbers that are named as identities
are hashed and embedded, so that no record can name a row that an embedding lacks; of a free text its words are. The
last layer is given the inputs beside the hidden layers: what is linear is learnt soon, from few records of a class,
too. Of a list that varies the elements are averaged, without what fills it up. An image goes through small
convolutions; their outputs are normalized image by image, since otherwise Adam's first steps may leave all of them
negative, and dead behind a relu. The label decides loss and metrics: a number has Huber's loss, as outliers in the
target would outweigh all other records in a squared one.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass

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
    rounded_quantiles,
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
    "NUMBERS": "Median, spread and quantiles in some records, as no stream has a first pass; shape and dtype.",
    "WHOLE_NUMBERS": "Those of few values, each of which is an input more, as their order may mean nothing.",
    "FLAGS": "Those that are true or false, with their dtype.",
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
    numbers, scales = [], []
    for name, (median, spread, quantiles, shape, dtype) in NUMBERS.items():
        inputs[name] = keras.Input(shape, name=name, dtype=dtype)
        number = keras.ops.cast(inputs[name], "float32")
        numbers.append(keras.ops.reshape(number, (-1, math.prod(shape))))
        scales += [(median, spread, quantiles)] * math.prod(shape)
    parts += given_twice(numbers, scales)
""",
    "WHOLE_NUMBERS": """\
    for name, values in WHOLE_NUMBERS.items():
        one = keras.ops.equal(inputs[name][..., None], np.array(values))
        parts.append(2 * keras.ops.cast(one, "float32"))
""",
    "FLAGS": """\
    for name, dtype in FLAGS.items():
        inputs[name] = keras.Input((), name=name, dtype=dtype)
        parts.append(keras.layers.Reshape((1,))(keras.ops.cast(inputs[name], "float32")))
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
    "(-1, math.prod(shape))": "(-1, length, math.prod(shape))",
    "parts += given_twice": "steps += given_twice",
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
_GIVEN_TWICE = '''

def given_twice(numbers, scales):
    """Scale numbers, and cut them into steps between quantiles: each grows from -1 to 1 while a number passes it."""
    medians, spreads = (np.array([scale[part] for scale in scales], "float32") for part in (0, 1))
    scaled = keras.ops.cast((keras.ops.concatenate(numbers, -1) - medians) / spreads, "float32")
    steps = [
        (place, (lower - median) / spread, (upper - lower) / spread)
        for place, (median, spread, quantiles) in enumerate(scales)
        for lower, upper in itertools.pairwise(quantiles)
    ]
    if not steps:
        return [keras.ops.arcsinh(scaled)]
    places, lower, width = (np.array(each) for each in zip(*steps))
    passed = (keras.ops.take(scaled, places, axis=-1) - lower.astype("float32")) / width.astype("float32")
    return [keras.ops.arcsinh(scaled), 2 * keras.ops.clip(passed, 0, 1) - 1]
'''
_MOST_PARAMETERS, _SHARE = 90_000, 0.4
"""The most of the dense layers, if numbers are whole; and the share of their inputs for steps, and that for values."""
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
    tables = _tables(roles, recurrent)
    listed = "".join(f"# {_HEADINGS[table]}\n{table} = {{\n{rows}}}\n" for table, rows in tables.items())
    words = "words: int = 10_000, " if "FREE_TEXTS" in tables else ""
    length = "" if recurrent is None else f"length: int = {LENGTH}, "
    head, compiled = _HEADS[roles.task]
    classes, scale, prepared = "", "", ""
    after = "" if {"NUMBER_LISTS", "TEXT_LISTS", "FREE_TEXTS"}.isdisjoint(tables) else _AVERAGED
    if "NUMBERS" in tables:
        after += _GIVEN_TWICE
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
        comment = "the label's spread and median in some records"
        scale = f"prediction = prediction * {spread} + {centre}  # {comment}\n    "
    imports = "import tensorflow as tf\n" if prepared else ""
    standard = "import itertools\n" * ("NUMBERS" in tables)
    standard += "import math\n" * ("NUMBERS" in tables or roles.task is Task.BINARY)
    standard += "\n" * bool(standard)
    array = "import numpy as np\n" * ("NUMBERS" in tables)
    if prepared:
        after += f"{_PREPROCESS}{prepared}    return features, label, weight\n"
    text = f'''\
"""Learns {json.dumps(roles.label.source)} from the records of {topic}.

Drafted by `millrace init`, and yours from here on: plain Keras, nothing of millrace is imported.
`millrace validate` checks all that a start requires of it.
"""

{standard}import keras
{array}{imports}
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
    # What float32 is too coarse for is scaled in float64, and all numbers with it.
    fine = any(dtype_of(one) == "float64" for one in roles.features)
    return _as_float64(text) if fine else text


def _inputs(tables: Collection[str], roles: Roles, recurrent: Sequences | None) -> str:
    """Return the code of all inputs."""
    if recurrent is None:
        return "".join(_INPUTS[table] for table in tables)
    of_steps = {_table(one) for one in recurrent.steps(roles.features)}
    of_steps |= {"WHOLE_NUMBERS"} if "NUMBERS" in of_steps else {*()}
    code = [_as_steps(_INPUTS[table]) if table in of_steps else _INPUTS[table] for table in tables if table != "KEYS"]
    code.append(_INPUTS["CATEGORIES"].replace("CATEGORIES", "KEYS"))
    return "".join(code) + _RECURRENT.format(known=known_name(roles.features))


def _as_float64(text: str) -> str:
    """Return the file with numbers that are scaled in float64."""
    for plain in ('cast(inputs[name], "float32")\n        numbers', 'for scale in scales], "float32")'):
        text = text.replace(plain, plain.replace("float32", "float64"))
    return text


def _as_steps(code: str) -> str:
    for plain, of_steps in _AS_STEPS.items():
        code = code.replace(plain, of_steps)
    return code


def _table(column: ColumnLook) -> str:
    """Return the table of a field."""
    return "NUMBERS" if column.ordered else _TABLES[column.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Breadth:
    """How many inputs of the dense layers a number gets beside the scaled one, so that the model stays small."""

    steps: int
    values: int

    @classmethod
    def of(cls, roles: Roles) -> "_Breadth":
        """Divide the inputs that the dense layers may have by the numbers of these features."""
        outputs = {Task.CLASSES: len(roles.label.distinct), Task.NAMED_CLASSES: len(roles.label.distinct)}
        most = _MOST_PARAMETERS // (64 + outputs.get(roles.task, 1))
        numbers = [column for column in roles.features if column.ordered]
        each = sum(column.lengths[0] if column.kind is ColumnKind.NUMBERS else 1 for column in numbers)
        whole = sum(column.kind is ColumnKind.CATEGORY for column in numbers)
        return cls(steps=int(_SHARE * most) // max(1, each), values=int(_SHARE * most) // max(1, whole))

    def quantiles(self, column: ColumnLook) -> list[float]:
        """Return the quantiles between which a number has steps: all, every second, or none, by how many fit."""
        every = rounded_quantiles(column)
        halved = [*every[:-1:2], *every[-1:]]
        return next((some for some in (every, halved) if len(some) - 1 <= self.steps), [])

    def given_each(self, column: ColumnLook) -> bool:
        """Return whether each value of a whole number is an input."""
        return column.kind is ColumnKind.CATEGORY and column.ordered and 2 <= len(column.distinct) <= self.values


def _tables(roles: Roles, recurrent: Sequences | None) -> dict[str, str]:
    """Return the rows of each table that has any."""
    features, breadth = roles.features, _Breadth.of(roles)
    names, lengths = input_names(features), length_names(features)
    tables: dict[str, str] = {}
    for column in features:
        name = names[column.source]
        scale = f"{rounded_centre(column)}, {rounded(column.spread)}"
        length = f'{column.bound}, "{lengths.get(column.source)}"'
        words = f'{_WORDS}, "{lengths.get(column.source)}"'
        table = "KEYS" if recurrent is not None and column.source == recurrent.key.source else _table(column)
        shape = f"({column.lengths[0]},)" if column.kind is ColumnKind.NUMBERS else "()"
        row = {
            "NUMBERS": f'({scale}, {breadth.quantiles(column)}, {shape}, "{dtype_of(column)}")',
            "FLAGS": f'"{DTYPES[column.kind]}"',
            "NUMBER_LISTS": f"({scale}, {length})",
            "TEXT_LISTS": f"({length}, {column.buckets})",
            "FREE_TEXTS": f"({words})",
            "IMAGES": f"{column.shape}",
        }.get(table, f'("{DTYPES[column.kind]}", {column.buckets})')
        tables[table] = tables.get(table, "") + f'    "{name}": {row},\n'
        if breadth.given_each(column):
            values = [int(value) for value in column.distinct]
            tables["WHOLE_NUMBERS"] = tables.get("WHOLE_NUMBERS", "") + f'    "{name}": {values},\n'
    return tables
