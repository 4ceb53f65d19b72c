"""What the source has fetched, refused and seen: counters for the loop, frozen snapshots for all other threads.

Owns the counters behind one lock: the consumer's loop writes them once per chunk, any thread reads a snapshot.

The lag is that of fetching: how far the source is behind the end of its partitions, by pure functions over offsets that
others have read. What is published is the lag of learning, `app.monitoring.lag`. A record has the time that its
producer gave it. When that time is further in the future than clocks differ, the lag in seconds is not known.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from millrace.consumers.fingerprints import Sameness
from millrace.consumers.metric import PartFigures, counter, gauge
from millrace.consumers.records import Chunk, Partition

_CLOCKS_DIFFER_MS = 60_000
"""How far the clock of a producer may be ahead of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far behind one partition's reader is."""

    position: int
    """The next offset to read."""
    end: int | None
    """One past the last offset, the high watermark; None until Kafka has answered."""
    due: int | None = None
    """One past the last offset that is due; None where records need not wait."""
    readable_end: int | None
    """One past the last offset that may be read. With read_committed the first open transaction begins there."""
    records: int
    """Offsets that may be read, are due and are not read. Gaps count: they are not known before they are read."""
    seconds: float | None
    """Age of the newest record that was read, 0 when there is nothing more to read; None when not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far behind a reader of several partitions is."""

    records: int
    """The sum over the partitions."""
    seconds: float | None
    """The seconds of the partition that is furthest behind; None when known for no partition."""
    partitions: Mapping[Partition, PartitionLag]
    """The lag of each partition."""
    as_of: float
    """When this was read, in seconds since 1970."""
    ends_asked: float | None = None
    """When Kafka was asked for the ends, in seconds since 1970; None until it has answered."""


def is_in_future(time_ms: int, *, now_ms: int) -> bool:
    """Return whether the time is further ahead than clocks differ."""
    return time_ms > now_ms + _CLOCKS_DIFFER_MS


def partition_lag(
    *,
    position: int,
    end: int | None,
    fresh_ms: int | None,
    now_ms: int,
    readable_end: int | None = None,
    due: int | None = None,
) -> PartitionLag:
    """Return the lag of one partition; without `readable_end` everything may be read, without `due` everything is due.

    `fresh_ms` is the time up to which every record is known to be read. That is the later of the newest record's time
    and the moment when there was last nothing more to read. Thus the first record after a silent night does not appear
    as a lag of a whole night.
    """
    readable = end if readable_end is None else readable_end
    records = 0 if readable is None else max(0, (readable if due is None else min(readable, due)) - position)
    seconds: float | None = None
    if end is not None and records == 0:
        seconds = 0.0
    elif fresh_ms is not None and not is_in_future(fresh_ms, now_ms=now_ms):
        seconds = max(0, now_ms - fresh_ms) / 1000
    return PartitionLag(position=position, end=end, due=due, readable_end=readable, records=records, seconds=seconds)


def total_lag(partitions: Mapping[Partition, PartitionLag], *, as_of: float) -> Lag:
    """Return the lag of all partitions together."""
    known = [lag.seconds for lag in partitions.values() if lag.seconds is not None]
    return Lag(
        records=sum(lag.records for lag in partitions.values()),
        seconds=max(known, default=None),
        partitions=partitions,
        as_of=as_of,
    )


def lag_of(
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    fresh_ms: Mapping[Partition, int],
    *,
    now_s: float,
    readable_ends: Mapping[Partition, int] | None = None,
    due: Mapping[Partition, int] | None = None,
) -> Lag:
    """Return the lag of a reader whose next offsets are `positions`: those of the source, or those of the ledger."""
    partitions = {
        partition: partition_lag(
            position=position,
            end=ends.get(partition),
            fresh_ms=fresh_ms.get(partition),
            now_ms=round(now_s * 1000),
            readable_end=None if readable_ends is None else readable_ends.get(partition),
            due=None if due is None else due.get(partition),
        )
        for partition, position in positions.items()
    }
    return total_lag(partitions, as_of=now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """What was fetched of one partition in the current incarnation."""

    records: int = 0
    """Records fetched; offsets without a record do not count."""
    nbytes: int = 0
    """The size of their chunks in memory."""
    chunks: int = 0
    """Chunks, including empty ones."""
    lost: int = 0
    """Offsets that retention removed before they were fetched."""
    start: int = 0
    """The first offset that the incarnation fetched."""
    position: int = 0
    """The next offset to fetch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """An open transaction, behind which nothing of its partition may be read."""

    offset: int
    """Where it begins: the last stable offset."""
    since: float
    """When it was first seen to begin there, seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics(PartFigures):
    """What the source has done. The counters of `partitions` restart with each incarnation."""

    section: ClassVar = "Kafka"

    incarnation: int | None
    """The current incarnation; None before the first."""
    fetching: bool
    """Whether the source is fetching; False when it is paused, has ended or has failed."""
    records: int
    """Records fetched since the process started, over all incarnations."""
    nbytes: int
    """The size of their chunks in memory."""
    chunks: int
    """The number of those chunks."""
    stale_records: int
    """Records at offsets before the position, which were dropped; any value but 0 is a sign of a fault."""
    partitions: Mapping[Partition, FetchedPartition]
    """Each partition of the current incarnation."""
    waiting_partitions: tuple[Partition, ...]
    """New partitions that may not join, because the set is frozen or the run has an end."""
    lag: Lag
    """How far fetching, not training, is behind."""
    commits_accepted: int
    """Commits that Kafka accepted."""
    commits_refused: Mapping[str, int]
    """Commits that Kafka refused, by the name of the error. CommitFailedError: the group has other members."""
    last_error: str | None
    """The newest error that did not end the fetching."""
    connected: Annotated[bool, gauge("kafka_connected", "0 for long is bad: check the brokers.")]
    """1 if Kafka answered about a second ago."""
    missing: tuple[Partition, ...] = ()
    """Partitions that have had no leader for some seconds; they are not read."""
    gone: frozenset[Partition] = frozenset()
    """Those of the missing partitions whose topic has fewer partitions by now, so that nothing more comes of them."""
    recognised: Mapping[Partition, Sameness] = field(default_factory=dict)
    """Whether each partition of which something was settled before is still the same one."""
    open_transactions: Mapping[Partition, OpenTransaction] = field(default_factory=dict)
    """The first open transaction of each partition that has one; usually it is over within a second."""
    retention_ms: Mapping[str, int | None]
    """For how long Kafka keeps records, by topic; None: without limit. A topic that is absent: not known."""
    buffered_bytes: int
    """Bytes that the client has fetched and that are not in the hand-off yet."""
    loop_lag_p99_s: float
    """How late the timers of the consumer's loop were in the last half minute; above 0.1 the loop is overloaded."""
    due_after_s: float = 0.0
    """How long after its time a record is due; it is not behind before that."""
    as_of: float
    """When this was read, in seconds since 1970."""

    @property
    def commits(
        self,
    ) -> Annotated[
        Mapping[str, int] | None,
        counter(
            "commits",
            "Bad: refused grows; the training is not affected, lag tools see old offsets.",
            "outcome",
        ),
    ]:
        """Commits to the group, accepted or refused."""
        if self.incarnation is None:
            return None  # counters of what is fetched mean nothing before the first
        return {"accepted": self.commits_accepted, "refused": sum(self.commits_refused.values())}

    @property
    def lag_records(self) -> int:
        """Offsets that are not fetched yet."""
        return self.lag.records

    @property
    def lag_s(self) -> float | None:
        """Seconds by which fetching is behind."""
        return self.lag.seconds


@dataclass(slots=True)
class _Totals:
    """Counters over the life of the process."""

    records: int = 0
    nbytes: int = 0
    chunks: int = 0
    stale_records: int = 0
    commits_accepted: int = 0
    commits_refused: Counter[str] = field(default_factory=Counter)


class SourceMeter:
    """Counts what the source does. Any thread may call it; each method holds the lock briefly."""

    def __init__(self, clock: Callable[[], float] = time.time, due_after_s: float = 0.0) -> None:
        """`due_after_s`: how long after its time a record is due."""
        self._clock, self._due_after_s = clock, due_after_s
        self._lock = threading.Lock()
        self._totals = _Totals()
        self._incarnation: int | None = None
        self._fetching = False
        self._partitions: dict[Partition, FetchedPartition] = {}
        self._fresh_ms: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._ends_asked: float | None = None
        self._readable_ends: dict[Partition, int] = {}
        self._due: dict[Partition, int] = {}
        self._open_transactions: dict[Partition, OpenTransaction] = {}
        self._waiting: tuple[Partition, ...] = ()
        self._missing: tuple[Partition, ...] = ()
        self._gone: frozenset[Partition] = frozenset()
        self._recognised: dict[Partition, Sameness] = {}
        self._retention_ms: dict[str, int | None] = {}
        self._last_error: str | None = None
        self._connected = False

    def begin(self, incarnation: int, positions: Mapping[Partition, int]) -> None:
        """Record that an incarnation starts at these positions."""
        with self._lock:
            self._incarnation = incarnation
            self._fetching = True
            self._partitions.clear()
            self._fresh_ms.clear()
            self._missing, self._gone = (), frozenset()
            self._recognised.clear()
        self.joined(positions)

    def joined(self, positions: Mapping[Partition, int]) -> None:
        with self._lock:
            for partition, position in positions.items():
                self._partitions[partition] = FetchedPartition(start=position, position=position)

    def stopped(self) -> None:
        with self._lock:
            self._fetching = False

    def fetched(self, chunk: Chunk) -> None:
        """Count a chunk that was fetched."""
        with self._lock:
            before = self._partitions[chunk.partition]
            self._partitions[chunk.partition] = FetchedPartition(
                records=before.records + len(chunk),
                nbytes=before.nbytes + chunk.nbytes,
                chunks=before.chunks + 1,
                lost=before.lost + chunk.lost,
                start=before.start,
                position=chunk.end,
            )
            self._totals.records += len(chunk)
            self._totals.nbytes += chunk.nbytes
            self._totals.chunks += 1
            if len(chunk):
                self._freshen(chunk.partition, int(chunk.timestamps[-1]))

    def stale(self, records: int) -> None:
        """Count records that were dropped because they are before the position."""
        with self._lock:
            self._totals.stale_records += records

    def ends(
        self,
        ends: Mapping[Partition, int],
        readable: Mapping[Partition, int] | None = None,
        due: Mapping[Partition, int] | None = None,
        *,
        asked: float | None = None,
    ) -> None:
        """Record where the partitions end, and that Kafka has answered, which was asked at a time.

        `readable` has one past the last offset that may be read, `due` of those that are due; None where that is every
        offset.
        """
        readable = ends if readable is None else readable
        with self._lock:
            self._connected, self._ends_asked = True, asked
            self._ends, self._readable_ends, self._due = dict(ends), dict(readable), dict(due or {})
            self._open_transactions = {
                partition: self._open_transaction(partition, offset)
                for partition, offset in readable.items()
                if offset < ends.get(partition, offset)
            }
            for partition, state in self._partitions.items():
                # With nothing left to read, all that there was until now is read; see `partition_lag`.
                end = readable.get(partition, state.position + 1)
                if state.position >= min(end, self._due.get(partition, end)):
                    self._freshen(partition, round((self._clock() - self._due_after_s) * 1000))

    def unanswered(self, error: str) -> None:
        """Record that Kafka did not answer."""
        with self._lock:
            self._connected = False
            self._last_error = error

    def trouble(self, error: str) -> None:
        """Record an error that does not end the fetching."""
        with self._lock:
            self._last_error = error

    def waiting(self, partitions: Iterable[Partition]) -> None:
        """Record which new partitions may not join."""
        with self._lock:
            self._waiting = tuple(sorted(partitions))

    def missing(self, partitions: Iterable[Partition], gone: Iterable[Partition] = ()) -> None:
        """Record which partitions are missing, and which of them are gone with a part of their topic."""
        with self._lock:
            self._missing, self._gone = tuple(partitions), frozenset(gone)

    def recognised(self, sameness: Mapping[Partition, Sameness]) -> None:
        """Record whether partitions are the same as before."""
        with self._lock:
            self._recognised |= sameness

    def retention(self, retention_ms: Mapping[str, int | None]) -> None:
        """Record for how long Kafka keeps the records of each topic (None: without limit)."""
        with self._lock:
            self._retention_ms = dict(retention_ms)

    def committed(self, refusal: str | None) -> None:
        """Count a commit that Kafka accepted (None) or refused with an error of this name."""
        with self._lock:
            if refusal is None:
                self._totals.commits_accepted += 1
            else:
                self._totals.commits_refused[refusal] += 1
                self._last_error = f"a commit was refused: {refusal}"

    def snapshot(self, loop_lag_p99_s: float, buffered_bytes: int = 0) -> SourceStatistics:
        """Return all statistics, as of now."""
        with self._lock:
            now_s = self._clock()
            return SourceStatistics(
                incarnation=self._incarnation,
                fetching=self._fetching,
                records=self._totals.records,
                nbytes=self._totals.nbytes,
                chunks=self._totals.chunks,
                stale_records=self._totals.stale_records,
                partitions=dict(self._partitions),
                waiting_partitions=self._waiting,
                missing=self._missing,
                gone=self._gone,
                recognised=dict(self._recognised),
                lag=self._lag(now_s),
                open_transactions=dict(self._open_transactions),
                commits_accepted=self._totals.commits_accepted,
                commits_refused=dict(self._totals.commits_refused),
                last_error=self._last_error,
                connected=self._connected,
                retention_ms=dict(self._retention_ms),
                buffered_bytes=buffered_bytes,
                loop_lag_p99_s=loop_lag_p99_s,
                due_after_s=self._due_after_s,
                as_of=now_s,
            )

    def _lag(self, now_s: float) -> Lag:
        lag = lag_of(
            {partition: state.position for partition, state in self._partitions.items()},
            self._ends,
            self._fresh_ms,
            now_s=now_s - self._due_after_s,
            readable_ends=self._readable_ends,
            due=self._due,
        )
        return replace(lag, as_of=now_s, ends_asked=self._ends_asked)

    def _open_transaction(self, partition: Partition, offset: int) -> OpenTransaction:
        before = self._open_transactions.get(partition)
        if before is not None and before.offset == offset:
            return before
        return OpenTransaction(offset=offset, since=self._clock())

    def _freshen(self, partition: Partition, fresh_ms: int) -> None:
        """Move the partition's fresh time forward. Only a time in the future is replaced by an earlier one."""
        before = self._fresh_ms.get(partition, 0)
        in_future = is_in_future(before, now_ms=round(self._clock() * 1000))
        self._fresh_ms[partition] = fresh_ms if in_future else max(fresh_ms, before)
