"""The collector: one look at the service as Prometheus' text, on the HTTP side's loop.

Owns nothing but its readings. It takes one observation and turns it into families, some milliseconds; nothing is kept
between two looks, so a series goes as soon as there is nothing to tell.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from millrace.app.monitoring.metrics.catalogue import CATALOGUE
from millrace.app.monitoring.metrics.process_readings import OfTheProcess
from millrace.app.monitoring.metrics.reading import Distribution, Reading, known
from millrace.app.monitoring.metrics.stream_readings import of_the_stream
from millrace.app.monitoring.metrics.trainer_readings import of_the_trainer
from millrace.app.monitoring.observer import Observation
from millrace.consumers.metric import MODEL


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
