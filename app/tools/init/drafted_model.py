"""The drafted model file: plain Keras that learns these fields, to be changed. Pure.

Numbers are scaled by what the first records showed, texts and categories hashed and embedded, so that no record can
name a row that an embedding lacks. Of a list that varies the elements are averaged, without what fills it up. The
label decides loss and metrics.
"""

import json
from collections.abc import Iterator

from app.tools.init.column_roles import Roles, Task
from app.tools.init.columns import ColumnKind, ColumnLook
from app.tools.init.drafted_config import input_names, length_names, rounded

_HEADS = {
    Task.BINARY: (
        'units=1, activation="sigmoid"',
        '"binary_crossentropy"',
        '"accuracy", keras.metrics.AUC(name="auc")',
    ),
    Task.CLASSES: ('units={classes}, activation="softmax"', '"sparse_categorical_crossentropy"', '"accuracy"'),
    Task.NAMED_CLASSES: ('units=len(CLASSES), activation="softmax"', '"sparse_categorical_crossentropy"', '"accuracy"'),
    Task.NUMBER: ("units=1", '"mse"', '"mae"'),
}


def model_text(topic: str, roles: Roles) -> str:
    """Return the whole file."""
    parts = [*_head(topic, roles), *_tables(roles), *_build(roles), *_averaged(roles), *_preprocess(roles)]
    return "\n".join(parts) + "\n"


def _head(topic: str, roles: Roles) -> Iterator[str]:
    yield f'"""Learns {json.dumps(roles.label.source)} from the records of {topic}.'
    yield ""
    yield "Drafted by `millrace init`, and yours from here on: plain Keras, nothing of millrace is imported."
    yield "`millrace validate` checks that it fits, and docs/model.md describes what a start requires."
    yield '"""'
    yield ""
    yield "import keras"
    if roles.task is Task.NAMED_CLASSES:
        yield "import tensorflow as tf"
    yield ""


def _tables(roles: Roles) -> Iterator[str]:
    names = input_names(roles.features)

    def of(*kinds: ColumnKind) -> list[ColumnLook]:
        return [column for column in roles.features if column.kind in kinds]

    if numbers := of(ColumnKind.NUMBER, ColumnKind.NUMBERS):
        yield "# Mean and spread of each number in the first records, and its shape; a stream has no first pass."
        yield "NUMBERS = {"
        for column in numbers:
            shape = f"({column.lengths[0]},)" if column.kind is ColumnKind.NUMBERS else "()"
            yield f'    "{names[column.source]}": ({rounded(column.mean)}, {rounded(column.spread)}, {shape}),'
        yield "}"
    yield from _list_tables(roles)
    for table, kind in (("FLAGS", ColumnKind.FLAG), ("TEXTS", ColumnKind.TEXT), ("CATEGORIES", ColumnKind.CATEGORY)):
        if columns := of(kind):
            yield f"{table} = {json.dumps([names[column.source] for column in columns])}"
    if roles.task is Task.NAMED_CLASSES:
        yield f"CLASSES = {json.dumps(list(roles.label.distinct), ensure_ascii=False)}"
    yield ""
    yield ""


def _list_tables(roles: Roles) -> Iterator[str]:
    names, lengths = input_names(roles.features), length_names(roles.features)
    varying = [column for column in roles.features if column.kind.varies]
    if varying:
        yield "# Lists of varying length: mean and spread of numbers, then the bound, and the input that has the length"
    for table, kind in (("NUMBER_LISTS", ColumnKind.VARYING_NUMBERS), ("TEXT_LISTS", ColumnKind.TEXTS)):
        if columns := [column for column in varying if column.kind is kind]:
            yield f"{table} = {{"
            for column in columns:
                scale = f"{rounded(column.mean)}, {rounded(column.spread)}, " * (kind is ColumnKind.VARYING_NUMBERS)
                yield f'    "{names[column.source]}": ({scale}{column.bound}, "{lengths[column.source]}"),'
            yield "}"


def _build(roles: Roles) -> Iterator[str]:
    kinds = {column.kind for column in roles.features}
    hashed = {ColumnKind.TEXT, ColumnKind.CATEGORY, ColumnKind.TEXTS} & kinds
    buckets = "buckets: int = 10_000, " if hashed else ""
    yield f"def build_model({buckets}learning_rate: float = 0.003) -> keras.Model:"
    yield '    """Build and compile the model; its inputs bear the names of the features."""'
    yield "    inputs, parts = {}, []"
    if {ColumnKind.NUMBER, ColumnKind.NUMBERS} & kinds:
        yield "    for name, (mean, spread, shape) in NUMBERS.items():"
        yield '        inputs[name] = keras.Input(shape, name=name, dtype="float32")'
        yield "        scaled = keras.ops.clip((inputs[name] - mean) / spread, -10, 10)"
        yield "        parts.append(keras.layers.Flatten()(scaled))"
    if ColumnKind.FLAG in kinds:
        yield "    for name in FLAGS:"
        yield '        inputs[name] = keras.Input((), name=name, dtype="bool")'
        yield '        parts.append(keras.layers.Reshape((1,))(keras.ops.cast(inputs[name], "float32")))'
    for table, kind, dtype in (("TEXTS", ColumnKind.TEXT, "string"), ("CATEGORIES", ColumnKind.CATEGORY, "int64")):
        if kind in kinds:
            yield f"    for name in {table}:  # any value finds a bucket"
            yield f'        inputs[name] = keras.Input((), name=name, dtype="{dtype}")'
            yield "        bucket = keras.layers.Hashing(buckets)(inputs[name])"
            yield "        parts.append(keras.layers.Embedding(buckets, 8)(bucket))"
    yield from _list_inputs(kinds)
    yield "    hidden = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]"
    yield '    hidden = keras.layers.Dense(64, activation="relu")(hidden)'
    yield '    hidden = keras.layers.Dense(32, activation="relu")(hidden)'
    yield from _output(roles)


def _list_inputs(kinds: set[ColumnKind]) -> Iterator[str]:
    if ColumnKind.VARYING_NUMBERS in kinds:
        yield "    for name, (mean, spread, bound, length) in NUMBER_LISTS.items():"
        yield '        inputs[name] = keras.Input((bound,), name=name, dtype="float32")'
        yield '        inputs[length] = keras.Input((), name=length, dtype="int32")'
        yield "        scaled = keras.ops.clip((inputs[name] - mean) / spread, -10, 10)"
        yield '        elements = keras.layers.Dense(16, activation="relu")(scaled[:, :, None])'
        yield "        parts += averaged(elements, inputs[length])"
    if ColumnKind.TEXTS in kinds:
        yield "    for name, (bound, length) in TEXT_LISTS.items():  # any value finds a bucket"
        yield '        inputs[name] = keras.Input((bound,), name=name, dtype="string")'
        yield '        inputs[length] = keras.Input((), name=length, dtype="int32")'
        yield "        bucket = keras.layers.Hashing(buckets)(inputs[name])"
        yield "        parts += averaged(keras.layers.Embedding(buckets, 8)(bucket), inputs[length])"


def _averaged(roles: Roles) -> Iterator[str]:
    if not any(column.kind.varies for column in roles.features):
        return
    yield ""
    yield ""
    yield "def averaged(elements, length):"
    yield '    """Give the mean of a list\'s elements, and how full it is; what fills it up does not count."""'
    yield "    bound = elements.shape[1]"
    yield '    there = keras.ops.cast(length[:, None] > keras.ops.arange(bound), "float32")[:, :, None]'
    yield '    count = keras.ops.cast(length, "float32")[:, None]'
    yield "    mean = keras.ops.sum(elements * there, axis=1) / keras.ops.maximum(count, 1)  # of no element: zeros"
    yield "    return [mean, count / bound]"


def _output(roles: Roles) -> Iterator[str]:
    head, loss, metrics = _HEADS[roles.task]
    if roles.task is Task.CLASSES:
        head = head.format(classes=roles.label.distinct[-1] + 1)
    yield f'    prediction = keras.layers.Dense({head}, name="prediction")(hidden)'
    if roles.task is Task.NUMBER:
        mean, spread = rounded(roles.label.mean), rounded(roles.label.spread)
        yield f"    prediction = prediction * {spread} + {mean}  # the label's spread and mean in the first records"
    yield "    model = keras.Model(inputs, prediction)"
    yield "    model.compile(optimizer=keras.optimizers.Adam(learning_rate),"
    yield f"                  loss={loss}, metrics=[{metrics}])"
    yield "    return model"


def _preprocess(roles: Roles) -> Iterator[str]:
    if roles.task is not Task.NAMED_CLASSES:
        return
    yield ""
    yield ""
    yield "def preprocess(features, label, weight):"
    yield '    """Turn the label\'s text into its place among the classes."""'
    yield "    return features, tf.argmax(tf.equal(label[:, tf.newaxis], CLASSES), axis=1), weight"
