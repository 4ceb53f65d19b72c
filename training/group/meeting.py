"""The meeting: the members of a group find each other, under TensorFlow's MultiWorkerMirroredStrategy.

Before anything else uses TensorFlow's runtime, which waits for the others without a limit of its own. So the members
come here together, out of the lobby, and whoever calls has a limit.
"""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from millrace.training.group.exchange import Exchange, lost_peers
from millrace.training.group.membership import Membership
from millrace.training.group.native_wait import other_threads_run
from millrace.training.group.sums import GatheredSums
from millrace.training.group.watch import Watch
from millrace.training.model.call.replica_sums import sum_by
from millrace.training.model.setup.strategy import DeviceOptions, prepare

_JOB = "worker"
_SIGACTION_BYTES = 512
"""More than the structure has on any system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The group as this member sees it, from the meeting on."""

    membership: Membership
    strategy: Any
    exchange: Exchange
    watch: Watch


def meet(membership: Membership, options: DeviceOptions) -> Group:
    """Wait for all other members; return the group."""
    prepare(options)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({_JOB: list(membership.addresses)}),
        task_type=_JOB,
        task_id=membership.index,
        rpc_layer="grpc",
    )
    with _own_sigterm(), other_threads_run(), lost_peers("while the group met"):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    [*devices] = strategy.extended.worker_devices
    if len(devices) == 1 and "CPU" in devices[0]:
        sum_by(strategy, GatheredSums(membership, devices[0]))
    watch = Watch()
    watch.start()
    return Group(membership=membership, strategy=strategy, exchange=Exchange(membership, watch), watch=watch)


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the process's handler of SIGTERM: TensorFlow's runtime puts its own in its place where it meets others.

    By the C library, since Python sets a handler on the main thread alone, and does not know of the other one.
    """
    library = ctypes.CDLL(None, use_errno=True)
    handler = ctypes.create_string_buffer(_SIGACTION_BYTES)
    if library.sigaction(signal.SIGTERM, None, handler):
        raise OSError(ctypes.get_errno(), "the handler of SIGTERM cannot be read")
    try:
        yield
    finally:
        library.sigaction(signal.SIGTERM, handler, None)
