"""The learning's lag: what the ledger has settled against where the partitions end. Pure; runs anywhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from app.api.models import PartitionLagView
from app.api.snapshot import Snapshot
from consumers.fingerprints import Sameness
from consumers.records import Partition

_SHOWN: Mapping[Sameness | None, Literal["same", "unknown"]] = {Sameness.SAME: "same", Sameness.UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntLag:
    """How far behind the learning is."""

    records: int | None
    """Offsets that are not learnt yet; None while the end of a partition is unknown."""
    seconds: float | None
    """How long ago the newest thing that was learnt was written; None while not known."""


def lag_in_records(snapshot: Snapshot) -> int | None:
    """Offsets that are not learnt yet, over all partitions."""
    views = partition_lags(snapshot).values()
    counts = [view.lag_records for view in views if view.lag_records is not None]
    return sum(counts) if counts and len(counts) == len(views) else None


def learnt_lag(snapshot: Snapshot, caught_up_at: float | None) -> LearntLag:
    """How far behind, in records and seconds.

    Everything is learnt up to the newest record of the last call, or to the moment when last there was nothing more to
    learn, whichever is later: so one record after a silent night does not look like a night's lag. The fetching's own
    lag, which knows each partition, is the least that it can be; alone it says nothing.
    """
    records = lag_in_records(snapshot)
    if records == 0:
        return LearntLag(records=0, seconds=0.0)
    learnt_to = None if snapshot.posting is None else snapshot.posting.learnt_to_ms
    known = [moment for moment in (None if learnt_to is None else learnt_to / 1000, caught_up_at) if moment is not None]
    if not known:
        return LearntLag(records=records, seconds=None)
    fetching = None if snapshot.source is None else snapshot.source.lag.seconds
    return LearntLag(records=records, seconds=max(0.0, snapshot.at - max(known), fetching or 0.0))


def retention_s_left(snapshot: Snapshot, lag: LearntLag) -> float | None:
    """Seconds until Kafka may remove the oldest record that is not learnt, by its age alone.

    None where that is not known, or never; the whole retention where everything is learnt.
    """
    if snapshot.source is None or lag.records is None or lag.seconds is None:
        return None
    kept_ms = snapshot.source.retention_ms
    views = partition_lags(snapshot).items()
    behind = {Partition.parse(name).topic for name, view in views if view.lag_records}
    topics = behind or set(kept_ms)
    if not topics <= kept_ms.keys():
        return None
    finite = [kept for topic in topics if (kept := kept_ms[topic]) is not None]
    return max(0.0, min(finite) / 1000 - lag.seconds) if finite else None


def partition_lags(snapshot: Snapshot) -> Mapping[str, PartitionLagView]:
    """Each partition's lag, by `topic:number`."""
    return {
        str(partition): _view(snapshot, partition, settled.position)
        for partition, settled in snapshot.ledger.partitions.items()
    }


def _view(snapshot: Snapshot, partition: Partition, position: int) -> PartitionLagView:
    fetching = None if snapshot.source is None else snapshot.source.lag.partitions.get(partition)
    end = None if fetching is None else fetching.end
    return PartitionLagView(
        position=position,
        fetched=None if fetching is None else fetching.position,
        end=end,
        lag_records=None if end is None else max(0, end - position),
        same_topic=_SHOWN.get(snapshot.source.recognised.get(partition)) if snapshot.source else None,
    )
