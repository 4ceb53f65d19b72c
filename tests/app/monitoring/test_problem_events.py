"""Events that follow from two observations."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.snapshot import Snapshot, take
from millrace.app.monitoring.status_log import Noticing
from millrace.consumers.reasons import Reason
from millrace.training.model.setup.figures import MembersFigures
from millrace.training.telemetry.events import EventKind, Events, Severity
from tests.app.api_rig import Rig

At = Callable[..., list[tuple[EventKind, str]]]


@pytest.fixture
def at(rig: Rig) -> At:
    """Return a function that looks at a second and gives all events so far."""
    seen = [take(rig.service)]
    began, events = seen[0].clock, Events()
    observer, noticing = Observer(lambda: seen[-1]), Noticing(events.report)

    def look(
        seconds: float, *, connected: bool = True, refused: str | None = None, **reasons: int
    ) -> list[tuple[EventKind, str]]:
        snapshot: Snapshot = seen[0]
        source = replace(snapshot.source, connected=connected)
        letters = replace(snapshot.letters, by_reason={Reason(reason): count for reason, count in reasons.items()})
        letters = replace(letters, waiting=0 if refused is None else 1, last_error=refused)
        seen.append(replace(snapshot, clock=began + seconds, source=source, letters=letters))
        noticing.look(observer.look())
        return [(event.kind, event.text) for event in events.since()]

    return look


def test_a_broker_that_goes_away_and_comes_back_is_told_twice(at: At) -> None:
    at(0)
    at(1, connected=False)
    at(2, connected=False)
    assert at(9) == [
        (EventKind.PROBLEM, "Kafka does not answer at localhost:9092."),
        (EventKind.PROBLEM_OVER, "Kafka answers again."),
    ]


def test_letters_that_wait_for_kafka_have_not_reached_their_topic(at: At) -> None:
    at(0, refused="KafkaConnectionError")
    at(5, refused="KafkaConnectionError", connected=False)
    assert [text.split(" at ")[0].split(",")[0] for _, text in at(6, refused="KafkaConnectionError")] == [
        "1 dead letter waits for its topic",
        "Kafka does not answer",
        "Kafka answers again.",
    ]
    assert at(7)[3:] == [(EventKind.PROBLEM_OVER, "The dead letters have reached their topic.")]


def test_the_first_bad_records_are_told_at_once_and_a_flood_of_them_ever_less_often(at: At) -> None:
    assert at(0, malformed=3) == [(EventKind.SET_ASIDE, "3 records were set aside as malformed.")]
    for second in range(1, 7200):
        at(second, malformed=3 + second)
    told = at(7200, malformed=3 + 7200)
    assert len(told) == 7, "after 1, 2, 4, 8, 16, 32, 60 min"
    assert told[1] == (EventKind.SET_ASIDE, "60 records were set aside as malformed.")


def test_a_single_bad_record_after_a_quiet_hour_is_told_at_once(at: At) -> None:
    for second in range(300):
        at(second, malformed=second)
    told = len(at(900, malformed=299))
    assert at(9001, malformed=300)[told:] == [(EventKind.SET_ASIDE, "1 record was set aside as malformed.")]


def test_updates_that_were_not_finite_are_a_warning_of_their_own(rig: Rig, at: At) -> None:
    ((kind, text),) = at(0, update_not_finite=2)
    assert kind is EventKind.NOT_FINITE
    assert text == (
        "2 records were set aside: the loss or a gradient was not finite with them. No such update was made."
    )


def test_what_ends_the_learning_is_an_error_to_whoever_reads_events(rig: Rig) -> None:
    snapshot, events = take(rig.service), Events()
    Noticing(events.report).look(Observer(lambda: replace(snapshot, alive=False)).look())
    assert [(event.severity, event.facts) for event in events.since()] == [
        (Severity.ERROR, {"problem": "trainer_dead"})
    ]


def test_a_member_that_begins_anew_is_told_at_most_once_a_minute_and_not_after_a_rewind(rig: Rig) -> None:
    seen = [take(rig.service)]
    events = Events()
    observer, noticing = Observer(lambda: seen[-1]), Noticing(events.report)
    for second, restarts in ((0, 2), (1, 2), (2, 3), (30, 4), (70, 5), (140, 1), (150, 2)):
        members = MembersFigures(since_drift_share=0.5, once_share=0.0, since_drift_records=64, restarts=restarts)
        figures = {**seen[0].figures, "members": members}
        seen.append(replace(seen[0], clock=seen[0].clock + second, figures=figures))
        noticing.look(observer.look())
    told = [(event.kind, event.facts) for event in events.since()]
    assert told == [(EventKind.MEMBER_RESTARTED, {"restarts": restarts}) for restarts in (3, 5, 2)]
