"""A real service sends its metrics and the traces of its calls by OTLP; a receiver that hangs delays no call."""

import uuid
from pathlib import Path

import pytest

from tests.app.service.test_otlp import attributes, receiving, value
from tests.conftest import WaitFor
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.topics import Topic

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_service_learns_while_the_receiver_hangs_and_then_its_calls_are_traced(
    broker: str, tmp_path: Path, wait_for: WaitFor
) -> None:
    name = f"otlp-{uuid.uuid4().hex[:10]}"
    with Topic(broker, name, 2, Mixture(share=0.0), seed=5) as topic, receiving(hangs=True) as receiver:
        section = {"endpoint": receiver.url, "interval": "1s", "trace_every": "1s"}
        project = Project(tmp_path, topic, opentelemetry=section)
        topic.write(2000)
        with Run(project) as run:
            run.wait_for_first_call()
            wait_for(lambda: run.settled() == sum(map(len, topic.verdicts)), timeout=60)
            assert receiver.asked > 0
            assert receiver.requests["/v1/metrics"] == []
            receiver.hangs.set()
            wait_for(lambda: {"call", "save"} <= {span.name for span in receiver.spans()}, timeout=60)
            run.terminate()
            run.finish()
        assert value(receiver.metrics()["millrace_records_learnt"]) == sum(map(len, topic.verdicts))
    for root in [span for span in receiver.spans() if span.name == "call"]:
        stages = [span for span in receiver.spans() if span.parent_span_id == root.span_id]
        took = {span.name: span.end_time_unix_nano - span.start_time_unix_nano for span in stages}
        assert list(took) == ["handoff", "decode", "assemble", "prefetch", "train", "settle"]
        assert min(took.values()) >= 0
        assert min(took["decode"], took["train"]) > 0
        assert sum(took.values()) == pytest.approx(root.end_time_unix_nano - root.start_time_unix_nano, abs=10)
        assert attributes(root)["millrace.records"] > 0
