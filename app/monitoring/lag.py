"""The learning's lag: what the ledger has settled against where the partitions end. Pure; runs anywhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from millrace.app.monitoring.models import PartitionLagView
from millrace.app.monitoring.snapshot import Snapshot
from millrace.consumers.fingerprints import Sameness
from millrace.consumers.kafka.statistics import is_in_future
from millrace.consumers.records import Partition

_SHOWN: Mapping[Sameness | None, Literal["same", "unknown"]] = {Sameness.SAME: "same", Sameness.UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntLag:
    """How far behind the learning is."""

    records: int | None
    """Offsets that are not learnt yet; None while the end of a partition is unknown."""
    seconds: float | None
    """How long ago the newest thing that was learnt was written; None while not known, or where that is to come."""
    partitions: Mapping[Partition, float | None] = field(default_factory=dict)
    """The same of each partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """Up to when all that was due had been learnt, seconds since 1970; what is None or not here was never so."""

    all: float | None = None
    partitions: Mapping[Partition, float] = field(default_factory=dict)


def caught_up(snapshot: Snapshot, before: CaughtUp) -> CaughtUp:
    """Return when each partition was last caught up, with this snapshot taken into account."""
    counts = {partition: behind(snapshot, partition) for partition in _read(snapshot)}
    due = snapshot.at - snapshot.source.due_after_s
    now = {partition: due for partition, records in counts.items() if records == 0}
    everywhere = bool(counts) and len(now) == len(counts)
    return CaughtUp(all=due if everywhere else before.all, partitions={**before.partitions, **now})


def learnt_lag(snapshot: Snapshot, caught_up: CaughtUp) -> LearntLag:
    """Return how far behind the learning is, in records and seconds.

    Everything is learnt up to the newest record of the last call, or to the moment when last there was nothing more to
    learn, whichever is later: so one record after a silent night does not look like a night's lag. The fetching's own
    lag, which is known for each partition, is a lower bound; alone it says nothing. Partitions that Kafka does not have
    are no part of it: a problem names them, and what is behind in them nobody knows.
    """
    counts = {partition: behind(snapshot, partition) for partition in _read(snapshot)}
    known = [count for count in counts.values() if count is not None]
    records = sum(known) if known and len(known) == len(counts) else None
    learnt_to = None if snapshot.posting is None else snapshot.posting.learnt_to_ms
    # A record is not behind before it is due.
    now = snapshot.at - snapshot.source.due_after_s
    partitions = dict[Partition, float | None]()
    for partition, count in counts.items():
        # A partition is learnt up to the last record of its last settled chunk.
        settled, fetched = snapshot.fingerprints.get(partition), snapshot.source.lag.partitions.get(partition)
        partitions[partition] = _seconds(
            now,
            count,
            None if settled is None else settled.timestamp_ms,
            caught_up.partitions.get(partition),
            None if fetched is None else fetched.seconds,
        )
    # What was learnt of other partitions meanwhile says nothing of those that a transaction holds.
    held = [seconds for partition in snapshot.source.open_transactions if (seconds := partitions.get(partition))]
    fetching = [lag.seconds for partition, lag in snapshot.source.lag.partitions.items() if partition in counts]
    furthest = max((seconds for seconds in fetching if seconds is not None), default=None)
    seconds = _seconds(now, records, learnt_to, caught_up.all, furthest) if counts else None
    return LearntLag(records=records, seconds=None if seconds is None else max([seconds, *held]), partitions=partitions)


def _read(snapshot: Snapshot) -> list[Partition]:
    """Return the ledger's partitions that are there."""
    return [partition for partition in snapshot.ledger.partitions if partition not in snapshot.source.missing]


def _seconds(
    now: float, records: int | None, learnt_to_ms: int | None, caught_up_at: float | None, fetching: float | None
) -> float | None:
    if records == 0:
        return 0.0
    if learnt_to_ms is not None and is_in_future(learnt_to_ms, now_ms=round(now * 1000)):
        return None
    known = [moment for moment in (None if learnt_to_ms is None else learnt_to_ms / 1000, caught_up_at) if moment]
    return max(0.0, now - max(known), fetching or 0.0) if known else None


def retention_s_left(snapshot: Snapshot, lag: LearntLag) -> float | None:
    """Return the seconds until Kafka may remove, for its age, the oldest record that is not learnt.

    None where that is not known, or will never be; the whole retention where everything is learnt.
    """
    if lag.records is None or lag.seconds is None:
        return None
    kept_ms = snapshot.source.retention_ms
    waiting = {partition.topic for partition in snapshot.ledger.partitions if behind(snapshot, partition)}
    topics = waiting or set(kept_ms)
    if not topics <= kept_ms.keys():
        return None
    finite = [kept for topic in topics if (kept := kept_ms[topic]) is not None]
    return max(0.0, min(finite) / 1000 - lag.seconds) if finite else None


def partition_lags(snapshot: Snapshot, lag: LearntLag) -> Mapping[str, PartitionLagView]:
    """Return each partition's lag, by `topic:number`."""
    views, source = {}, snapshot.source
    for partition, settled in snapshot.ledger.partitions.items():
        fetching, blocking = source.lag.partitions.get(partition), source.open_transactions.get(partition)
        views[str(partition)] = PartitionLagView(
            position=settled.position,
            fetched=None if fetching is None else fetching.position,
            end=None if fetching is None else fetching.end,
            readable_end=None if blocking is None else blocking.offset,
            lag_records=behind(snapshot, partition),
            lag_s=lag.partitions.get(partition),
            same_topic=_SHOWN.get(source.recognised.get(partition)),
        )
    return views


def behind(snapshot: Snapshot, partition: Partition) -> int | None:
    """Return the number of its offsets that are not learnt yet; None while its end is unknown.

    What lies behind an open transaction counts, as in Kafka's own tools. While Kafka does not answer, records may come
    of which nobody here knows.
    """
    fetching = snapshot.source.lag.partitions.get(partition) if snapshot.source.connected else None
    end = None if fetching is None else fetching.end if fetching.due is None else fetching.due
    return None if end is None else max(0, end - snapshot.ledger.partitions[partition].position)
