"""A trainer that hangs: liveness fails past the limit of its phase, and not before."""

import re
from http import HTTPStatus
from typing import Any

import pytest

from millrace.app.service.process import FORCED
from millrace.consumers.records import Partition
from millrace.training.checkpoints.in_flight import deaths
from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.doom import HANGS, Doom, hazardous
from tests.faults.harness.process import Run
from tests.faults.harness.records import ExpectedPosition

pytestmark = [pytest.mark.row(22), pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]
TRACE_S, CALL_S = 3.0, 5.0
RECORDS = 50


def _fails_past_its_limit(run: Run, phase: str, limit_s: float) -> dict[str, Any]:
    """Probe it until it fails, which must be past the limit and not before; the failing answer."""
    answers: list[dict[str, Any]] = []

    def failed() -> bool:
        code, answer = run.ask("GET", "/livez?verbose")
        detail = next(check["detail"] for check in answer["checks"] if check["check"] == "progress")
        seconds = re.match(rf"{phase} for ([\d.]+) s", detail)
        if seconds is not None:
            answers.append(answer)
            within = float(seconds[1]) <= limit_s if code == HTTPStatus.OK else float(seconds[1]) >= limit_s
            assert within, f"{code}: {detail}"
        return seconds is not None and code == HTTPStatus.SERVICE_UNAVAILABLE

    run.wait_for(failed, f"{phase} for more than {limit_s:g} s was no life")
    assert len(answers) > 1, "it lived before"
    return answers[-1]


def test_liveness_fails_while_a_build_or_step_blocks_past_its_limit_and_comes_back(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream()
    limits = {"trace": f"{TRACE_S:g}s", "call": f"{CALL_S:g}s"}
    made = hazardous(project, topic, waits=True, limits=limits, checkpoints={"every": "1h"}, stop={"grace": "1s"})
    with Run(made) as run:
        run.wait_for(lambda: run.state() == "tracing", "it was building")
        answer = _fails_past_its_limit(run, "tracing", TRACE_S)
        assert re.fullmatch(r"tracing for [\d.]+ s, which is past its limit of 3 s", answer["reasons"][0])
        assert "limits.trace" in run.status()["problems"][0]["fix"]
        (made.path / "build").touch()
        run.wait_for(run.ready, "it was at work")

        topic.write(RECORDS, Doom(place=ExpectedPosition(0, RECORDS - 1), curse=HANGS))
        answer = _fails_past_its_limit(run, "training", CALL_S)
        assert re.fullmatch(r"training for [\d.]+ s, which is past its limit of 5 s", answer["reasons"][0])
        assert "limits.call" in run.status()["problems"][0]["fix"]
        (made.path / "step").touch()
        run.wait_for(lambda: run.settled() == RECORDS, "its records were settled")
        # Its records are settled within the call, which returns a moment later.
        run.wait_for(lambda: run.ask("GET", "/livez")[0] == HTTPStatus.OK, "it lived again")
        run.wait_for(lambda: run.status()["problems"] == [], "nothing was wrong any more")

        (made.path / "step").unlink()
        hung = ExpectedPosition(0, RECORDS)
        topic.write(RECORDS, Doom(place=hung, curse=HANGS))
        record = made.folder.start(made.folder.highest_term())
        run.wait_for(lambda: not record.read_bytes().startswith(b"00000000"), "it hung again")
        run.terminate()
        assert run.exit_code() == FORCED, run.tail()
    (death,) = deaths(made.folder, 0, before_term=made.folder.highest_term() + 1)
    start, end = death.in_flight[Partition(topic.name, hung.partition)]
    assert start <= hung.offset < end, "who hangs until he is ended has died in his call"
