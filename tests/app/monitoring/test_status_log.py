"""What the log shows of how it goes, seen at one look after the other."""

import asyncio
import io
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millrace.app.api.authorization import LoopbackAuthorizer
from millrace.app.api.http_app import make_application
from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.snapshot import take
from millrace.app.monitoring.status_log import StatusLog
from millrace.app.service import logs
from millrace.consumers.reasons import Reason
from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import P0, Rig

AWAY = "Kafka does not answer at localhost:9092. Nothing is lost: it continues by itself when Kafka is back."
At = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def _shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="millrace.app.monitoring.status_log")


@pytest.fixture
def at(rig: Rig, caplog: pytest.LogCaptureFixture) -> At:
    """Return a function that looks at a second and gives the lines that this look has logged."""
    snapshot = take(rig.service)
    seen, status_log = [snapshot], StatusLog(progress_every_s=0)
    observer = Observer(lambda: seen[-1])

    def look(seconds: float, *, connected: bool = True, **reasons: int) -> list[str]:
        source = replace(snapshot.source, connected=connected)
        letters = replace(snapshot.letters, by_reason={Reason(reason): count for reason, count in reasons.items()})
        seen.append(replace(snapshot, clock=snapshot.clock + seconds, source=source, letters=letters))
        caplog.clear()
        status_log.look(observer.look())
        return list(caplog.messages)

    return look


def test_a_problem_is_a_line_with_what_to_do_and_its_end_another(at: At, caplog: pytest.LogCaptureFixture) -> None:
    assert at(0) == []
    (line,) = at(1, connected=False)
    assert line.startswith(AWAY)
    (record,) = caplog.records
    assert (record.levelname, vars(record)["problem"], vars(record)["over"]) == ("WARNING", "kafka_away", False)
    assert at(2, connected=False) == []
    assert at(9) == ["Kafka answers again."]
    (record,) = caplog.records
    assert (record.levelname, vars(record)["over"], vars(record)["lasted_s"]) == ("INFO", True, 8.0)


def test_a_problem_that_comes_and_goes_is_logged_once_a_minute_with_the_count(at: At) -> None:
    lines = [line for second in range(120) for line in at(second, connected=second % 2 == 1)]
    assert [line.split(":")[0] for line in lines] == [
        "Kafka does not answer at localhost",
        "Kafka answers again.",
        "Kafka does not answer at localhost",
        "Kafka answers again.",
    ]
    assert " It came 29 more times since it was logged last. " in lines[2]


def test_a_problem_that_comes_back_soon_and_stays_is_logged_after_the_minute(at: At) -> None:
    at(0, connected=False)
    at(1)
    lines = [line for second in range(2, 70) for line in at(second, connected=False)]
    assert len(lines) == 1
    assert at(71) == ["Kafka answers again."]


def test_records_set_aside_are_a_line_at_first_and_then_one_a_minute_with_counts(
    at: At, caplog: pytest.LogCaptureFixture
) -> None:
    keep = "Set records.dead_letters.topic to keep such records."
    assert at(0, malformed=3) == [f"3 records were set aside: 3 malformed. {keep}"]
    lines = [line for second in range(1, 120) for line in at(second, malformed=3 + 10 * second)]
    assert lines == [f"600 records were set aside: 600 malformed. {keep}"]
    assert at(120, malformed=1193, missing=2) == [
        f"592 records were set aside: 590 malformed, 2 missing. {keep}",
    ]
    (record,) = caplog.records
    assert vars(record)["set_aside"] == {"malformed": 590, "missing": 2}


def test_the_first_record_of_a_new_reason_does_not_wait_for_the_minute(at: At) -> None:
    at(0, malformed=3)
    assert len(at(1, malformed=4)) == 0
    assert at(2, malformed=5, missing=1)[0].startswith("3 records were set aside: 2 malformed, 1 missing.")


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def progress(rig: Rig, every_s: float, seconds: range) -> None:
    """Look once in each of these seconds."""
    snapshot = take(rig.service)
    seen, status_log = [snapshot], StatusLog(every_s)
    observer = Observer(lambda: seen[-1])
    for second in seconds:
        seen.append(replace(snapshot, clock=snapshot.clock + second))
        status_log.look(observer.look())


def test_a_line_a_minute_holds_rate_lag_metric_and_baseline_as_fields(rig: Rig, stream: io.StringIO) -> None:
    logs.configure(name="clicks", form="json", stream=stream)
    rig.produce(P0, 40)
    rig.learn_all()
    rig.post()
    rig.service.phases.enter(Phase.TRAINING)
    progress(rig, 60, range(200))
    lines: list[dict[str, Any]] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == 3
    line = lines[0]
    assert line["event"].startswith("Learning. ")
    assert "Accuracy 0.75 over the last minute (base rate" in line["event"]
    assert (line["level"], line["logger"]) == ("info", "app.monitoring.status_log")
    numbers = ("state", "lag_records", "lag_s", "learnt", "metric", "value", "baseline", "loss", "checkpoint")
    assert [line[name] for name in numbers] == ["training", 0, 0, 40, "accuracy", 0.75, 0.75, 0.5, 0]
    assert line["records_per_s"] > 0
    assert line["bound_by"] == "compute"


def test_the_same_line_is_text_for_people(rig: Rig, stream: io.StringIO) -> None:
    logs.configure(form="text", stream=stream)
    progress(rig, 60, range(61))
    (line,) = stream.getvalue().splitlines()
    assert "status_log: Caught up, waiting for records. state=idle records_per_s=0.0" in line


def test_progress_of_0s_logs_none(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    progress(rig, 0, range(300))
    assert caplog.messages == []


def test_once_it_has_ended_no_line_says_how_it_goes(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.service.phases.enter(Phase.STOPPING)
    progress(rig, 60, range(300))
    assert caplog.messages == []


async def _served(rig: Rig, until: Callable[[], bool]) -> None:
    app = make_application(rig.service, LoopbackAuthorizer())
    async with asyncio.timeout(20), app.router.lifespan_context(app):
        while not until():  # noqa: ASYNC110 - a log line sets no event
            await asyncio.sleep(0.01)


def test_a_served_application_logs_what_the_observer_sees(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.source.meter.unanswered("refused")
    asyncio.run(_served(rig, lambda: bool(caplog.messages)))
    assert caplog.messages[0].startswith("Kafka does not answer at localhost:9092 (refused).")
