"""Sums over the members of a group, inside a training call: small ones are gathered, and added up by each member.

TensorFlow's all-reduce goes around the ring of the members twice, once to add and once to hand the sums out. For small
tensors the messages cost more than what they carry, and a gathering needs half of them. All members add in the same
sequence, so they get the same bits. What is large, sparse or on a GPU is left to TensorFlow.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from millrace.training.group.exchange import GROUP_KEY
from millrace.training.group.membership import Membership

MOST_BYTES = 256 * 1024
"""Of what is gathered from one member; with more, the bytes count, and an all-reduce moves fewer of them."""
_FIRST_KEY = 1000
"""Above the keys of the exchange."""


class GatheredSums:
    """Sums up by gathering. Each use in a graph takes a key of its own, in the same sequence at all members."""

    def __init__(self, membership: Membership, device: str) -> None:
        self._membership, self._device = membership, device
        self._keys = itertools.count(_FIRST_KEY)

    def __call__(self, tensors: Sequence[Any]) -> list[Any] | None:
        """Return the sums of dense tensors of one type, while a step is traced; None where an all-reduce is better."""
        if any(isinstance(tensor, tf.IndexedSlices) or not tensor.shape.is_fully_defined() for tensor in tensors):
            return None
        if sum(tensor.shape.num_elements() for tensor in tensors) * tensors[0].dtype.size > MOST_BYTES:
            return None
        with tf.device(self._device):
            gathered = tf.raw_ops.CollectiveGatherV2(
                input=tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)[tf.newaxis],
                group_size=self._membership.workers,
                group_key=GROUP_KEY,
                instance_key=next(self._keys),
                ordering_token=[],
                communication_hint="ring",
            )
            total = tf.add_n(tf.unstack(gathered, self._membership.workers))
            portions = tf.split(total, [tensor.shape.num_elements() for tensor in tensors])
            return [tf.reshape(part, tensor.shape) for part, tensor in zip(portions, tensors, strict=True)]
