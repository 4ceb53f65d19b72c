"""Sums over replicas, in as few collectives as there are types of tensors. Used while a step is being traced."""

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

Sums = Callable[[Sequence[Any]], list[Any] | None]
"""Sums tensors of one type up over all replicas; None where it leaves them to the strategy."""
_OWN: MutableMapping[Any, Sums] = WeakKeyDictionary()
"""By strategy."""


def sum_by(strategy: Any, sums: Sums) -> None:
    """Have the sums under this strategy made by `sums`, as far as it takes them on."""
    _OWN[strategy] = sums


def summed(context: Any, tensors: Sequence[Any]) -> list[Any]:
    """Return the tensors' sums over all replicas; those of one type travel together."""
    sums: list[Any] = [None] * len(tensors)
    own = _OWN.get(context.strategy)
    for places in _alike(tensors):
        parts = [tensors[place] for place in places]
        total = None if own is None else own(parts)
        if total is None:
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, parts)
        for place, tensor in zip(places, total, strict=True):
            sums[place] = tensor
    return sums


def _alike(tensors: Sequence[Any]) -> Iterable[Sequence[int]]:
    """Group the places of tensors that one collective can carry: dense ones by their type; sparse ones stay sparse."""
    places: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault((isinstance(tensor, tf.IndexedSlices), tensor.dtype), []).append(place)
    return places.values()
