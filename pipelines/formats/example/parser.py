"""TensorFlow's parser of Examples, prepared once: each feature of a chunk as a list of any length.

Holds TensorFlow's constants and no other state; called on any thread.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.example.framing import FLOATS, INTS, TEXTS
from millrace.pipelines.schema import Column

_AT_ROW = re.compile(r"Index: (\d+)\.")
_TYPES = {FLOATS: tf.float32, INTS: tf.int64, TEXTS: tf.string}


class FeatureLists(NamedTuple):
    """A feature of all records of a chunk."""

    values: Column
    lengths: Int64s


class ParseStop(NamedTuple):
    """TensorFlow has refused a chunk."""

    row: int | None
    """The row that it names, if it does: a hint, never a verdict."""


class ExampleParser:
    """Parses features of given kinds by TensorFlow's operation, which is prepared once."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._names = tuple(kinds)
        self._types = [_TYPES[kind] for kind in kinds.values()]
        self._splits = [tf.int64] * len(kinds)

    @cached_property
    def _keys(self) -> tuple[Any, Any]:
        """No names, and the names, as tensors: to make them at each call costs more than a short chunk does."""
        return tf.constant([], tf.string), tf.constant(self._names, tf.string)

    def __call__(self, texts: Any) -> dict[str, FeatureLists] | ParseStop:
        """Return the features of all records, or that TensorFlow refuses one of them."""
        none, names = self._keys
        try:
            parsed = tf.raw_ops.ParseExampleV2(
                serialized=texts,
                names=none,
                sparse_keys=none,
                dense_keys=none,
                ragged_keys=names,
                dense_defaults=(),
                num_sparse=0,
                sparse_types=(),
                ragged_value_types=self._types,
                ragged_split_types=self._splits,
                dense_shapes=(),
            )
        except tf.errors.InvalidArgumentError as error:
            named = _AT_ROW.search(error.message)
            row = int(named[1]) if named is not None else len(texts)
            return ParseStop(row if row < len(texts) else None)
        except UnicodeDecodeError:  # TensorFlow's text quotes bytes
            return ParseStop(None)
        lists = zip(self._names, parsed.ragged_values, parsed.ragged_row_splits, strict=True)
        return {name: FeatureLists(values.numpy(), np.diff(splits.numpy())) for name, values, splits in lists}


NO_FEATURES = ExampleParser({"": INTS})
"""Asks for next to nothing: what it refuses, any other refuses too, for it is no Example."""
