"""FROZEN REFERENCE: `tf.io.parse_example` alone. Do not optimise it, and share no code with the product.

A case of the service calls this in the process in which it measures the product, in turns.
"""

import os
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

FEATURES, TAGS = 28, 8

SPEC = {
    "x": tf.io.FixedLenFeature([FEATURES], tf.float32),
    "hour": tf.io.FixedLenFeature([], tf.int64),
    "land": tf.io.FixedLenFeature([], tf.string),
    "tags": tf.io.RaggedFeature(tf.int64),
    "y": tf.io.FixedLenFeature([], tf.float32),
}


def records(count: int) -> list[bytes]:
    """Examples of 28 floats, an integer, a text, a list of 0 to 8 integers and a label."""
    random = np.random.default_rng(7)
    made = []
    for row in random.normal(size=(count, FEATURES)).astype(np.float32):
        feature = {
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=row)),
            "hour": tf.train.Feature(int64_list=tf.train.Int64List(value=[random.integers(24)])),
            "land": tf.train.Feature(bytes_list=tf.train.BytesList(value=[random.choice([b"DE", b"NO", b"SE"])])),
            "tags": tf.train.Feature(
                int64_list=tf.train.Int64List(value=random.integers(1000, size=random.integers(TAGS + 1)))
            ),
            "y": tf.train.Feature(float_list=tf.train.FloatList(value=[float(row[0] > 0)])),
        }
        made.append(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return made


def parse(values: Sequence[bytes]) -> int:
    """Parse a chunk into numpy arrays; return how many rows there are."""
    parsed = tf.io.parse_example(values, SPEC)
    arrays = [parsed[name].numpy() for name in ("x", "hour", "land", "y")]
    tags = parsed["tags"]
    arrays += [tags.values.numpy(), tags.row_splits.numpy()]
    return len(arrays[0])
