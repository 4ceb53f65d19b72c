"""The counters of the server of predictions, and `GET /metrics` by its catalogue. On the HTTP side's loop.

Bounded: outcomes are few.
"""

import resource
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from millrace.app.monitoring.all_figures import Distribution, Reading
from millrace.app.monitoring.metrics.serving_catalogue import SERVING
from millrace.app.tools.serve.follower import ServingBoard
from millrace.app.tools.serve.memory.topic_memory import MemoryBoard
from millrace.app.tools.serve.prediction_log import LogBoard
from millrace.consumers.metric import MODEL

OUTCOMES = ("answered", "refused", "busy", "failed")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)


@dataclass(slots=True)
class Distributed:
    """How often which values came."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def look(self) -> Distribution:
        """Return it as it is now."""
        return Distribution(self.bounds, tuple(self.counts), self.total)


class ServingMeter:
    """What was asked, and what became of it."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.seconds, self.batch_rows = Distributed(SECONDS), Distributed(tuple(map(float, ROWS)))
        self.rows = 0
        self.in_progress = 0

    def ended(self, status: int, seconds: float) -> None:
        """Count a predict request by its status."""
        if status < 400:
            outcome = "answered"
        elif status == 503:
            outcome = "busy"
        else:
            outcome = "refused" if status < 500 else "failed"
        self.requests[outcome] += 1
        self.seconds.add(seconds)

    def called(self, rows: int) -> None:
        """Count a call of the model."""
        self.rows += rows
        self.batch_rows.add(rows)


class ServingCollector(Collector):
    """Collects from one server."""

    def __init__(
        self,
        name: str,
        board: Callable[[], ServingBoard],
        meter: ServingMeter,
        ready: Callable[[], bool],
        memory: Callable[[], MemoryBoard] | None = None,
        log: Callable[[], LogBoard] | None = None,
    ) -> None:
        self._name, self._board, self._meter, self._ready, self._memory = name, board, meter, ready, memory
        self._log = log
        self._registry = CollectorRegistry()
        self._registry.register(self)

    async def answer(self, request: Request) -> Response:
        """Return all metrics as text, in Prometheus' plain format whatever is asked for.

        In OpenMetrics a counter and a gauge that differ by `_total` alone, as those of the CPU time, may not stand
        beside each other.
        """
        del request
        encode, content_type = choose_encoder("")
        return Response(encode(self._registry), headers={"content-type": content_type})

    def collect(self) -> Iterable[Metric]:
        """Return the families, in the catalogue's order; those without a reading are left out."""
        readings: dict[str, list[Reading]] = {metric.short: [] for metric in SERVING}
        for reading in self._readings():
            readings[reading.short].append(reading)
        return [self._family(short, found) for short, found in readings.items() if found]

    def _readings(self) -> Iterator[Reading]:
        board, meter = self._board(), self._meter
        yield Reading("serve_ready", float(self._ready()))
        yield Reading("serve_pinned", float(board.wanted != "latest"))
        yield Reading("serve_following", float(board.served is not None and board.problem is None))
        yield Reading("serve_versions_loaded", len(board.loaded))
        if board.newest is not None:
            yield Reading("serve_newest_version", board.newest)
        if board.served is not None:
            yield Reading("serve_version", board.served.number)
            if (made_at := board.served.about.get("made_at")) is not None:
                yield Reading("serve_export_age_seconds", time.time() - datetime.fromisoformat(made_at).timestamp())
        yield from (Reading("serve_requests_total", count, (one,)) for one, count in meter.requests.items())
        yield Reading("serve_requests_in_progress", meter.in_progress)
        yield Reading("serve_request_seconds", meter.seconds.look())
        yield Reading("serve_rows_total", meter.rows)
        yield Reading("serve_batch_rows", meter.batch_rows.look())
        yield Reading("serve_swaps_total", board.swaps)
        yield Reading("serve_load_failures_total", board.load_failures)
        if self._memory is not None:
            known = self._memory()
            yield Reading("serve_memory_age_seconds", known.age_s)
            if known.behind is not None:
                yield Reading("serve_memory_behind_records", known.behind)
            yield Reading("serve_memory_keys", known.keys)
            yield Reading("serve_memory_bytes", known.bytes)
            yield Reading("serve_memory_lost_total", known.lost)
        if self._log is not None:
            logged = self._log()
            yield Reading("serve_log_written_total", logged.written)
            yield from (Reading("serve_log_dropped_total", rows, (why,)) for why, rows in logged.dropped.items())
            yield Reading("serve_log_waiting", logged.waiting)
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield Reading("serve_process_cpu_seconds_total", used.ru_utime + used.ru_stime)
        yield Reading("serve_process_cpu_seconds", used.ru_utime + used.ru_stime)
        try:
            with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - memory, not a disk
                pages = int(file.read().split()[1])
        except OSError:
            return
        yield Reading("serve_process_resident_memory_bytes", pages * resource.getpagesize())

    def _family(self, short: str, readings: Iterable[Reading]) -> Metric:
        metric = next(each for each in SERVING if each.short == short)
        names = (MODEL, *metric.labels)
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=names)
        number = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        plain = number(metric.name, metric.help, labels=names)
        for reading in readings:
            labels = (self._name, *reading.labels)
            if isinstance(reading.value, Distribution):
                bounds = [*map(str, reading.value.bounds), "+Inf"]
                below = zip(bounds, map(float, accumulate(reading.value.counts)), strict=True)
                histogram.add_metric(labels, list(below), reading.value.total)
            else:
                plain.add_metric(labels, reading.value)
        return histogram if metric.kind == "histogram" else plain
