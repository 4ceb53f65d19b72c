"""Dead letters: what a record that was set aside looks like, and who takes it.

Owns the letter, the Protocol of its sinks, and the sink for when there is no topic for them; runs anywhere, aiokafka
is not imported here. The sink that writes to a topic is in `consumers.dead_letters.producer`.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from consumers.reasons import Reason
from consumers.records import Headers, Partition

OURS = "millrace."
"""How the names of our headers begin."""
_LETTER_BYTES = 512
"""What a letter weighs besides what its record held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that was set aside, with its origin and why."""

    partition: Partition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    reason: Reason
    field: str | None
    """The field that the reason is about, where it is about one."""
    model: str
    """The `name` of the config that set it aside."""

    @property
    def nbytes(self) -> int:
        """What it weighs while it waits."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return _LETTER_BYTES + len(self.key or b"") + len(self.value or b"") + headers

    def all_headers(self) -> list[tuple[str, bytes]]:
        """Ours first, then the record's own, but for those that would be taken for ours."""
        ours = {
            "millrace.topic": self.partition.topic,
            "millrace.partition": str(self.partition.number),
            "millrace.offset": str(self.offset),
            "millrace.timestamp": str(self.timestamp_ms),
            "millrace.reason": str(self.reason),
            "millrace.field": self.field,
            "millrace.name": self.model,
        }
        theirs = [(name, value) for name, value in self.headers if not name.startswith(OURS)]
        return [(name, text.encode()) for name, text in ours.items() if text is not None] + theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterStatistics:
    """What a sink of dead letters has done. put = acknowledged + waiting."""

    put: int
    """Letters that were ever taken."""
    by_reason: Mapping[Reason, int]
    """Of those, how many for each reason."""
    acknowledged: int
    """Letters that the topic has, on all its replicas in sync."""
    waiting: int
    """Letters that are not acknowledged yet."""
    waiting_bytes: int
    """Their weight; when it nears the capacity, the topic takes less than is set aside."""
    capacity_bytes: int | None
    """The bound of `waiting_bytes`; None where nothing ever waits."""
    peak_bytes: int
    """The most that ever waited."""
    shortened: int
    """Letters that were larger than the topic takes, and were sent with the beginning of their value."""
    last_error: str | None
    """Why the newest attempt failed; None once one has succeeded again."""
    as_of: float
    """Monotonic clock, when this was read."""


def _never() -> bool:
    return False


class DeadLetters(Protocol):
    """Takes the records that are set aside. Any thread may use it."""

    def put(self, letter: DeadLetter, stopped: Callable[[], bool] = _never) -> None:
        """Take the letter; full, wait for room. Raises DeadLettersStopped once `stopped` says so."""

    def put_at_once(self, letter: DeadLetter) -> None:
        """Take the letter, full or not: a small one, of a thread that may not wait, nor makes more while it is full."""

    @property
    def full(self) -> bool:
        """Whether as much waits as may wait."""

    def sequence(self) -> int:
        """The number of the letter that was taken last; the first is 1."""

    def wait_acknowledged(self, sequence: int, timeout_s: float) -> bool:
        """Wait until every letter up to this number is acknowledged. Whether it is."""

    def statistics(self) -> DeadLetterStatistics:
        """What it has done."""

    def stop(self, deadline_s: float) -> int:
        """Send what waits, as far as time allows. How many letters were abandoned."""


class CountedOnly:
    """No topic is configured: letters are counted, and that is all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_reason: Counter[Reason] = Counter()

    def put(self, letter: DeadLetter, stopped: Callable[[], bool] = _never) -> None:  # noqa: ARG002 - never waits
        """Count the letter."""
        self.put_at_once(letter)

    def put_at_once(self, letter: DeadLetter) -> None:
        """Count the letter."""
        with self._lock:
            self._by_reason[letter.reason] += 1

    @property
    def full(self) -> bool:
        """Never."""
        return False

    def sequence(self) -> int:
        """How many were counted."""
        with self._lock:
            return self._by_reason.total()

    def wait_acknowledged(self, sequence: int, timeout_s: float) -> bool:  # noqa: ARG002 - nothing to wait for
        """Nobody else has to know of a letter."""
        return True

    def statistics(self) -> DeadLetterStatistics:
        """The counts."""
        with self._lock:
            total = self._by_reason.total()
            return DeadLetterStatistics(
                put=total,
                by_reason=dict(self._by_reason),
                acknowledged=total,
                waiting=0,
                waiting_bytes=0,
                capacity_bytes=None,
                peak_bytes=0,
                shortened=0,
                last_error=None,
                as_of=self._clock(),
            )

    def stop(self, deadline_s: float) -> int:  # noqa: ARG002 - nothing to wait for
        """Nothing waits, so nothing is abandoned."""
        return 0
