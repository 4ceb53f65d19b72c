"""Metrics and traces by OTLP: to a real receiver of its own, which reads the requests by OpenTelemetry's own types."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from millrace.app.service.otlp.figures import OtlpFigures
from millrace.app.service.otlp.otlp import headers_of
from millrace.app.service.senders import senders_of
from millrace.app.settings import load
from millrace.app.tools.validate.settings_checks import sender_checks
from millrace.consumers.errors import ConfigError
from millrace.training.telemetry.meter import CallTimes, Meter
from millrace.training.trainer.board import Board
from tests.app.api_rig import CONFIG, P0, Rig, serving
from tests.conftest import WaitFor

KINDS: Mapping[str, Any] = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/traces": ExportTraceServiceRequest}


@dataclass
class Receiver:
    """A receiver of OTLP over HTTP."""

    status: int = 200
    hangs: threading.Event = field(default_factory=threading.Event)
    """Set: it answers at once; else it waits."""
    asked: int = 0
    headers: list[dict[str, str]] = field(default_factory=list)
    requests: dict[str, list[Any]] = field(default_factory=lambda: {path: [] for path in KINDS})
    url: str = ""

    def metrics(self) -> dict[str, Any]:
        """Return the newest metrics by name."""
        (resource,) = self.requests["/v1/metrics"][-1].resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def spans(self) -> list[Any]:
        """Return all spans."""
        return [
            span
            for request in self.requests["/v1/traces"]
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def receiving(status: int = 200, *, hangs: bool = False) -> Iterator[Receiver]:
    receiver = Receiver(status)
    if not hangs:
        receiver.hangs.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.asked += 1
            receiver.hangs.wait(30)
            if receiver.status == 200:
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                receiver.requests[self.path].append(KINDS[self.path].FromString(body))
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        receiver.hangs.set()
        server.shutdown()
        server.server_close()
        thread.join()


def attributes(owner: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in owner.attributes}


def config(folder: Path, url: str, more: str = "") -> Path:
    path = folder / "clicks.yaml"
    section = f'opentelemetry: {{endpoint: "{url}", interval: 1s, trace_every: 1s{more}}}\n'
    path.write_text(CONFIG + section)
    return path


@contextmanager
def sending(folder: Path, url: str, more: str = "") -> Iterator[Rig]:
    """A service that learns nothing more, and its HTTP side."""
    rig = Rig(folder)
    service = rig.service
    try:
        rig.start()
        settings = load(config(folder, url, more), {}).settings
        service.senders = senders_of(lambda: settings, service.meter, service.board)
        with serving(rig):
            yield rig
    finally:
        rig.close()


def figures(rig: Rig) -> OtlpFigures:
    found = rig.service.senders[0].figures()
    assert isinstance(found, OtlpFigures)
    return found


def test_metrics_and_the_trace_of_a_call_arrive_as_their_receiver_reads_them(
    tmp_path: Path, wait_for: WaitFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=try")
    (tmp_path / "headers").write_text("authorization: Bearer t0\nX-Tenant: ads\n")
    with receiving() as receiver, sending(tmp_path, receiver.url, ", headers_file: headers") as rig:
        rig.produce(P0, 40)
        block = rig.draw()
        rig.learn(block)
        facts, now = block.facts, time.monotonic()
        rig.service.meter.last_call = CallTimes(facts=facts, began=now, stepped=now + 0.2, ended=now + 0.25, step=9)
        wait_for(lambda: any(span.name == "call" for span in receiver.spans()))
        wait_for(lambda: value(receiver.metrics()["millrace_calls"]) == 1)
        many = len(receiver.requests["/v1/metrics"])
        wait_for(lambda: len(receiver.requests["/v1/metrics"]) == many + 2)  # the same call is not traced again
        assert figures(rig).failed == 0
        assert figures(rig).spans >= 7
    found = receiver.metrics()
    learnt = found["millrace_records_learnt"].sum
    assert (learnt.is_monotonic, learnt.aggregation_temporality) == (True, 2)
    assert value(found["millrace_records_learnt"]) == facts.rows
    assert attributes(learnt.data_points[0]) == {"model": "clicks"}
    assert learnt.data_points[0].start_time_unix_nano < learnt.data_points[0].time_unix_nano
    (staleness,) = found["millrace_staleness_seconds"].histogram.data_points
    assert (staleness.count, staleness.sum, staleness.HasField("min")) == (1, pytest.approx(0.2), False)
    assert (sum(staleness.bucket_counts), staleness.bucket_counts[1]) == (1, 1)
    assert len(staleness.bucket_counts) == len(staleness.explicit_bounds) + 1
    # The trace.
    (root,) = [span for span in receiver.spans() if span.name == "call"]
    stages = [span for span in receiver.spans() if span.parent_span_id == root.span_id]
    assert [span.name for span in stages] == ["handoff", "decode", "assemble", "prefetch", "train", "settle"]
    assert {span.trace_id for span in stages} == {root.trace_id}
    assert [span.end_time_unix_nano for span in stages[:-1]] == [span.start_time_unix_nano for span in stages[1:]]
    assert stages[0].start_time_unix_nano == root.start_time_unix_nano
    assert stages[4].end_time_unix_nano - stages[4].start_time_unix_nano == pytest.approx(0.2e9, rel=1e-3)
    assert abs(root.end_time_unix_nano / 1e9 - time.time()) < 60
    told = attributes(root)
    assert (told["millrace.step"], told["millrace.records"]) == (9, facts.rows)
    assert told["millrace.offsets.clicks:0"] == f"0-{facts.spans[0].end - 1}"
    # The save that the service's board shows.
    (save,) = [span for span in receiver.spans() if span.name == "save"]
    assert save.end_time_unix_nano - save.start_time_unix_nano == pytest.approx(0.25e9, rel=1e-3)
    # Who sends.
    who = attributes(receiver.requests["/v1/traces"][-1].resource_spans[0].resource)
    assert (who["service.name"], who["deployment.environment.name"]) == ("clicks", "try")
    assert {(one["authorization"], one["x-tenant"]) for one in receiver.headers} == {("Bearer t0", "ads")}


def value(metric: Any) -> float:
    data = metric.sum if metric.HasField("sum") else metric.gauge
    return float(data.data_points[0].as_double)


@pytest.mark.parametrize("how", ["away", "answers 500", "answers 302", "hangs"])
def test_a_receiver_that_fails_stops_nothing_and_is_counted(
    how: str, tmp_path: Path, wait_for: WaitFor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    caplog.set_level(logging.DEBUG)
    with receiving(302 if how == "answers 302" else 500, hangs=how == "hangs") as receiver:
        url = "http://127.0.0.1:9" if how == "away" else receiver.url
        with sending(tmp_path, url) as rig:
            wait_for(lambda: figures(rig).failed >= 3)
            looked = time.monotonic()
            rig.service.senders[0].look(list)
            assert time.monotonic() - looked < 0.2
            assert figures(rig).sent == 0
            assert figures(rig).error
            if how.startswith("answers"):
                receiver.status = 200
                wait_for(lambda: figures(rig).sent > 0)
                assert figures(rig).error is None
    loggers = ("opentelemetry", "millrace.app.service.otlp")
    lines = [one.getMessage() for one in caplog.records if one.name.startswith(loggers)]
    assert len(lines) == 1 + how.startswith("answers"), lines
    assert f"{url} accepts nothing, which stops nothing else: Failed to export metrics" in lines[0]


@pytest.mark.slow
def test_nothing_of_opentelemetry_or_mlflow_is_loaded_unless_it_is_set(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from tests.app.api_rig import running, serving
with running(Path(sys.argv[1])) as rig, serving(rig):
    time.sleep(1.5)
    assert rig.service.senders == ()
# Its API is an import of another package.
extras = ("opentelemetry.sdk", "opentelemetry.exporter", "mlflow")
print([name for name in sys.modules if name.startswith(extras)])
"""
    run = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[3], check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


class WithoutExtra:
    """Finds no exporter, as on a machine without the extra."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.startswith("opentelemetry.exporter"):
            raise ModuleNotFoundError(name)


def test_a_missing_extra_and_a_bad_file_of_headers_are_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(config(tmp_path, "http://collector:4318", ", headers_file: headers"), {}).settings
    for text, line in (("authorization: Bearer secret\nsecret", 2), ("secret secret: a", 1), ("secret: ä", 1)):
        (tmp_path / "headers").write_text(text)
        with pytest.raises(ConfigError) as caught:
            headers_of("opentelemetry.headers_file", tmp_path / "headers")
        assert f"{tmp_path / 'headers'}:{line} is no header" in str(caught.value)
        assert "secret" not in str(caught.value)
    (tmp_path / "headers").write_text("authorization: Bearer t0\n")
    (tmp_path / "headers").chmod(0o600)
    (found,) = sender_checks(settings)
    assert found.detail.startswith("metrics and traces go to http://collector:4318, with authorization;")
    monkeypatch.setattr(sys, "meta_path", [WithoutExtra(), *sys.meta_path])
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"needs its extra: pip install "):
        senders_of(lambda: settings, Meter(time.monotonic), Board())
    (found,) = sender_checks(settings)
    assert ".whl)[opentelemetry]" in str(found.detail)


def test_validate_warns_of_a_file_of_headers_that_every_user_can_read(tmp_path: Path, token: Path) -> None:
    token.write_text("authorization: Bearer hidden\n")
    settings = load(config(tmp_path, "http://collector:4318", f", headers_file: {token}"), {}).settings
    (found,) = sender_checks(settings)
    assert (found.name, found.outcome) == ("otlp", "warn")
    assert f"opentelemetry.headers_file: every user of this machine can read {token}" in str(found.detail)
    assert "hidden" not in str(found)


# The last one here: its thread may still be ending when the test is over.
def test_the_end_waits_two_seconds_for_a_receiver_that_hangs(tmp_path: Path, wait_for: WaitFor) -> None:
    with receiving(hangs=True) as receiver:
        with sending(tmp_path, receiver.url) as rig:
            wait_for(lambda: receiver.asked > 0)
            ending = time.monotonic()
        assert time.monotonic() - ending < 5
        assert (figures(rig).sent, figures(rig).failed) == (0, 0)
