"""Sums over replicas, in as few collectives as there are types of tensors. Used while a step is being traced."""

from collections.abc import Callable, MutableMapping, Sequence
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
    # One collective can carry dense ones of one type; sparse ones stay sparse.
    alike: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        alike.setdefault((isinstance(tensor, tf.IndexedSlices), tensor.dtype), []).append(place)
    for places in alike.values():
        parts = [tensors[place] for place in places]
        total = None if own is None else own(parts)
        if total is None:
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, parts)
        for place, tensor in zip(places, total, strict=True):
            sums[place] = tensor
    return sums


def summed_by_workers(strategy: Any, tensor: Any) -> Any:
    """Return the sum of what each worker of a group has; the replicas of one process have the same rows in hand.

    For the traced call, outside of replicas. Without a group it is the tensor itself.
    """
    here = len(strategy.extended.worker_devices)
    if strategy.num_replicas_in_sync == here:
        return tensor
    [total] = strategy.run(lambda: summed(tf.distribute.get_replica_context(), [tensor / here]))
    return strategy.experimental_local_results(total)[0]
