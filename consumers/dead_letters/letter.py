"""Dead letters: the form of a record that was set aside, and the interface of the sinks that accept it.

Owns the letter, the Protocol of its sinks, and the sink that is used when no topic is configured; runs anywhere and
does not import aiokafka. The sink that writes to a topic is in `consumers.dead_letters.producer`.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple, Protocol, TypeAlias

from millrace.consumers.metric import PartFigures, counter, gauge
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Headers, Partition

HEADER_PREFIX = "millrace."
"""The prefix of the headers that millrace adds."""
_HEADER = 5
"""Bytes of Confluent's wire format before what a schema describes."""
_LETTER_BYTES = 512
"""The size of a letter besides the key, value and headers of its record."""


class Absence(StrEnum):
    """Why a letter says only where its record is. The header `millrace.without_record` holds the value."""

    UNREAD = "unread"
    """Not read again yet: the sender reads it before it sends the letter."""
    REMOVED = "removed"
    """Kafka has no record at its offset any more: retention or compaction has removed it."""
    LATE = "late"
    """Kafka did not give the record in time."""
    TOO_MANY = "too_many"
    """So many letters waited that reading the record would have held them up."""


class DeadLetter(NamedTuple):
    """A record that was set aside, with its origin and the reason."""

    partition: Partition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    reason: Reason
    field: str | None
    """The field that the reason is about; None where it is not about one field."""
    model: str
    """The `name` of the config that set it aside."""
    detail: str | None = None
    """What is wrong with the schema that wrote the record, in words; None where the record is at fault."""
    framed: bool = False
    """Whether values are in Confluent's wire format: a zero byte, the number of a schema, what it describes."""
    absent: Absence | None = None
    """Why it has no timestamp, key, value and headers; None where it has those of the record."""

    @property
    def schema(self) -> int | None:
        """The number of the schema that wrote the record; None where its value names none."""
        value = self.value if self.framed else None
        named = value is not None and len(value) >= _HEADER and not value[0]
        return int.from_bytes(value[1:_HEADER]) if value is not None and named else None

    @property
    def nbytes(self) -> int:
        """Its approximate size in memory."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers) if self.headers else 0
        return _LETTER_BYTES + len(self.key or b"") + len(self.value or b"") + headers

    def all_headers(self) -> list[tuple[str, bytes]]:
        """Return the headers of the letter: ours, then the record's own, except those that begin with our prefix."""
        partition, offset, time_ms, _, _, headers, reason, field, model, detail, framed, absent = self
        where, why, name = _shared_headers(partition, reason, field, model)
        ours = [*where, ("millrace.offset", b"%d" % offset), ("millrace.timestamp", b"%d" % time_ms), *why]
        if framed and (schema := self.schema) is not None:
            ours.append(("millrace.schema", b"%d" % schema))
        if detail is not None:
            ours.append(("millrace.detail", detail.encode()))
        ours.append(name)
        if absent is not None:
            ours.append(("millrace.without_record", absent.value.encode()))
        if headers:
            ours += [(name, value) for name, value in headers if not name.startswith(HEADER_PREFIX)]
        return ours


_Header: TypeAlias = tuple[str, bytes]


@lru_cache(1024)
def _shared_headers(
    partition: Partition, reason: Reason, field: str | None, model: str
) -> tuple[tuple[_Header, ...], tuple[_Header, ...], _Header]:
    """Return the headers that many letters have alike: of the partition, of the reason, of the model."""
    topic, number = partition
    about = () if field is None else (("millrace.field", field.encode()),)
    return (
        (("millrace.topic", topic.encode()), ("millrace.partition", b"%d" % number)),
        (("millrace.reason", reason.value.encode()), *about),
        ("millrace.name", model.encode()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterStatistics(PartFigures):
    """What a sink of dead letters has done. put = acknowledged + waiting."""

    section: ClassVar = "Kafka"

    put: Annotated[
        int,
        counter("dead_letters", "Bad: more than a few; millrace_records_set_aside_total names the reasons."),
    ]
    """Dead letters of records that were set aside."""
    by_reason: Mapping[Reason, int]
    """The same, by reason."""
    fields: Mapping[Reason, str]
    """The field at fault in the newest letter of a reason that is about one field."""
    acknowledged: Annotated[
        int,
        counter("dead_letters_acknowledged", "Bad: it stands still while millrace_dead_letters_total grows."),
    ]
    """Dead letters that their topic has acknowledged; without a topic, all of them."""
    waiting: Annotated[
        int, gauge("dead_letters_waiting", "Bad: not 0 for long, as no checkpoint is made before they are.")
    ]
    """Dead letters that their topic has not acknowledged."""
    # Near the capacity, the topic accepts fewer letters than records are set aside.
    waiting_bytes: Annotated[int, gauge("dead_letters_waiting_bytes", "Bad: near millrace_dead_letters_limit_bytes.")]
    """Bytes of the dead letters that wait."""
    capacity_bytes: Annotated[int | None, gauge("dead_letters_limit_bytes", "")]
    """The most bytes of dead letters that may wait before decoding waits for them. Absent if no topic is set."""
    peak_bytes: int
    """The most bytes that ever waited."""
    shortened: int
    """Letters that were too large for the topic, of which only the beginning of the value was sent."""
    last_error: str | None
    """Why the newest attempt failed; None once one has succeeded again."""
    as_of: float
    """Monotonic clock, when this was read."""

    def in_words(self, reason: Reason) -> str:
        """Return a reason as a sentence names it: `missing (field 'price')`."""
        field, words = self.fields.get(reason), reason.value.replace("_", " ")
        return words if field is None else f"{words} (field {field!r})"


def never_stopped() -> bool:
    """Return False: the caller of `put` waits for room without limit."""
    return False


class DeadLetters(Protocol):
    """Accepts the records that are set aside. Any thread may use it."""

    def put(self, letters: Sequence[DeadLetter], stopped: Callable[[], bool] = never_stopped) -> int:
        """Accept the letters in their order, and when full wait for room until `stopped` is true.

        Return how many are accepted. Raises DeadLettersStopped after `stop`.
        """

    def put_at_once(self, letter: DeadLetter) -> None:
        """Accept the letter even when full.

        It is for a thread that may not wait, puts only small letters, and puts none while `full` is true. The sink
        reads the records of those that are `Absence.UNREAD` before it sends them.
        """

    @property
    def full(self) -> bool:
        """Whether the letters that wait have reached the capacity."""

    @property
    def stalled_s(self) -> float:
        """For how long letters have waited without one being acknowledged, seconds; 0 where none waits."""

    def sequence(self) -> int:
        """Return the number of the letter that was accepted last; the first is 1."""

    def wait_acknowledged(self, sequence: int, timeout_s: float) -> bool:
        """Wait until every letter up to this number is acknowledged. Return whether that is so."""

    def statistics(self) -> DeadLetterStatistics:
        """Return what the sink holds and has done."""

    def stop(self, deadline_s: float) -> int:
        """Send the letters that wait, within the deadline. Return how many were abandoned."""


class ReasonCounts:
    """The letters by their reason. Not locked: that is its owner's to do."""

    def __init__(self) -> None:
        self._counts: Counter[Reason] = Counter()
        self._fields: dict[Reason, str] = {}

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Count the letters, and remember the fields that they are about."""
        self._counts.update([letter.reason for letter in letters])
        self._fields.update({letter.reason: letter.field for letter in letters if letter.field is not None})

    def by_reason(self) -> dict[Reason, int]:
        return dict(self._counts)

    def fields(self) -> dict[Reason, str]:
        """Return the field at fault in the newest letter of each reason that is about one field."""
        return dict(self._fields)

    def total(self) -> int:
        return self._counts.total()


class CountedOnly:
    """The sink without a topic: it counts letters and does nothing else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = ReasonCounts()

    def put(self, letters: Sequence[DeadLetter], stopped: Callable[[], bool] = never_stopped) -> int:  # noqa: ARG002 - never waits
        """Count the letters, and return how many there are."""
        with self._lock:
            self._counts.add(letters)
        return len(letters)

    def put_at_once(self, letter: DeadLetter) -> None:
        with self._lock:
            self._counts.add([letter])

    @property
    def full(self) -> bool:
        """Always False: no letter waits."""
        return False

    @property
    def stalled_s(self) -> float:
        """Always 0: no letter waits."""
        return 0.0

    def sequence(self) -> int:
        with self._lock:
            return self._counts.total()

    def wait_acknowledged(self, sequence: int, timeout_s: float) -> bool:  # noqa: ARG002 - nothing to wait for
        """Return True: a letter that is counted needs no acknowledgement."""
        return True

    def statistics(self) -> DeadLetterStatistics:
        """Return the counts."""
        with self._lock:
            total = self._counts.total()
            return DeadLetterStatistics(
                put=total,
                by_reason=self._counts.by_reason(),
                fields=self._counts.fields(),
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
        """Return 0: no letter waits, so none is abandoned."""
        return 0
