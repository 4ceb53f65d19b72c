"""What the source has fetched, refused and seen: counters for the loop, frozen snapshots for everybody else.

Owns the counters behind one lock: the consumer's loop writes them once a chunk, any thread reads a snapshot.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from consumers.fingerprints import Sameness
from consumers.kafka.lag import Lag, lag_of, of_the_future
from consumers.records import Chunk, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """What was fetched of one partition in the present incarnation."""

    records: int = 0
    """Records, without the offsets that hold none."""
    nbytes: int = 0
    """Their weight in memory."""
    chunks: int = 0
    """Chunks, empty ones included."""
    lost: int = 0
    """Offsets that retention removed before they were fetched."""
    start: int = 0
    """Where the incarnation began to fetch it."""
    position: int = 0
    """The next offset to be fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics:
    """What the source has done. The counters of `partitions` begin anew with each incarnation."""

    incarnation: int | None
    """The one under way; None before the first."""
    fetching: bool
    """Whether it is fetching; False when paused, ended or failed."""
    records: int
    """Fetched since the process began, over all incarnations."""
    nbytes: int
    """Their weight in memory."""
    chunks: int
    """The chunks that they came in."""
    stale_records: int
    """Fetched at offsets before the position and dropped; anything but 0 is worth a look."""
    partitions: Mapping[Partition, FetchedPartition]
    """One by one, of the present incarnation."""
    waiting_partitions: tuple[Partition, ...]
    """New partitions that may not join by themselves: the set is frozen, or the run has an end."""
    lag: Lag
    """How far the fetching, not the learning, is behind."""
    commits_accepted: int
    """Commits that Kafka took."""
    commits_refused: Mapping[str, int]
    """Commits that Kafka did not take, by the name of the error. CommitFailedError: strangers are in the group."""
    last_error: str | None
    """The newest trouble that was lived with."""
    connected: bool
    """Whether Kafka answered when it was last asked, about a second ago."""
    missing: tuple[Partition, ...] = ()
    """Partitions that Kafka does not have, or has no leader for, since some seconds; nothing is read of them."""
    recognised: Mapping[Partition, Sameness] = field(default_factory=dict)
    """Whether partitions of which something was settled before are known to be still the same."""
    retention_ms: Mapping[str, int | None]
    """For how long Kafka keeps records, by topic; None: it removes none for their age. A topic not here: not known."""
    buffered_bytes: int
    """What the client has fetched and nobody has taken yet; it comes before the hand-off."""
    loop_lag_p99_s: float
    """How late the consumer's loop was for its timers over the last half minute; above 0.1 it is overloaded."""
    as_of: float
    """Seconds since 1970, when this was read."""

    @property
    def lag_records(self) -> int:
        """Offsets that wait to be fetched."""
        return self.lag.records

    @property
    def lag_s(self) -> float | None:
        """Seconds that the fetching is behind."""
        return self.lag.seconds


@dataclass(slots=True)
class _Totals:
    """Plain counters over the life of the process."""

    records: int = 0
    nbytes: int = 0
    chunks: int = 0
    stale_records: int = 0
    commits_accepted: int = 0
    commits_refused: Counter[str] = field(default_factory=Counter)


class SourceMeter:
    """Counts what the source does. Each method takes the lock for a moment."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._totals = _Totals()
        self._incarnation: int | None = None
        self._fetching = False
        self._partitions: dict[Partition, FetchedPartition] = {}
        self._fresh_ms: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._waiting: tuple[Partition, ...] = ()
        self._missing: tuple[Partition, ...] = ()
        self._recognised: dict[Partition, Sameness] = {}
        self._retention_ms: dict[str, int | None] = {}
        self._last_error: str | None = None
        self._connected = False

    def begin(self, incarnation: int, positions: Mapping[Partition, int]) -> None:
        """An incarnation begins at these positions."""
        with self._lock:
            self._incarnation = incarnation
            self._fetching = True
            self._partitions.clear()
            self._fresh_ms.clear()
            self._missing = ()
            self._recognised.clear()
        self.joined(positions)

    def joined(self, positions: Mapping[Partition, int]) -> None:
        """Partitions join at these positions."""
        with self._lock:
            for partition, position in positions.items():
                self._partitions[partition] = FetchedPartition(start=position, position=position)

    def stopped(self) -> None:
        """Nothing is fetched any more."""
        with self._lock:
            self._fetching = False

    def fetched(self, chunk: Chunk) -> None:
        """A chunk was made."""
        with self._lock:
            now = self._partitions[chunk.partition]
            self._partitions[chunk.partition] = FetchedPartition(
                records=now.records + len(chunk),
                nbytes=now.nbytes + chunk.nbytes,
                chunks=now.chunks + 1,
                lost=now.lost + chunk.lost,
                start=now.start,
                position=chunk.end,
            )
            self._totals.records += len(chunk)
            self._totals.nbytes += chunk.nbytes
            self._totals.chunks += 1
            if len(chunk):
                self._freshen(chunk.partition, int(chunk.timestamps[-1]))

    def stale(self, records: int) -> None:
        """Records from before the position were dropped."""
        with self._lock:
            self._totals.stale_records += records

    def ends(self, ends: Mapping[Partition, int]) -> None:
        """Kafka answered: the partitions end here."""
        with self._lock:
            self._connected = True
            self._ends = dict(ends)
            for partition, state in self._partitions.items():
                if state.position >= ends.get(partition, state.position + 1):
                    self._freshen(partition, round(self._clock() * 1000))

    def unanswered(self, error: str) -> None:
        """Kafka did not answer."""
        with self._lock:
            self._connected = False
            self._last_error = error

    def trouble(self, error: str) -> None:
        """Something went wrong that is lived with."""
        with self._lock:
            self._last_error = error

    def waiting(self, partitions: Iterable[Partition]) -> None:
        """These partitions are new and may not join."""
        with self._lock:
            self._waiting = tuple(sorted(partitions))

    def missing(self, partitions: Iterable[Partition]) -> None:
        """These partitions are not there."""
        with self._lock:
            self._missing = tuple(partitions)

    def recognised(self, found: Mapping[Partition, Sameness]) -> None:
        """These partitions were looked at."""
        with self._lock:
            self._recognised |= found

    def retention(self, kept_ms: Mapping[str, int | None]) -> None:
        """Kafka keeps the topics' records for so long."""
        with self._lock:
            self._retention_ms = dict(kept_ms)

    def committed(self, refusal: str | None) -> None:
        """A commit was taken, or refused with an error of this name."""
        with self._lock:
            if refusal is None:
                self._totals.commits_accepted += 1
            else:
                self._totals.commits_refused[refusal] += 1
                self._last_error = f"a commit was refused: {refusal}"

    def snapshot(self, loop_lag_p99_s: float, buffered_bytes: int = 0) -> SourceStatistics:
        """Everything, as of now."""
        with self._lock:
            now_s = self._clock()
            positions = {partition: state.position for partition, state in self._partitions.items()}
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
                recognised=dict(self._recognised),
                lag=lag_of(positions, self._ends, self._fresh_ms, now_s=now_s),
                commits_accepted=self._totals.commits_accepted,
                commits_refused=dict(self._totals.commits_refused),
                last_error=self._last_error,
                connected=self._connected,
                retention_ms=dict(self._retention_ms),
                buffered_bytes=buffered_bytes,
                loop_lag_p99_s=loop_lag_p99_s,
                as_of=now_s,
            )

    def _freshen(self, partition: Partition, fresh_ms: int) -> None:
        """It only grows, but for a time of the future, which holds no longer than until the next one."""
        before = self._fresh_ms.get(partition, 0)
        foreseen = of_the_future(before, now_ms=round(self._clock() * 1000))
        self._fresh_ms[partition] = fresh_ms if foreseen else max(fresh_ms, before)
