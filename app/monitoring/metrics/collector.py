"""The collector: one look at the service as Prometheus' text, on the HTTP side's loop.

Owns nothing but its readings. It takes one observation and turns it into families, some milliseconds; nothing is kept
between two looks, so a series goes as soon as there is nothing to tell. The process is read from /proc, which is
memory, by the collector of Prometheus' own client; where there is no /proc, those readings are not there.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from millrace.app.monitoring.all_figures import Distribution, Reading, by_label, known, one_of, readings
from millrace.app.monitoring.health import alive, ready
from millrace.app.monitoring.lag import behind, retention_s_left
from millrace.app.monitoring.metrics.catalogue import CATALOGUE
from millrace.app.monitoring.observer import Observation
from millrace.app.monitoring.problems import KINDS
from millrace.app.monitoring.snapshot import Snapshot, balanced, process_flow_of
from millrace.app.monitoring.throughput import catch_up_s, queue_of, throughput_of
from millrace.app.monitoring.verdict import ahead_of_guessing
from millrace.consumers.metric import MODEL, PREFIX
from millrace.consumers.reasons import Reason
from millrace.pipelines.stream.offset_counts import OffsetCounts
from millrace.training.telemetry.group_report import GroupReport
from millrace.training.telemetry.live_metrics import LiveSnapshot
from millrace.training.telemetry.meter import FRESHNESS_BOUNDS_S, Meterings
from millrace.training.telemetry.phases import Phase
from millrace.training.trainer.board import Posting


class ServiceCollector(Collector):
    """Collects from one service."""

    def __init__(
        self,
        look: Callable[[], Observation],
        orders: Callable[[], Mapping[tuple[str, str], int]],
        certificate_ends_at: Callable[[], float | None] | None = None,
    ) -> None:
        self._look, self._orders, self._certificate_ends_at = look, orders, certificate_ends_at
        self._of_the_process = OfTheProcess()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the text and its content type: Prometheus' own, or OpenMetrics where the client accepts it."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterable[Metric]:
        """Return the families, in the catalogue's order; those without a reading are left out."""
        observation = self._look()
        readings: dict[str, list[Reading]] = {short: [] for short in CATALOGUE}
        for reading in self._readings(observation):
            readings[reading.short].append(reading)
        name = observation.snapshot.name
        return [_family(short, name, found) for short, found in readings.items() if found]

    def _readings(self, observation: Observation) -> Iterator[Reading]:
        yield from of_the_trainer(observation)
        yield from of_the_stream(observation)
        yield from (Reading("orders_total", count, labels) for labels, count in self._orders().items())
        if self._certificate_ends_at is not None:
            yield from known("api_certificate_end_time_seconds", self._certificate_ends_at())
        yield from self._of_the_process(observation)


def _family(short: str, model: str, readings: Iterable[Reading]) -> Metric:
    metric = CATALOGUE[short]
    names = (MODEL, *metric.labels)
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=names)
    number = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = number(metric.name, metric.help, labels=names)
    for reading in readings:
        labels = (model, *reading.labels)
        if isinstance(reading.value, Distribution):
            histogram.add_metric(labels, _cumulative(reading.value), reading.value.total)
        else:
            plain.add_metric(labels, reading.value)
    return histogram if metric.kind == "histogram" else plain


def _cumulative(seen: Distribution) -> list[tuple[str, float]]:
    buckets, below = [], 0
    for bound, count in zip((*seen.bounds, float("inf")), seen.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(below)))
    return buckets


def of_the_trainer(observation: Observation) -> Iterator[Reading]:
    """Yield the readings of the trainer."""
    snapshot = observation.snapshot
    yield Reading("alive", all(check.ok for check in alive(snapshot)))
    yield Reading("ready", all(check.ok for check in ready(snapshot)))
    present = {trouble.problem for trouble in observation.problems}
    yield from by_label("problem", {kind: kind in present for kind in KINDS})
    yield from _phase(snapshot)
    yield from by_label("trainer_time_ratio", throughput_of(observation).waiting)
    yield Reading("incarnation", snapshot.ledger.incarnation)
    yield Reading("brake_starts", 0 if snapshot.crash_loop is None else snapshot.crash_loop.starts)
    yield from _group(snapshot.group)
    yield from readings(snapshot.figures, snapshot.at)
    if snapshot.posting is not None:
        yield from _posted(snapshot.posting)
        yield from _saves(snapshot.posting, snapshot.at)


def _group(group: GroupReport | None) -> Iterator[Reading]:
    """Yield the group's readings; those of each worker from the chief alone, so that sums over targets are right."""
    if group is None:
        return
    yield Reading("group_workers", len(group.addresses))
    for index, member in enumerate(group.members if group.is_chief else ()):
        yield Reading("group_worker_lag_records", member.lag_records, (str(index),))
        yield Reading("group_worker_learnt_total", member.learnt, (str(index),))
        yield Reading("group_worker_waited_seconds_total", member.waited_s, (str(index),))


def _phase(snapshot: Snapshot) -> Iterator[Reading]:
    phase = snapshot.phase
    yield from one_of("phase", phase.phase, (each.value for each in Phase))
    yield Reading("phase_seconds", phase.for_s)
    yield from known("phase_limit_seconds", phase.limit_s)


def _posted(posting: Posting) -> Iterator[Reading]:
    yield Reading("step", posting.step)
    yield Reading("learning_rate", posting.learning_rate)
    yield Reading("model_parameters", posting.model.parameters)
    yield Reading("replicas", posting.model.replicas)
    yield from _live(posting.live)


def _live(live: LiveSnapshot) -> Iterator[Reading]:
    yield from by_label("live_value", live.values)
    yield from by_label("live_baseline", live.baseline)
    yield from _watched("live_watched_value", live, live.values.get(live.watch.name))
    yield from _watched("live_watched_baseline", live, live.baseline.get(live.watch.name))
    yield from _watched("live_watched_ahead", live, ahead_of_guessing(live))
    yield Reading("live_records", live.records)
    yield Reading("live_window_seconds", live.window_s)
    if live.age_s is not None:
        yield Reading("live_age_seconds", live.age_s)
    yield from by_label("live_cumulative_value", live.cumulative)
    yield Reading("live_cumulative_records", live.cumulative_records)


def _watched(name: str, live: LiveSnapshot, value: float | None) -> Iterator[Reading]:
    if value is not None:
        yield from by_label(name, {live.watch.name: value})


def _saves(posting: Posting, now: float) -> Iterator[Reading]:
    yield Reading("checkpoints_saved_total", posting.saves)
    yield Reading("checkpoints_failed_total", posting.failed_saves)
    if (save := posting.last_save) is None:
        return
    manifest = save.manifest
    yield Reading("checkpoint_number", manifest.number)
    yield Reading("checkpoint_age_seconds", max(0.0, now - manifest.created.timestamp()))
    yield Reading("checkpoint_unsaved_steps", max(0, posting.step - manifest.step))
    yield Reading("checkpoint_bytes", manifest.size)
    if save.took_s:
        yield Reading("checkpoint_took_seconds", save.took_s)
        yield Reading("checkpoint_stall_seconds", save.stall_s)


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


class OfTheProcess:
    """Reads what does not change once, and the rest each time."""

    def __init__(self) -> None:
        self._versions = (platform.python_version(), version("tensorflow"), version("keras"))
        self._process = ProcessCollector(namespace=PREFIX.rstrip("_"), registry=None)

    def __call__(self, observation: Observation) -> Iterator[Reading]:
        """Yield the readings of the process."""
        snapshot = observation.snapshot
        yield Reading("build_info", 1, (snapshot.version, *self._versions))
        yield from _deployment(snapshot)
        yield Reading("loop_lag_seconds", observation.loop_lag_p99_s, ("api",))
        if snapshot.fetching_began:
            yield Reading("loop_lag_seconds", snapshot.source.loop_lag_p99_s, ("consumer",))
        for family in self._process.collect():
            for sample in family.samples:
                if (short := sample.name.removeprefix(PREFIX)) in CATALOGUE:
                    yield Reading(short, sample.value)


def _deployment(snapshot: Snapshot) -> Iterator[Reading]:
    if wrote := snapshot.provenance:
        hashes = (str(wrote.get(name) or "") for name in ("model_sha256", "config_sha256", "cluster_id"))
        yield Reading("deployment_info", 1, (*hashes, snapshot.settings.kafka.group))
