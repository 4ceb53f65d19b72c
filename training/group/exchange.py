"""The exchange: integers, bytes and arrays that the members of a group send each other between their calls.

Collectives of TensorFlow's own runtime, on the CPU, under keys of their own: independent of replicas and of the
strategy's. Every method is called by all members in the same sequence, on the thread that trains; nothing but what an
exchange returned may decide whether a member makes the next one.

What is sent is padded to a power of two. A collective is known to the runtime by its key for as long as the process
lives, so a key for each size, and not one for each exchange, keeps the memory constant.

A member that has ended, or does not answer in time, ends the exchange of all others with PeerLostError. Afterwards
TensorFlow refuses every collective of the process: only a new process can meet the others again.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.eager import context  # what TensorFlow's own check of the members' health calls

from millrace.training.errors import PeerLostError
from millrace.training.group.membership import Membership
from millrace.training.telemetry.group_report import CHIEF

_LOOKS_EVERY_S = 0.5


def _abort() -> None:
    context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, "another member did not answer in time")


class Watch:
    """Gives the other members up if they take too long in an exchange or a call.

    TensorFlow has a limit for each collective, and keeps it by a thread for each, which sleeps for the whole limit even
    if the collective is done at once. A group makes hundreds of collectives a second: the process would soon have no
    thread left. So collectives have no limit of their own here, and this one thread looks after all of them.

    Owns the thread `group-watch`, which ends with the process, or once it has given the others up. The thread that
    trains says for how long it may take; every collective that waits then raises, and so does each later one.
    """

    def __init__(self, abort: Callable[[], None] = _abort, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._abort, self._clock = abort, clock
        self._ends_at: float | None = None
        self._thread = threading.Thread(target=self._look, name="group-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give the others up unless the body ends in time; what is inside of another has a limit of its own."""
        outer, self._ends_at = self._ends_at, self._clock() + seconds
        try:
            yield
        finally:
            self._ends_at = outer

    def _look(self) -> None:
        while (ends_at := self._ends_at) is None or self._clock() < ends_at:
            time.sleep(_LOOKS_EVERY_S)
        self._abort()


GROUP_KEY = 700_000
"""Far above those of the strategy, which count from 1."""
_GATHER_KEY, _SEND_KEY = 100, 200
"""Of these the keys of the sizes count up."""
_WORD = 4
_SMALL = 1 << 12
"""Bytes that the first of the two gathers carries; most of what is sent fits."""
_LENGTH = 8
_MOST_SENT = 64 << 20
"""Bytes of one broadcast; larger arrays go in several."""
_MOST_COLLECTED = 4 << 20
"""Bytes of each member in one gathering for the chief; more goes in several, since all members hear all of it."""
LOST = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)
"""What a collective raises when a member is gone, or when an earlier collective has failed."""
Words = npt.NDArray[np.int32]
Row = npt.NDArray[np.int64]


@contextmanager
def lost_peers(what: str) -> Iterator[None]:
    """Turn what a failed collective raises into PeerLostError."""
    try:
        yield
    except LOST as error:
        first = (str(error).strip().splitlines() or ["no reason given"])[0][:160]
        raise PeerLostError(f"another member of the group was lost {what}: {type(error).__name__}: {first}") from error


class Exchange:
    """The collectives of one member."""

    def __init__(self, membership: Membership, watch: Watch) -> None:
        self._membership, self._watch = membership, watch
        self._device = f"/job:worker/replica:0/task:{membership.index}/device:CPU:0"
        self._gathers: dict[int, Callable[[Any], Any]] = {}
        self._sends: dict[int, Callable[[Any], Any]] = {}

    def rows(self, row: Row) -> npt.NDArray[np.int64]:
        """Return the row of every member, [members, width], by their numbers."""
        words = self._gathered(np.ascontiguousarray(row).view(np.int32))
        return np.stack([member[: 2 * len(row)].view(np.int64) for member in words])

    def gather(self, mine: bytes) -> list[bytes]:
        """Return the bytes of every member, by their numbers."""
        head = len(mine).to_bytes(_LENGTH, "little") + mine[: _SMALL - _LENGTH]
        heads = [bytes(words.tobytes()) for words in self._gathered(_as_words(head, _SMALL))]
        lengths = [int.from_bytes(head[:_LENGTH], "little") for head in heads]
        firsts = [head[_LENGTH : _LENGTH + length] for head, length in zip(heads, lengths, strict=True)]
        if (most := max(lengths)) <= _SMALL - _LENGTH:
            return firsts
        rests = self._gathered(_as_words(mine[_SMALL - _LENGTH :], most - _SMALL + _LENGTH))
        return [
            first + rest.tobytes()[: length - len(first)]
            for first, rest, length in zip(firsts, rests, lengths, strict=True)
        ]

    def collect(self, mine: bytes) -> list[bytes]:
        """Return the bytes of every member to the chief, by their numbers, and nothing to the others; of any size."""
        lengths = [int(length) for length in self.rows(np.array([len(mine)], np.int64))[:, 0]]
        found: list[list[bytes]] = [[] for _ in lengths]
        for begin in range(0, max(lengths), _MOST_COLLECTED):
            size = min(_MOST_COLLECTED, max(lengths) - begin)
            pieces = self._gathered(_as_words(mine[begin : begin + size], size))
            if self._membership.is_chief:
                for whole, piece, length in zip(found, pieces, lengths, strict=True):
                    whole.append(piece.tobytes()[: max(0, min(size, length - begin))])
        return [b"".join(whole) for whole in found] if self._membership.is_chief else []

    def spread(self, mine: bytes) -> bytes:
        """Return the chief's bytes, of any size; what the others give is left out."""
        length = int(self.rows(np.array([len(mine)], np.int64))[CHIEF, 0])
        given = np.frombuffer(mine, np.uint8) if self._membership.is_chief else np.empty(length, np.uint8)
        return self.broadcast_array(given).tobytes()

    def broadcast(self, mine: bytes) -> bytes:
        """Return the chief's bytes; what the others give is left out."""
        return self.gather(mine if self._membership.is_chief else b"")[CHIEF]

    def broadcast_array(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the chief's array, bit for bit; the others give one of the same shape and type."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        received = np.empty(raw.size, np.uint8)
        for begin in range(0, raw.size, _MOST_SENT):
            piece = raw[begin : begin + _MOST_SENT]
            sent = self._sent(_as_words(piece.tobytes(), piece.size))
            received[begin : begin + piece.size] = sent.view(np.uint8)[: piece.size]
        return received.view(array.dtype).reshape(array.shape)

    def _gathered(self, words: Words) -> npt.NDArray[np.int32]:
        """Return the words of every member, [members, a power of two]."""
        padded = _padded(words)
        size = len(padded)
        if size not in self._gathers:
            self._gathers[size] = self._gather_of(size)
        with lost_peers("in an exchange"), self._watch.within(self._membership.timeout_s):
            gathered: npt.NDArray[np.int32] = self._gathers[size](tf.constant(padded)).numpy()
        return gathered

    def _gather_of(self, size: int) -> Callable[[Any], Any]:
        def gather(words: Any) -> Any:
            with tf.device(self._device):
                return tf.raw_ops.CollectiveGatherV2(
                    input=words[tf.newaxis],
                    instance_key=_GATHER_KEY + size.bit_length(),
                    ordering_token=[],
                    **self._common,
                )

        return _traced(gather, size)

    def _sent(self, words: Words) -> npt.NDArray[np.int32]:
        """Return the chief's words."""
        padded = _padded(words)
        size = len(padded)
        if size not in self._sends:
            self._sends[size] = self._send_of(size)
        with lost_peers("while the state was shared"), self._watch.within(self._membership.timeout_s):
            sent: npt.NDArray[np.int32] = self._sends[size](tf.constant(padded)).numpy()
        return sent

    def _send_of(self, size: int) -> Callable[[Any], Any]:
        common = {**self._common, "instance_key": _SEND_KEY + size.bit_length()}

        def send(words: Any) -> Any:
            with tf.device(self._device):
                if self._membership.is_chief:
                    return tf.raw_ops.CollectiveBcastSendV2(input=words, **common)
                return tf.raw_ops.CollectiveBcastRecvV2(T=tf.int32, shape=[size], **common)

        return _traced(send, size)

    @property
    def _common(self) -> dict[str, Any]:
        return {
            "group_size": self._membership.workers,
            "group_key": GROUP_KEY,
            "communication_hint": "ring",
        }


def _traced(collective: Callable[[Any], Any], size: int) -> Callable[[Any], Any]:
    function = tf.function(collective, autograph=False).get_concrete_function(tf.TensorSpec([size], tf.int32))
    call: Callable[[Any], Any] = function
    return call


def _as_words(raw: bytes, size: int) -> Words:
    """View bytes as words, filled up with zeros to `size` bytes."""
    return np.frombuffer(raw.ljust(-(-size // _WORD) * _WORD, b"\0"), np.int32)


def _padded(words: Words) -> Words:
    padded = np.zeros(1 << max(0, len(words) - 1).bit_length(), np.int32)
    padded[: len(words)] = words
    return padded
