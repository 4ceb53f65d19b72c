"""The backlog of dead letters: taken in order, bounded in bytes, and kept until each is acknowledged.

Owns the letters that wait, under one lock: decoders put, the sender takes windows of the oldest and settles them.
Full, `put` waits, which holds up the decoding: nothing is skipped; the trainer, which may not wait, has its few letters
taken and draws no more. It ends by `close`, which fails whoever waits.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from consumers.dead_letters.letter import DeadLetter, DeadLetterStatistics
from consumers.errors import DeadLettersStopped
from consumers.reasons import Reason

_ASK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogOptions:
    """How much may wait, and for how long."""

    capacity_bytes: int = 16 * 1024 * 1024
    """Most bytes of letters that wait for their acknowledgement; a larger one is taken when nothing waits."""


class Backlog:
    """Letters that wait, in the order in which they were put."""

    def __init__(self, options: BacklogOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._waiting: deque[DeadLetter] = deque()
        self._by_reason: Counter[Reason] = Counter()
        self._nbytes = self._peak_bytes = 0
        self._put = self._acknowledged = self._shortened = 0
        self._last_error: str | None = None
        self._closed = False

    def put(self, letter: DeadLetter, stopped: Callable[[], bool]) -> None:
        """Take the letter, waiting for room."""
        with self._changed:
            while not self._has_room(letter):
                if stopped():
                    raise DeadLettersStopped("gave up waiting for room")
                self._changed.wait(_ASK_EVERY_S)
            self._take(letter)

    def put_at_once(self, letter: DeadLetter) -> None:
        """Take the letter, beyond the capacity where it has to be."""
        with self._changed:
            self._check_open()
            self._take(letter)

    @property
    def full(self) -> bool:
        """Whether as much waits as may wait."""
        with self._changed:
            return self._nbytes >= self._options.capacity_bytes

    def sequence(self) -> int:
        """How many were put."""
        with self._changed:
            return self._put

    def oldest(self, count: int, nbytes: int) -> Sequence[DeadLetter]:
        """The oldest letters, at most so many and, but for the first, so large. They stay until settled."""
        with self._changed:
            window: list[DeadLetter] = []
            for letter in self._waiting:
                nbytes -= letter.nbytes
                if window and (len(window) >= count or nbytes < 0):
                    break
                window.append(letter)
            return window

    def settle(self, count: int) -> None:
        """So many of the oldest are acknowledged."""
        with self._changed:
            for _ in range(count):
                self._nbytes -= self._waiting.popleft().nbytes
            self._acknowledged += count
            self._last_error = None
            self._changed.notify_all()

    def shortened(self) -> None:
        """A letter was sent with the beginning of its value alone."""
        with self._changed:
            self._shortened += 1

    def failed(self, error: str) -> None:
        """An attempt to send failed; it is made again."""
        with self._changed:
            self._last_error = error

    def wait_acknowledged(self, sequence: int, timeout_s: float) -> bool:
        """Wait until so many are acknowledged. Whether they are."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._acknowledged >= sequence, timeout_s)
            return self._acknowledged >= sequence

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until nothing waits. Whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def close(self) -> int:
        """Take nothing more. How many are left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return len(self._waiting)

    def statistics(self) -> DeadLetterStatistics:
        """What it holds and has done."""
        with self._changed:
            return DeadLetterStatistics(
                put=self._put,
                by_reason=dict(self._by_reason),
                acknowledged=self._acknowledged,
                waiting=len(self._waiting),
                waiting_bytes=self._nbytes,
                capacity_bytes=self._options.capacity_bytes,
                peak_bytes=self._peak_bytes,
                shortened=self._shortened,
                last_error=self._last_error,
                as_of=self._clock(),
            )

    def _take(self, letter: DeadLetter) -> None:
        self._waiting.append(letter)
        self._nbytes += letter.nbytes
        self._peak_bytes = max(self._peak_bytes, self._nbytes)
        self._put += 1
        self._by_reason[letter.reason] += 1

    def _check_open(self) -> None:
        if self._closed:
            raise DeadLettersStopped("the dead letters were stopped")

    def _has_room(self, letter: DeadLetter) -> bool:
        self._check_open()
        return not self._waiting or self._nbytes + letter.nbytes <= self._options.capacity_bytes
