"""Sums over replicas, in as few collectives as there are types of tensors. Used while a step is being traced."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf


def summed(context: Any, tensors: Sequence[Any]) -> list[Any]:
    """Return the tensors' sums over all replicas; those of one type travel together."""
    sums: list[Any] = [None] * len(tensors)
    for places in _alike(tensors):
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, [tensors[place] for place in places])
        for place, tensor in zip(places, total, strict=True):
            sums[place] = tensor
    return sums


def _alike(tensors: Sequence[Any]) -> Iterable[Sequence[int]]:
    """Group the places of tensors that one collective can carry: dense ones by their type; sparse ones stay sparse."""
    places: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault((isinstance(tensor, tf.IndexedSlices), tensor.dtype), []).append(place)
    return places.values()
