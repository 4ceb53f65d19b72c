"""Class weights: how much a record pulls by its class, from counts that follow the stream, and what undoes the effect.

With weights, a model learns what would hold if the classes had the shares of the target, so it predicts a rare class
too often. For a cross-entropy this is exact: the odds of a class are multiplied by its weight. Dividing them by it
gives the probabilities on the stream as it is; that is done to what is scored.

Pure functions in a graph; they own nothing.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.shaping.balance.balance import BalanceSettings
from millrace.pipelines.shaping.options import LABEL, PRIOR, number_of
from millrace.pipelines.stream.label_masks import masks_of


class Output(StrEnum):
    """What a model's output is to its loss."""

    PROBABILITY = "probability"
    """Of class 1, in one column."""
    LOGIT = "logit"
    """Of class 1, in one column."""
    PROBABILITIES = "probabilities"
    """One for each class."""
    LOGITS = "logits"


def decay(records: Any, options: BalanceSettings) -> Any:
    """Return by how much earlier counts shrink over so many records."""
    return tf.exp(tf.cast(records, tf.float64) * (-math.log(2) / options.half_life))


def weights_of(counts: Any, options: BalanceSettings) -> Any:
    """Return the weight of each class by how often it was seen, […, classes]. Their mean over the stream is 1."""
    target = tf.constant([options.target[one] for one in options.classes], tf.float64)
    shares = (counts + PRIOR * target) / (tf.reduce_sum(counts, axis=-1, keepdims=True) + PRIOR)
    return tf.cast(target / shares, tf.float32)


def one_hot(features: Mapping[str, Any], labels: Any, options: BalanceSettings) -> Any:
    """Return 1 where a row is of a class, [rows, classes], float32; a row of another class, or without one, has none.

    Raise ConfigError where there is no such column, or it is not one value a row.
    """
    mask = masks_of(labels).get(options.by)
    found = _one_hot(_column(features, labels, options.by), options)
    return found if mask is None else found * tf.cast(mask, tf.float32)[:, None]


def _one_hot(column: Any, options: BalanceSettings) -> Any:
    classes = options.classes
    if column.shape.rank == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.shape.rank == 2 and column.shape[1] == len(classes) and column.dtype != tf.string:
        if [*map(number_of, classes)] != [*range(len(classes))]:
            raise ConfigError(f"balance.target: the labels are one-hot: name the classes 0 to {len(classes) - 1}")
        return tf.cast(column, tf.float32)
    if column.shape.rank != 1:
        raise ConfigError(
            f"balance.by: {options.by} has the shape {column.shape[1:]}, and a class is one value a record"
        )
    if column.dtype == tf.string:
        return tf.cast(column[:, None] == tf.constant(classes)[None], tf.float32)
    if bad := [one for one in classes if math.isinf(number_of(one))]:
        raise ConfigError(f"balance.target: {options.by} holds numbers, and {bad[0]!r} is none")
    numbers = tf.constant([*map(number_of, classes)], tf.float64)
    return tf.cast(tf.cast(column, tf.float64)[:, None] == numbers[None], tf.float32)


def corrected(predicted: Any, weights: Any, output: Output) -> Any:
    """Return what is predicted on the stream as it is, of what a model predicts that has learnt with these weights."""
    weights = tf.cast(weights, predicted.dtype)
    if output is Output.LOGITS:
        return predicted - tf.math.log(weights)
    if output is Output.PROBABILITIES:
        apart = predicted / weights
        return apart / tf.reduce_sum(apart, axis=-1, keepdims=True)
    if output is Output.LOGIT:
        return predicted - tf.math.log(weights[1] / weights[0])
    one, none = predicted / weights[1], (1.0 - predicted) / weights[0]
    return one / (one + none)


def correctable(classes: Sequence[str], columns: int | None) -> bool:
    """Return whether the classes are those of an output of so many columns: each class, or 0 and 1 of a single one."""
    wanted = 2 if columns == 1 else columns
    return [*map(number_of, classes)] == [*range(wanted or 0)]


def _column(features: Mapping[str, Any], labels: Any, by: str) -> Any:
    if not isinstance(labels, Mapping):
        if by == LABEL:
            return labels
        labels = {}
    found = {**features, **labels}
    if by not in found:
        known = ", ".join(sorted(found)) or "nothing"
        raise ConfigError(f"balance.by: there is no {by!r} in what the model is given; there is {known}")
    return found[by]
