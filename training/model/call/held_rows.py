"""Rows that are held in the host's memory for later calls: their columns by name, their files, and draws by hash.

Shared by what remembers rows: the reservoir and the recent rows. Owns nothing; the functions on tensors run in a graph.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.shaping.followed_states import unpacked
from millrace.pipelines.stream.blocks import Rows
from millrace.training.checkpoints.parts import Array, PartState
from millrace.training.model.call.witness import mixed

WEIGHT = "weight"
"""The column of the weights."""
OF_LABEL = "label."
"""What the columns of labels begin with, if these have names."""


def named(rows: Rows) -> dict[str, Any]:
    """Return the columns of rows that are kept, by name."""
    labels = rows.labels
    by_name = {OF_LABEL + name: one for name, one in labels.items()} if isinstance(labels, Mapping) else None
    features = {_of_feature(name): one for name, one in rows.features.items()}
    return features | ({"label": labels} if by_name is None else by_name) | {WEIGHT: rows.weights}


def unnamed(columns: Mapping[str, Any], rows: Rows) -> tuple[Any, Any, Any]:
    """Return features, labels and weights of these columns, as `rows` have them."""
    features = {name: columns[_of_feature(name)] for name in rows.features}
    labels = columns["label"] if "label" in columns else {name: columns[OF_LABEL + name] for name in rows.labels}
    return features, labels, columns[WEIGHT]


def bytes_of_numbers(columns: Mapping[str, Any]) -> int:
    """Return the memory that the columns of numbers take; texts come on top."""
    return sum(int(np.prod(one.shape)) * one.dtype.size for one in columns.values() if one.dtype != tf.string)


def places_for(size: int, rows: Rows, name: str) -> dict[str, Any]:
    """Return variables for so many rows such as these, by column."""
    with tf.device("/CPU:0"):
        return {
            column: tf.Variable(tf.zeros([size, *one.shape[2:]], one.dtype), trainable=False, name=f"{name}_{column}")
            for column, one in named(rows).items()
        }


def layout(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dtype and the shape of a row of each column, as a checkpoint's facts hold them."""
    return {name: [one.dtype.name, *one.shape[1:]] for name, one in columns.items()}


def columns_of(state: PartState) -> dict[str, Array]:
    """Return the columns that a checkpoint holds, by its `columns`."""
    return {name: unpacked(state.arrays, name, shape) for name, (_, *shape) in state.facts["columns"].items()}


def empty(variable: Any) -> Array:
    """Return what such a variable holds before the first row."""
    column: Array = np.zeros(variable.shape, variable.dtype.as_numpy_dtype)
    if variable.dtype == tf.string:
        column[...] = b""
    return column


def drawn(hashes: Any, numbers: Any) -> Any:
    """Return a place below each number, evenly drawn by its hash."""
    return tf.cast(tf.floor(uniform(hashes) * tf.cast(numbers, tf.float64)), tf.int64)


def uniform(hashes: Any) -> Any:
    """Return a number from 0 to below 1 for each hash, float64."""
    unsigned = tf.bitwise.right_shift(tf.bitcast(mixed(hashes), tf.uint64), tf.constant(11, tf.uint64))
    # 53 bits are as many as a float64 holds.
    return tf.cast(tf.bitcast(unsigned, tf.int64), tf.float64) * 2.0**-53


def refuse_too_many(setting: str, size: int, rows: Rows) -> None:
    """Raise ConfigError if so many rows cannot be in memory, even before their texts; `setting` asks for them."""
    columns = named(rows).values()
    each = 8 + sum(int(np.prod(one.shape[2:])) * one.dtype.size for one in columns if one.dtype != tf.string)
    there = usable_memory()
    if size * each > there:
        raise ConfigError(
            f"{setting}: {size:,} rows take {size * each / 1e9:,.1f} GB, and this process may use "
            f"{there / 1e9:,.1f} GB; make it smaller"
        )


def usable_memory() -> int:
    """Return the bytes that this process may use: the machine's, or its cgroup's limit, as of a pod."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(there, memory_limit(Path("/sys/fs/cgroup")) or there)


def memory_limit(cgroups: Path) -> int | None:
    """Return the limit that cgroups set (v2, or v1); None where they set none."""
    for file in (cgroups / "memory.max", cgroups / "memory" / "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            return int(file.read_text())
    return None


def _of_feature(name: str) -> str:
    return f"feature.{name}"
