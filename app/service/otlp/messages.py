"""What is sent, in OpenTelemetry's types: Prometheus' families as metrics, calls and saves as spans.

Imports OpenTelemetry's SDK, so only the thread `otlp` imports this module, and only where an endpoint is set.
"""

import logging
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import metric_exporter, trace_exporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import set_span_in_context
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from millrace.app.settings.environment import any_set
from millrace.training.telemetry.meter import CallTimes
from millrace.training.trainer.save_figures import LastSave

_SCOPE = "millrace"
_FAMILIES = ("counter", "gauge", "histogram")
_PROVIDERS = tuple(f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{kind}CREDENTIAL_PROVIDER" for kind in ("", "METRICS_", "TRACES_"))
"""The variables that name who makes a session."""


class _Why(logging.Filter):
    """Keeps why a request failed, which the exporter only logs; our own line reports it."""

    text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self.text = record.getMessage()
        return False


_WHY = _Why()
"""One for the process: the exporters' loggers are the process's too."""


def _session() -> requests.Session | None:
    """Return a session for which a redirect is a failure: the exporters follow none, and count it as a success.

    None where the environment names who makes the session.
    """
    if any_set(_PROVIDERS):
        return None
    session = requests.Session()
    session.hooks["response"].append(_refuse_redirect)
    return session


def _refuse_redirect(response: requests.Response, **_options: Any) -> None:
    if 300 <= response.status_code < 400:
        response.close()
        raise requests.HTTPError(f"it answers {response.status_code}, a redirect, which is not followed")


class Messages:
    """Makes and sends the messages of one service. Used on one thread."""

    def __init__(self, name: str, listen: str, endpoint: str, headers: Mapping[str, str], began_at: float) -> None:
        """`began_at` is when the counters began, seconds since 1970."""
        self._began_ns = round(began_at * 1e9)
        instance = f"{socket.gethostname()}:{listen.rpartition(':')[2]}"
        # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes last, so that it holds.
        ours = Resource.create({"service.name": name, "service.instance.id": instance})
        resource = self._resource = ours.merge(OTELResourceDetector().detect())
        self._metrics = OTLPMetricExporter(f"{endpoint}/v1/metrics", headers=dict(headers), session=_session())
        self._traces = OTLPSpanExporter(f"{endpoint}/v1/traces", headers=dict(headers), session=_session())
        self._ended = list[ReadableSpan]()
        # No sampler here, so that OTEL_TRACES_SAMPLER holds.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracer = provider.get_tracer(_SCOPE)
        for module in (metric_exporter, trace_exporter):
            logging.getLogger(module.__name__).addFilter(_WHY)
        # From the monotonic clock to nanoseconds since 1970.
        self._offset_s = time.time() - time.monotonic()

    def send_metrics(self, families: Iterable[Family], at: float) -> str | None:
        """Send the families as of `at`, seconds since 1970; return why the receiver has not accepted them, or None."""
        found = [self._metric(family, round(at * 1e9)) for family in families if family.type in _FAMILIES]
        scope = ScopeMetrics(InstrumentationScope(_SCOPE), found, "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        accepted = self._metrics.export(data) is MetricExportResult.SUCCESS
        return None if accepted else _WHY.text

    def send_spans(self) -> tuple[int, str | None]:
        """Send the spans; return how many, and why the receiver has not accepted them, or None."""
        spans, self._ended = self._ended, []
        if not spans:
            return 0, None
        accepted = self._traces.export(spans) is SpanExportResult.SUCCESS
        return len(spans), None if accepted else _WHY.text

    def trace_call(self, call: CallTimes) -> None:
        """Trace a call, from the fetch of its oldest chunk on."""
        facts = call.facts
        stages = ("handoff", "decode", "assemble", "prefetch", "train", "settle")
        times = [facts.fetched_at, *facts.decoding, facts.assembled_at, call.began, call.stepped, call.ended]
        # What was held, as for labels, counts as fetched when it was let go, after its decoding.
        for place, (before, after) in enumerate(pairwise(times)):
            times[place + 1] = max(before, after, times[place])
        attributes: dict[str, int | str] = {
            "millrace.block": facts.number,
            "millrace.batches": facts.batches,
            "millrace.records": facts.rows,
            "millrace.step": call.step,
        }
        for span in facts.spans:
            attributes[f"millrace.offsets.{span.partition}"] = f"{span.start}-{span.end - 1}"
        self._trace("call", list(zip(stages, pairwise(times), strict=True)), attributes)

    def trace_save(self, save: LastSave) -> None:
        """Trace a save: the copy, for which the training stood still, and the writing beside it."""
        copied, durable = save.at + (save.stall_s or 0.0), save.at + (save.took_s or 0.0)
        attributes = {
            "millrace.checkpoint": save.number,
            "millrace.step": save.manifest.step,
            "millrace.bytes": save.nbytes,
        }
        parts = [("copy", (save.at, copied)), ("write", (copied, max(copied, durable)))]
        self._trace("save", parts, attributes)

    def _trace(
        self, name: str, parts: Sequence[tuple[str, tuple[float, float]]], attributes: Mapping[str, int | str]
    ) -> None:
        (_, (began, _)), (_, (_, ended)) = parts[0], parts[-1]
        # In an empty context, so that it begins a trace.
        root: Any = self._tracer.start_span(name, Context(), attributes=attributes, start_time=self._wall_ns(began))
        spans = [root]
        for part, (since, until) in parts:
            span: Any = self._tracer.start_span(part, set_span_in_context(root), start_time=self._wall_ns(since))
            span.end(self._wall_ns(until))
            spans.append(span)
        root.end(self._wall_ns(ended))
        # A sampler of OTEL_TRACES_SAMPLER may leave a trace out.
        self._ended += [span for span in spans if span.get_span_context().trace_flags.sampled]

    def _wall_ns(self, monotonic_s: float) -> int:
        return round((self._offset_s + monotonic_s) * 1e9)

    def _metric(self, family: Family, at_ns: int) -> Metric:
        """Return a family as a metric; its name is Prometheus', so that a collector that exports there has the same."""
        data: Sum | Gauge | Histogram
        if family.type == "histogram":
            data = Histogram(list(self._distributions(family.samples, at_ns)), AggregationTemporality.CUMULATIVE)
        else:
            points = [NumberDataPoint(one.labels, self._began_ns, at_ns, float(one.value)) for one in family.samples]
            counts = family.type == "counter"
            data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if counts else Gauge(points)
        return Metric(family.name, family.documentation, "", data)

    def _distributions(self, samples: Iterable[Sample], at_ns: int) -> Iterator[HistogramDataPoint]:
        def labels(sample: Sample) -> dict[str, str]:
            return {name: value for name, value in sample.labels.items() if name != "le"}

        for attributes, group in groupby(samples, labels):
            together = list(group)
            buckets = [one for one in together if one.name.endswith("_bucket")]
            below = [0, *(int(one.value) for one in buckets)]
            (total,) = [float(one.value) for one in together if one.name.endswith("_sum")]
            bounds = [float(one.labels["le"]) for one in buckets[:-1]]
            counts = [after - before for before, after in pairwise(below)]
            # Prometheus keeps neither the least nor the greatest: OTLP leaves them out, though the SDK's type does not.
            unknown: Any = None
            yield HistogramDataPoint(
                attributes, self._began_ns, at_ns, below[-1], total, counts, bounds, unknown, unknown
            )
