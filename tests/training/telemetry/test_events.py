"""Events: bounded, in order, with ids that only grow; and the events that a trainer reports."""

import threading
from pathlib import Path
from typing import Any

import pytest

from millrace.training.commands import Pause, Resume, Rewind, Save
from millrace.training.errors import CheckpointError
from millrace.training.ledger.interventions import Skip
from millrace.training.telemetry.events import MOST_KEPT, Event, EventKind, Events, Severity
from tests.training.conftest import Fragile, mlp
from tests.training.trainer_rig import P0, P1, SHARE, Run, Topic, running


def texts(run: Run, kind: EventKind) -> list[str]:
    return [event.text for event in run.events.since() if event.kind is kind]


def test_many_unimportant_events_are_bounded_and_push_no_important_one_out() -> None:
    events = Events()
    events.report(EventKind.FAILED, "Failed.", Severity.ERROR)
    for number in range(10_000):
        events.report(EventKind.CHECKPOINT, f"Checkpoint {number}.")
    kept = events.since()
    assert kept[0].text == "Failed."
    assert kept[-1].text == "Checkpoint 9999."
    assert len(kept) < MOST_KEPT


def test_a_reader_that_asks_since_its_last_id_gets_each_event_once_and_in_order() -> None:
    events, seen = Events(), list[Event]()
    errors = {3, 4, 7}
    for number in range(9):
        events.report(EventKind.PROBLEM, str(number), Severity.ERROR if number in errors else Severity.INFO)
        if number % 2:
            seen += events.since(seen[-1].id if seen else 0)
    seen += events.since(seen[-1].id)
    assert [event.text for event in seen] == [str(number) for number in range(9)]
    assert events.since(events.newest) == []


def test_the_ids_of_a_later_process_are_greater_though_it_reported_fewer_events() -> None:
    before, after = Events(wall=lambda: 1000.0), Events(wall=lambda: 1060.0)
    for _ in range(50):
        before.report(EventKind.CHECKPOINT, "x")
    after.report(EventKind.STARTED, "y")
    assert [event.text for event in after.since(before.newest)] == ["y"]


def test_an_id_of_an_earlier_process_with_a_clock_ahead_hides_no_event() -> None:
    events = Events(wall=lambda: 1000.0)
    events.report(EventKind.STARTED, "y")
    assert [event.text for event in events.since(5_000_000)] == ["y"]


def test_threads_that_report_at_the_same_time_get_different_ids() -> None:
    events = Events()

    def report() -> None:
        for _ in range(50):
            events.report(EventKind.CHECKPOINT, "x")

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len({event.id for event in events.since()}) == 200


@pytest.mark.tensorflow
def test_saves_commands_and_rewinds_are_reported_in_the_order_they_happened(tmp_path: Path) -> None:
    topic = Topic(P0)
    with running(tmp_path, topic) as run:
        topic.produce(2 * SHARE)
        run.reaches(2 * SHARE)
        run.ask(Save(by="Ada", note="before the sale"))
        run.ask(Pause(reason="asked to by Ada"))
        run.ask(Resume(reason="asked to by Ada"))
        skip = Skip(order="", partition=P0, start=5, end=8, reason="bad import")
        run.ask(Rewind(to=0, skips=[skip], by="Ada", note="bad import"))
        run.reaches(2 * SHARE)
    reported = [(event.kind, event.text) for event in run.events.since()]
    assert reported == [
        (EventKind.CHECKPOINT, "Checkpoint 1 is durable, asked for by Ada: before the sale."),
        (EventKind.PAUSED, "Paused: asked to by Ada."),
        (EventKind.RESUMED, "Resumed: asked to by Ada."),
        (
            EventKind.REWOUND,
            "Rewound to checkpoint 0, asked for by Ada, as checkpoint 2: bad import. It skips clicks:0:5-7.",
        ),
        (EventKind.CHECKPOINT, "Checkpoint 3 is durable."),
    ]
    rewound = run.events.since()[3]
    assert rewound.facts == {"number": 2, "to": 0, "by": "Ada", "reason": "bad import", "skip": ["clicks:0:5-7"]}


@pytest.mark.tensorflow
def test_a_save_that_fails_is_reported_as_an_error(tmp_path: Path) -> None:
    def before_manifest(order: Any) -> None:
        if order.parent is not None:
            raise CheckpointError("no room")

    with running(tmp_path, Topic(P0), before_manifest=before_manifest) as run:
        with pytest.raises(CheckpointError):
            run.ask(Save())
        run.sees(lambda: texts(run, EventKind.SAVE_FAILED))
        (event,) = run.events.since()
        assert (event.text, event.severity) == ("A save failed: no room", Severity.ERROR)


@pytest.mark.tensorflow
def test_a_step_that_raises_is_reported_with_what_was_set_aside(tmp_path: Path) -> None:
    topic = Topic(P0)
    topic.poison = {(P0, 3): 1000.0}
    with running(tmp_path, topic, build=lambda: mlp(model=Fragile)) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        (fell_back,), (set_aside,) = texts(run, EventKind.FELL_BACK), texts(run, EventKind.SET_ASIDE)
        assert "going back to checkpoint 0" in fell_back
        assert set_aside.startswith("clicks:0 offset 3 is set aside: ")
        assert "1000" not in fell_back + set_aside, "no value of a record is reported"


@pytest.mark.tensorflow
def test_a_partition_that_joins_is_reported_at_the_start_and_while_running(tmp_path: Path) -> None:
    topic = Topic(P0)
    with running(tmp_path, topic, newcomers={P1: 7}) as run:
        topic.produce(SHARE, partition := type(P0)("clicks", 2))
        run.reaches(SHARE, partition)
        assert texts(run, EventKind.PARTITION_ADDED) == [
            "Partition clicks:1 has joined at offset 7.",
            "Partition clicks:2 has joined at offset 0.",
        ]
