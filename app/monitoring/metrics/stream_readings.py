"""Readings of the stream: what came from Kafka, what became of it, how far behind the learning is. Pure."""

from collections.abc import Iterator

from millrace.app.monitoring.lag import behind, retention_s_left
from millrace.app.monitoring.metrics.reading import Distribution, Reading, by_label, known
from millrace.app.monitoring.observer import Observation
from millrace.app.monitoring.record_flow import balanced, process_flow_of
from millrace.app.monitoring.snapshot import Snapshot
from millrace.app.monitoring.throughput import catch_up_s, queue_of
from millrace.consumers.reasons import Reason
from millrace.pipelines.stream.offset_counts import OffsetCounts
from millrace.training.telemetry.meter import FRESHNESS_BOUNDS_S, Meterings


def of_the_stream(observation: Observation) -> Iterator[Reading]:
    """Yield the readings of the stream."""
    snapshot = observation.snapshot
    yield from _records(snapshot)
    yield from _history(snapshot)
    yield from _rates(observation)
    yield from _lag(observation)
    yield from _memory(snapshot)
    yield from _kafka(snapshot)
    yield from _letters(snapshot)


def _records(snapshot: Snapshot) -> Iterator[Reading]:
    """Yield the counters of records; by the law, fetched = learnt + set aside + skipped + held + discarded."""
    flow, tally = process_flow_of(snapshot), snapshot.ledger.tally
    yield Reading("records_fetched_total", flow.fetched)
    yield Reading("records_learnt_total", tally.learnt)
    for reason in Reason:
        yield Reading("records_set_aside_total", tally.set_aside.get(reason, 0), (reason.value,))
    yield Reading("records_skipped_total", sum(tally.skipped.values()))
    cut = [name for name, field in snapshot.settings.records.features.items() if field.varies]
    yield from by_label("records_truncated_total", {name: tally.truncated.get(name, 0) for name in cut})
    yield Reading("records_held", flow.held)
    yield Reading("records_discarded_total", flow.discarded)
    yield Reading("balanced", balanced(snapshot))
    yield Reading("offsets_empty_total", tally.gaps)
    yield Reading("offsets_lost_total", tally.lost)
    yield Reading("blocks_dropped_total", snapshot.ledger.dropped_blocks)
    if snapshot.fetching_began:
        yield Reading("fetched_bytes_total", snapshot.source.nbytes)
        yield Reading("stale_records_total", snapshot.source.stale_records)


def _history(snapshot: Snapshot) -> Iterator[Reading]:
    partitions = snapshot.ledger.partitions.values()
    histories = [history for partition in partitions for history in partition.histories]
    counts = sum(histories, OffsetCounts())
    outcomes = {
        "learnt": counts.learnt,
        "set_aside": sum(counts.set_aside.values()),
        "skipped": sum(counts.skipped.values()),
        "empty": counts.gaps,
        "lost": counts.lost,
    }
    yield from by_label("history_offsets", outcomes)
    yield Reading("history_settled_offsets", sum(history.settled for history in histories))
    yield Reading("partitions_begun_anew", len(histories) - len(partitions))


def _rates(observation: Observation) -> Iterator[Reading]:
    meter = observation.snapshot.meter
    yield from by_label("learnt_records_per_second", meter.records_per_s)
    yield from known("arriving_records_per_second", observation.arriving_per_s)
    yield Reading("calls_total", meter.calls)
    yield Reading("staleness_seconds", _staleness(meter))


def _staleness(meter: Meterings) -> Distribution:
    return Distribution(FRESHNESS_BOUNDS_S, meter.freshness_counts, meter.freshness_sum_s)


def _lag(observation: Observation) -> Iterator[Reading]:
    snapshot, lag = observation.snapshot, observation.lag
    yield from known("lag_records", lag.records)
    yield from known("lag_seconds", lag.seconds)
    yield from known("catch_up_seconds", catch_up_s(observation))
    yield from known("retention_left_seconds", retention_s_left(snapshot, lag))
    fetching = snapshot.source.lag.partitions
    for partition, settled in snapshot.ledger.partitions.items():
        labels = (partition.topic, str(partition.number))
        yield Reading("partition_position_offset", settled.position, labels)
        yield from known("partition_lag_seconds", lag.partitions.get(partition), *labels)
        end = fetching[partition].end if partition in fetching else None
        if partition in fetching:
            yield Reading("partition_fetched_offset", fetching[partition].position, labels)
        if end is not None:
            yield Reading("partition_end_offset", end, labels)
        yield from known("partition_lag_records", behind(snapshot, partition), *labels)
    waiting = len(snapshot.source.waiting_partitions)
    yield Reading("partitions_read", len(snapshot.ledger.partitions))
    yield Reading("partitions", len(snapshot.ledger.partitions) + waiting)


def _memory(snapshot: Snapshot) -> Iterator[Reading]:
    yield Reading("memory_limit_bytes", snapshot.settings.memory.limit)
    if (queue := queue_of(snapshot)) is not None:
        parts = ("client", "handoff", "decoding", "assembling", "blocks")
        yield from by_label("memory_bytes", {part: getattr(queue, part) for part in parts})


def _kafka(snapshot: Snapshot) -> Iterator[Reading]:
    source = snapshot.source
    yield Reading("kafka_connected", source.connected)
    if snapshot.fetching_began:
        refused = sum(source.commits_refused.values())
        yield from by_label("commits_total", {"accepted": source.commits_accepted, "refused": refused})


def _letters(snapshot: Snapshot) -> Iterator[Reading]:
    letters = snapshot.letters
    yield Reading("dead_letters_total", letters.put)
    yield Reading("dead_letters_acknowledged_total", letters.acknowledged)
    yield Reading("dead_letters_waiting", letters.waiting)
    yield Reading("dead_letters_waiting_bytes", letters.waiting_bytes)
    yield from known("dead_letters_limit_bytes", letters.capacity_bytes)
