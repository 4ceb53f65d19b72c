"""The meeting: the members of a group find each other, under TensorFlow's MultiWorkerMirroredStrategy.

Before anything else uses TensorFlow's runtime, which waits for the others without a limit of its own. So the members
come here together, out of the lobby, and whoever calls has a limit.
"""

import ctypes
import itertools
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe  # what TensorFlow's own Python code calls

from millrace.training.group.exchange import GROUP_KEY, Exchange, Watch, lost_peers
from millrace.training.group.membership import Membership
from millrace.training.model.call.replica_sums import sum_by
from millrace.training.model.setup.strategy import DeviceOptions, prepare

log = logging.getLogger(__name__)


MOST_BYTES = 256 * 1024
"""Of what is gathered from one member; with more, the bytes count, and an all-reduce moves fewer of them."""
_FIRST_KEY = 1000
"""Above the keys of the exchange."""


class GatheredSums:
    """Sums over the members, inside a training call: small ones are gathered, and added up by each member.

    TensorFlow's all-reduce goes around the ring of the members twice, once to add and once to hand the sums out. For
    small tensors the messages cost more than their contents, and a gathering needs half of them. All members add in the
    same sequence, so they get the same bits. What is large, sparse or on a GPU is left to TensorFlow. Each use in a
    graph takes a key of its own, in the same sequence at all members.
    """

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


_NAME = "TFE_EnableCollectiveOps"


@contextmanager
def other_threads_run() -> Iterator[None]:
    """Have the runtime wait for the others without the interpreter's lock, if this TensorFlow has that function.

    While the runtime connects the members, it waits for all of them, for up to an hour, and its Python binding holds
    the lock: no probe is answered, no signal is seen, and no other thread could end the wait. So the same function of
    its C interface is called here by ctypes, which releases the lock. Runs on the trainer's thread.
    """
    held = getattr(pywrap_tfe, _NAME)
    try:
        setattr(pywrap_tfe, _NAME, _without_lock())
    except (OSError, AttributeError) as error:
        log.warning("no thread runs while the group meets: %s", error)
    try:
        yield
    finally:
        setattr(pywrap_tfe, _NAME, held)


def _without_lock() -> Callable[[Any, bytes], None]:
    folder = Path(tf.sysconfig.get_lib())
    runtime = ctypes.CDLL(str(folder / "libtensorflow_cc.so.2"))
    statuses = ctypes.CDLL(str(folder / "libtensorflow_framework.so.2"))
    connect = getattr(runtime, _NAME)
    connect.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    connect.restype = None
    statuses.TF_NewStatus.restype = ctypes.c_void_p
    statuses.TF_Message.restype = ctypes.c_char_p
    for function in (statuses.TF_GetCode, statuses.TF_Message, statuses.TF_DeleteStatus):
        function.argtypes = [ctypes.c_void_p]

    def called(context: Any, server: bytes) -> None:
        status = statuses.TF_NewStatus()
        try:
            connect(_pointer_in(context), server, len(server), status)
            if code := statuses.TF_GetCode(status):
                text = (statuses.TF_Message(status) or b"").decode(errors="replace")
                raise tf.compat.v1.errors.exception_type_from_error_code(code)(None, None, text)
        finally:
            statuses.TF_DeleteStatus(status)

    return called


def _pointer_in(capsule: Any) -> int:
    python = ctypes.pythonapi
    python.PyCapsule_GetName.restype, python.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return int(python.PyCapsule_GetPointer(capsule, python.PyCapsule_GetName(capsule)))


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
