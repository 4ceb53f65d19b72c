"""Random projections of gradients: a few hundred numbers in the place of each, made on the device.

A projection is linear, so sums and multiples of gradients show in it as they are, and it is about as long as its
gradient. The proof compares many gradients of a model, and would otherwise hold as many copies of its weights.
"""

from typing import Any

import tensorflow as tf

NUMBERS = 512
"""How many numbers a projection has; a gradient that is not larger stays as it is."""
_MIX = 0x9E3779B1
"""Knuth's multiplier: bits of its multiples are as good as random."""


def projected(tensor: Any) -> Any:
    """Return the tensor as it is, flat, where it is small; else sums of its numbers under signs that never change."""
    flat = tf.reshape(tf.cast(tf.convert_to_tensor(tensor), tf.float32), [-1])
    count = flat.shape[0]
    if count <= NUMBERS:
        return flat
    mixed = tf.range(count, dtype=tf.int64) * _MIX
    signs = 1.0 - 2.0 * tf.cast(
        tf.bitwise.bitwise_and(tf.bitwise.right_shift(mixed, tf.constant(16, tf.int64)), 1), tf.float32
    )
    padded = tf.pad(flat * signs, [[0, -count % NUMBERS]])
    return tf.reduce_sum(tf.reshape(padded, [-1, NUMBERS]), axis=0)
