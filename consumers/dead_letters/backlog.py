"""The backlog of dead letters: a queue that is bounded in bytes and keeps each letter until it is acknowledged.

Owns the letters that wait, under one lock: decoders put letters, the sender takes windows of the oldest and removes
them. When it is full, `put` waits, and so decoding waits: no letter is skipped. The trainer may not wait, so
`put_at_once` accepts its few letters beyond the bound, and the trainer takes no further block while `full` is true.
It ends by `close`, which makes every waiting `put` fail.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millrace.consumers.dead_letters.letter import DeadLetter, DeadLetterStatistics, ReasonCounts
from millrace.consumers.errors import DeadLettersStopped

_ASK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogOptions:
    """How much may wait."""

    capacity_bytes: int = 16 * 1024 * 1024
    """Most bytes of letters that wait for their acknowledgement. A larger letter is accepted when nothing waits."""


class Backlog:
    """A queue of letters, in the order in which they were put. Any thread may use it."""

    def __init__(self, options: BacklogOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._waiting: deque[tuple[DeadLetter, int]] = deque()
        """Each with its bytes."""
        self._counts = ReasonCounts()
        self._nbytes = self._peak_bytes = 0
        self._put = self._acknowledged = self._shortened = 0
        self._last_error: str | None = None
        self._stalled_since: float | None = None
        self._closed = False

    def put(self, letters: Sequence[DeadLetter], stopped: Callable[[], bool]) -> int:
        """Accept as many of the letters, in their order, as there is room for; wait until there is room for one.

        Return how many are accepted: none once `stopped()`. Raises DeadLettersStopped after `close`.
        """
        with self._changed:
            self._check_open()
            while letters and not self._has_room(letters[0].nbytes):
                if stopped():
                    return 0
                # `stopped` becomes true without a notification, so it is asked again every so often.
                self._changed.wait(_ASK_EVERY_S)
                self._check_open()
            sizes, left = list[int](), self._options.capacity_bytes - self._nbytes
            for letter in letters:
                left -= (nbytes := letter.nbytes)
                if left < 0 and (sizes or self._waiting):
                    break
                sizes.append(nbytes)
            self._take(letters[: len(sizes)], sizes)
        return len(sizes)

    def put_at_once(self, letter: DeadLetter) -> None:
        """Accept the letter without waiting, even beyond the capacity. Raises DeadLettersStopped after `close`."""
        with self._changed:
            self._check_open()
            self._take([letter], [letter.nbytes])

    @property
    def full(self) -> bool:
        """Whether the letters that wait have reached the capacity."""
        with self._changed:
            return self._nbytes >= self._options.capacity_bytes

    @property
    def stalled_s(self) -> float:
        """For how long letters have waited without one being acknowledged, seconds; 0 where none waits."""
        since = self._stalled_since
        return 0.0 if since is None else self._clock() - since

    def sequence(self) -> int:
        """Return how many letters were put."""
        with self._changed:
            return self._put

    def oldest(self, count: int, nbytes: int) -> Sequence[DeadLetter]:
        """Return the oldest letters without removing them: at most `count`, and at most `nbytes` but at least one."""
        with self._changed:
            window: list[DeadLetter] = []
            for letter, size in self._waiting:
                nbytes -= size
                if window and (len(window) >= count or nbytes < 0):
                    break
                window.append(letter)
            return window

    def acknowledge(self, count: int) -> None:
        """Remove the `count` oldest letters, because they are acknowledged."""
        with self._changed:
            for _ in range(count):
                _, nbytes = self._waiting.popleft()
                self._nbytes -= nbytes
            self._acknowledged += count
            self._stalled_since = self._clock() if self._waiting else None
            self._last_error = None
            self._changed.notify_all()

    def shortened(self) -> None:
        """Count a letter of which only the beginning was sent."""
        with self._changed:
            self._shortened += 1

    def failed(self, error: str) -> None:
        """Record the error of an attempt to send, which will be repeated."""
        with self._changed:
            self._last_error = error

    def wait_acknowledged(self, sequence: int, timeout_s: float) -> bool:
        """Wait until `sequence` letters are acknowledged. Return whether they are."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._acknowledged >= sequence, timeout_s)
            return self._acknowledged >= sequence

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no letter waits. Return whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def close(self) -> int:
        """Accept nothing more. Return how many letters are left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return len(self._waiting)

    def statistics(self) -> DeadLetterStatistics:
        """Return what the backlog holds and has done."""
        with self._changed:
            return DeadLetterStatistics(
                put=self._put,
                by_reason=self._counts.by_reason(),
                fields=self._counts.fields(),
                acknowledged=self._acknowledged,
                waiting=len(self._waiting),
                waiting_bytes=self._nbytes,
                capacity_bytes=self._options.capacity_bytes,
                peak_bytes=self._peak_bytes,
                shortened=self._shortened,
                last_error=self._last_error,
                as_of=self._clock(),
            )

    def _take(self, letters: Sequence[DeadLetter], sizes: Sequence[int]) -> None:
        if letters and not self._waiting:
            self._stalled_since = self._clock()
        self._waiting.extend(zip(letters, sizes, strict=True))
        self._nbytes += sum(sizes)
        self._peak_bytes = max(self._peak_bytes, self._nbytes)
        self._put += len(letters)
        self._counts.add(letters)

    def _check_open(self) -> None:
        if self._closed:
            raise DeadLettersStopped("the dead letters were stopped")

    def _has_room(self, nbytes: int) -> bool:
        return not self._waiting or self._nbytes + nbytes <= self._options.capacity_bytes
