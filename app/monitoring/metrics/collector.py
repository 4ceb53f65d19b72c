"""The collector: one look at the service as Prometheus' text, on the HTTP side's loop.

Owns nothing but its readings. It takes one observation and turns it into families, some milliseconds; nothing is kept
between two looks, so a series goes as soon as there is nothing to tell. The process is read from /proc, which is
memory, by the collector of Prometheus' own client; where there is no /proc, those readings are not there.
"""

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, chain

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from millrace.app.monitoring.all_figures import Distribution, Reading, by_label, known, readings
from millrace.app.monitoring.health import alive, ready
from millrace.app.monitoring.lag import behind, retention_s_left
from millrace.app.monitoring.metrics.catalogue import CATALOGUE
from millrace.app.monitoring.observer import Observation
from millrace.app.monitoring.problems import KINDS
from millrace.app.monitoring.snapshot import balanced, process_flow_of
from millrace.app.monitoring.throughput import catch_up_s, queue_of, throughput_of
from millrace.app.version import version_of
from millrace.consumers.metric import MODEL, PREFIX
from millrace.consumers.reasons import Reason
from millrace.pipelines.stream.offset_counts import OffsetCounts
from millrace.training.telemetry.meter import FRESHNESS_BOUNDS_S
from millrace.training.telemetry.phases import Phase


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
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # the version is no number, with which it compares it
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type

    def collect(self) -> Iterable[Metric]:
        """Return the families, in the catalogue's order; those without a reading are left out."""
        observation = self._look()
        ends_at = None if self._certificate_ends_at is None else self._certificate_ends_at()
        found: dict[str, list[Reading]] = {short: [] for short in CATALOGUE}
        for reading in chain(
            of_the_trainer(observation),
            of_the_records(observation),
            of_the_source(observation),
            (Reading("orders_total", count, labels) for labels, count in self._orders().items()),
            known("api_certificate_end_time_seconds", ends_at),
            self._of_the_process(observation),
        ):
            found[reading.short].append(reading)
        name = observation.snapshot.name
        return [_family(short, name, readings) for short, readings in found.items() if readings]


def _family(short: str, model: str, found: Iterable[Reading]) -> Metric:
    metric = CATALOGUE[short]
    names = (MODEL, *metric.labels)
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=names)
    number = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = number(metric.name, metric.help, labels=names)
    for _, value, labels in found:
        if isinstance(value, Distribution):
            below = accumulate(value.counts)
            bounds = ("+Inf" if bound == math.inf else str(bound) for bound in (*value.bounds, math.inf))
            histogram.add_metric((model, *labels), list(zip(bounds, map(float, below), strict=True)), value.total)
        else:
            plain.add_metric((model, *labels), value)
    return histogram if metric.kind == "histogram" else plain


def of_the_trainer(observation: Observation) -> Iterator[Reading]:
    """Yield the readings of the trainer."""
    snapshot = observation.snapshot
    yield Reading("alive", all(check.ok for check in alive(snapshot)))
    yield Reading("ready", all(check.ok for check in ready(snapshot)))
    present = {trouble.problem for trouble in observation.problems}
    yield from by_label("problem", {kind: kind in present for kind in KINDS})
    # 1 for the present phase and 0 for each other, so that a query need not tell absent from false.
    yield from by_label("phase", {phase.value: phase is snapshot.phase.phase for phase in Phase})
    yield Reading("phase_seconds", snapshot.phase.for_s)
    yield from known("phase_limit_seconds", snapshot.phase.limit_s)
    yield from by_label("trainer_time_ratio", throughput_of(observation).waiting)
    yield Reading("incarnation", snapshot.ledger.incarnation)
    yield Reading("brake_starts", 0 if snapshot.crash_loop is None else snapshot.crash_loop.starts)
    yield from readings([snapshot.source, snapshot.letters, *snapshot.figures.values()], snapshot.at)
    if (group := snapshot.group) is not None:
        # Those of each worker come from the chief alone, so that sums over targets are right.
        members = {str(index): member for index, member in enumerate(group.members if group.is_chief else ())}
        yield from readings([group, members], snapshot.at)
    if (posting := snapshot.posting) is not None:
        yield from readings([posting, posting.model, posting.live], snapshot.at)
        yield Reading("checkpoints_saved_total", posting.saves)
        yield Reading("checkpoints_failed_total", posting.failed_saves)
        if (save := posting.last_save) is not None:
            yield from readings([save], snapshot.at)
            yield Reading("checkpoint_unsaved_steps", max(0, posting.step - save.manifest.step))


def of_the_records(observation: Observation) -> Iterator[Reading]:
    """Yield the counters of records.

    By the law, fetched = learnt + set aside + skipped + filtered + held + discarded.
    """
    snapshot = observation.snapshot
    flow, tally = process_flow_of(snapshot), snapshot.ledger.tally
    yield Reading("records_fetched_total", flow.fetched)
    yield Reading("records_learnt_total", tally.learnt)
    for reason in Reason:
        yield Reading("records_set_aside_total", tally.set_aside.get(reason, 0), (reason.value,))
    yield Reading("records_skipped_total", sum(tally.skipped.values()))
    yield Reading("records_filtered_total", tally.filtered)
    cut = [name for name, field in snapshot.settings.records.features.items() if field.varies]
    yield from by_label("records_truncated_total", {name: tally.truncated.get(name, 0) for name in cut})
    yield Reading("records_held", flow.held)
    yield Reading("records_discarded_total", flow.discarded)
    yield Reading("balanced", balanced(snapshot))
    yield Reading("offsets_empty_total", tally.gaps)
    yield Reading("offsets_lost_total", tally.lost)
    yield Reading("blocks_dropped_total", snapshot.ledger.dropped_blocks)
    # Of the whole history.
    partitions = snapshot.ledger.partitions.values()
    histories = [history for partition in partitions for history in partition.histories]
    counts = sum(histories, OffsetCounts())
    outcomes = {
        "learnt": counts.learnt,
        "set_aside": sum(counts.set_aside.values()),
        "skipped": sum(counts.skipped.values()),
        "filtered": counts.filtered,
        "empty": counts.gaps,
        "lost": counts.lost,
    }
    yield from by_label("history_offsets", outcomes)
    yield Reading("history_settled_offsets", sum(history.settled for history in histories))
    yield Reading("partitions_begun_anew", len(histories) - len(partitions))
    # The rates.
    meter = snapshot.meter
    yield from by_label("learnt_records_per_second", meter.records_per_s)
    yield from known("arriving_records_per_second", observation.arriving_per_s)
    yield Reading("calls_total", meter.calls)
    staleness = Distribution(FRESHNESS_BOUNDS_S, meter.freshness_counts, meter.freshness_sum_s)
    yield Reading("staleness_seconds", staleness)


def of_the_source(observation: Observation) -> Iterator[Reading]:
    """Yield how far behind the learning is, and the readings of Kafka and of the memory on the way from there."""
    snapshot, lag, source = observation.snapshot, observation.lag, observation.snapshot.source
    yield from known("lag_records", lag.records)
    yield from known("lag_seconds", lag.seconds)
    yield from known("catch_up_seconds", catch_up_s(observation))
    yield from known("retention_left_seconds", retention_s_left(snapshot, lag))
    for partition, settled in snapshot.ledger.partitions.items():
        labels, fetching = (partition.topic, str(partition.number)), source.lag.partitions.get(partition)
        yield Reading("partition_position_offset", settled.position, labels)
        yield from known("partition_lag_seconds", lag.partitions.get(partition), *labels)
        yield from known("partition_fetched_offset", None if fetching is None else fetching.position, *labels)
        yield from known("partition_end_offset", None if fetching is None else fetching.end, *labels)
        yield from known("partition_lag_records", behind(snapshot, partition), *labels)
    yield Reading("partitions_read", len(snapshot.ledger.partitions))
    yield Reading("partitions", len(snapshot.ledger.partitions) + len(source.waiting_partitions))
    yield Reading("memory_limit_bytes", snapshot.settings.memory.limit)
    # Before the first stream was opened, counters of what is fetched mean nothing.
    if (queue := queue_of(snapshot)) is not None:
        parts = ("client", "handoff", "decoding", "assembling", "blocks")
        yield from by_label("memory_bytes", {part: getattr(queue, part) for part in parts})
        yield Reading("fetched_bytes_total", source.nbytes)
        yield Reading("stale_records_total", source.stale_records)
        yield Reading("loop_lag_seconds", source.loop_lag_p99_s, ("consumer",))


class OfTheProcess:
    """Reads what does not change once, and the rest each time."""

    def __init__(self) -> None:
        self._versions = (platform.python_version(), version_of("tensorflow"), version_of("keras"))
        self._process = ProcessCollector(namespace=PREFIX.rstrip("_"), registry=None)

    def __call__(self, observation: Observation) -> Iterator[Reading]:
        """Yield the readings of the process."""
        snapshot = observation.snapshot
        yield Reading("build_info", 1, (snapshot.version, *self._versions))
        if wrote := snapshot.provenance:
            hashes = (str(wrote.get(name) or "") for name in ("model_sha256", "config_sha256", "cluster_id"))
            yield Reading("deployment_info", 1, (*hashes, snapshot.settings.kafka.group))
        yield Reading("loop_lag_seconds", observation.loop_lag_p99_s, ("api",))
        for family in self._process.collect():
            for sample in family.samples:
                if (short := sample.name.removeprefix(PREFIX)) in CATALOGUE:
                    yield Reading(short, sample.value)
