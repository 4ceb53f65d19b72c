"""Detectors: what every one keeps, what a training does with their marks, and that their state is that of its call."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.app.tools.validate.plugin_checks import detector_checks
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.checkpoints.parts import PartState
from millrace.training.commands import Resume, Rewind, Save
from millrace.training.detectors.conformance import CHANGE_AT, complaints
from millrace.training.detectors.detector import CallEnd, CallSums, Detector, Mark
from millrace.training.detectors.detectors import Detectors
from millrace.training.errors import ModelError
from millrace.training.telemetry.events import EventKind, Events
from millrace.training.telemetry.live_metrics import Sums
from millrace.training.telemetry.phases import Phase
from millrace.training.telemetry.watcher import Call

P0 = Partition("clicks", 0)
COUNTING = """
from millrace.training.detectors.detector import Detector, Mark

class Counting(Detector):
    def __init__(self):
        self.calls, self.worst = 0, float("-inf")

    def update(self, sums, at):
        self.calls += 1
        self.worst = max(self.worst, sums.mean_loss)
        accuracy = sums.metrics["accuracy"]
        return [Mark(f"call {self.calls}", {"worst": self.worst, "accuracy": accuracy})] if self.calls % 3 == 0 else []

    def saved(self):
        return {"calls": self.calls, "worst": self.worst}

    def load(self, state):
        self.calls, self.worst = state["calls"], state["worst"]
"""
RAISING = """
from millrace.training.detectors.detector import Detector

class Raising(Detector):
    def update(self, sums, at):
        raise ValueError("not today")

    def saved(self):
        return {}

    def load(self, state):
        pass
"""


class Rise(Detector):
    """Marks a mean loss that is twice the mean of the last ten."""

    def __init__(self) -> None:
        self.last: list[float] = []

    def update(self, sums: CallSums, at: CallEnd) -> Sequence[Mark]:
        loss = sums.mean_loss
        if not math.isfinite(loss):
            return []
        rose = len(self.last) == 10 and loss > 2 * sum(self.last) / 10
        self.last = [] if rose else [*self.last, loss][-10:]
        return [Mark(f"rose to {loss}")] if rose else []

    def saved(self) -> Mapping[str, Any]:
        return {"last": self.last}

    def load(self, state: Mapping[str, Any]) -> None:
        self.last = list(state["last"])


class Forgetful(Rise):
    def saved(self) -> Mapping[str, Any]:
        return {"last": []}


class Blinded(Rise):
    """A NaN stays among the last ten in a sum that it never leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = 0.0

    def update(self, sums: CallSums, at: CallEnd) -> Sequence[Mark]:
        rose = sums.mean_loss > 2 * self.mean > 0
        self.mean += (sums.mean_loss - self.mean) / 10
        return [Mark("rose")] if rose else []

    def saved(self) -> Mapping[str, Any]:
        return {"mean": self.mean}

    def load(self, state: Mapping[str, Any]) -> None:
        self.mean = state["mean"]


class Fragile(Rise):
    def update(self, sums: CallSums, at: CallEnd) -> Sequence[Mark]:
        assert sums.scored, "nothing was scored"
        return super().update(sums, at)


class Clocked(Rise):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Clocked.made += 1
        self.own = Clocked.made

    def update(self, sums: CallSums, at: CallEnd) -> Sequence[Mark]:
        return [Mark(f"object {self.own}")]


class Texts(Rise):
    def update(self, sums: CallSums, at: CallEnd) -> Sequence[Any]:
        return ["rose"]


def test_a_detector_that_keeps_all_claims_has_no_complaint() -> None:
    assert [*complaints(Rise)] == []


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Forgetful, f"saved after {CHANGE_AT - 1} calls"),
        (Blinded, "blind it"),
        (Fragile, "NaN break it: it raised AssertionError: nothing was scored"),
        (Clocked, "mark differently"),
        (Texts, "update returned a str among its marks"),
    ],
)
def test_a_detector_that_breaks_a_claim_is_told_which(make: Callable[[], Detector], said: str) -> None:
    (found,) = complaints(make)
    assert said in found


def test_each_detector_of_the_settings_is_checked_by_name(tmp_path: Path) -> None:
    for name, text in {"counting": COUNTING, "raising": RAISING}.items():
        (tmp_path / f"{name}.py").write_text(text)
    places = {f"./{name.lower()}.py:{name}": f"{tmp_path / name.lower()}.py:{name}" for name in ("Counting", "Raising")}
    fine, broken, absent = detector_checks({**places, "./none.py:A": f"{tmp_path / 'none.py'}:A"})
    assert (fine.outcome, broken.outcome, absent.outcome) == ("ok", "fail", "fail")
    assert "training.detectors: ./raising.py:Raising: it raised ValueError: not today" in broken.detail
    assert absent.detail.startswith("training.detectors: there is no file")


def called(detectors: Detectors, calls: int, loss: float = 0.5) -> None:
    for step in range(1, calls + 1):
        span = Span(partition=P0, index=0, start=step - 1, end=step, learnt=1)
        facts = BlockFacts(
            number=step,
            incarnation=1,
            spans=(span,),
            batches=1,
            rows=1,
            seed=0,
            fetched_at=0.0,
            oldest_ms=0,
            newest_ms=0,
        )
        scored = [Sums(records=1, loss=loss, scored=1)]
        detectors.called(Call(facts=facts, rows=(), scored=scored, step=step, records=step))


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "raising.py").write_text(RAISING)
    return {"raising": f"{tmp_path / 'raising.py'}:Raising", "counting": f"{tmp_path / 'counting.py'}:Counting"}


def score(_states: Sequence[Any]) -> dict[str, float]:
    return {"accuracy": math.nan}


def test_a_mark_is_an_event_with_its_facts_and_is_counted(places: dict[str, str]) -> None:
    events = Events()
    detectors = Detectors({"counting": places["counting"]}, score, events.report)
    called(detectors, 7)
    marks = [event for event in events.since() if event.kind is EventKind.MARK]
    assert [(mark.facts["detector"], mark.facts["step"], mark.facts["records"]) for mark in marks] == [
        ("counting", 3, 3),
        ("counting", 6, 6),
    ]
    assert {name: figures.marks for name, figures in detectors.figures().items()} == {"counting": 2}


def test_a_detector_that_raises_is_left_out_and_the_others_go_on(places: dict[str, str]) -> None:
    events = Events()
    detectors = Detectors(places, score, events.report)
    called(detectors, 3)
    assert [(event.kind, event.facts["detector"]) for event in events.since()] == [
        (EventKind.DETECTOR_FAILED, "raising"),
        (EventKind.MARK, "counting"),
    ]
    assert [*detectors.snapshot().facts] == ["counting"]


@pytest.mark.parametrize(
    "facts",
    [
        "{'kind': 'rise'}",
        "{'severity': 'warning'}",
        "{'step': 1}",
        "{'loss': __import__('numpy').float32(1)}",
        "{'when': object()}",
    ],
)
def test_facts_of_a_mark_that_an_event_cannot_keep_leave_the_detector_out(facts: str, tmp_path: Path) -> None:
    text = COUNTING.replace('{"worst": self.worst, "accuracy": accuracy}', facts)
    (tmp_path / "counting.py").write_text(text)
    events = Events()
    called(Detectors({"counting": f"{tmp_path / 'counting.py'}:Counting"}, score, events.report), 7)
    assert [event.kind for event in events.since()] == [EventKind.DETECTOR_FAILED]


def test_a_detector_that_marks_twice_in_a_call_is_counted_twice_and_fills_no_list(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNTING.replace("return [Mark(", "return 9 * [Mark("))
    events = Events()
    detectors = Detectors({"counting": f"{tmp_path / 'counting.py'}:Counting"}, score, events.report)
    called(detectors, 3)
    assert len(events.since()) == 1
    assert detectors.figures()["counting"].marks == 9


def test_a_detector_that_exits_is_left_out_and_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "raising.py").write_text(RAISING.replace('ValueError("not today")', "SystemExit(3)"))
    events = Events()
    called(Detectors({"raising": f"{tmp_path / 'raising.py'}:Raising"}, score, events.report), 2)
    assert [event.kind for event in events.since()] == [EventKind.DETECTOR_FAILED]


def test_a_call_that_has_scored_nothing_has_each_metric_as_nan(places: dict[str, str]) -> None:
    events, asked = Events(), []

    def results(states: Sequence[Any]) -> dict[str, float]:
        asked.append(states)
        return score(states)

    facts = BlockFacts(
        number=1, incarnation=1, spans=(), batches=1, rows=1, seed=0, fetched_at=0.0, oldest_ms=0, newest_ms=0
    )
    detectors = Detectors({"counting": places["counting"]}, results, events.report)
    scored = [Sums(records=0, states=[np.array(3.0)])]
    detectors.called(Call(facts=facts, rows=(), scored=scored, step=1, records=1))
    assert asked == [()]
    assert events.since() == []


def test_a_state_keeps_every_bit_and_a_checkpoint_without_one_begins_as_built(places: dict[str, str]) -> None:
    counting = {"counting": places["counting"]}
    first, second = Detectors(counting, score), Detectors(counting, score)
    begun = first.snapshot()
    assert "-Infinity" in begun.facts["counting"]
    called(first, 4, 1 / 3)
    second.restore(first.snapshot())
    assert second.snapshot() == first.snapshot()
    for state in (PartState(), PartState(facts={"counting": "[]"}), PartState(facts={"counting": "{"})):
        second.restore(first.snapshot())
        second.restore(state)
        assert second.snapshot() == begun


@pytest.mark.tensorflow
def test_after_a_kill_and_a_rewind_a_training_marks_what_it_would_have(tmp_path: Path, places: dict[str, str]) -> None:
    from tests.training.trainer_rig import SHARE, Run, Topic, running

    def marks(run: Run) -> list[tuple[Any, ...]]:
        found = [event.facts for event in run.events.since() if event.kind is EventKind.MARK]
        return [(facts["records"], facts["worst"], facts["accuracy"]) for facts in found]

    def learns(run: Run, blocks: int) -> None:
        run.topic.produce(blocks * SHARE)
        run.reaches(run.topic.ends[P0])
        run.ask(Resume())  # a command is obeyed when the call has ended

    options: dict[str, Any] = {"detectors": {"counting": places["counting"]}}
    with running(tmp_path / "whole", Topic(), **options) as whole:
        learns(whole, 8)
        expected = marks(whole)
    assert [records for records, _, _ in expected] == [3 * SHARE, 6 * SHARE]
    topic = Topic()
    with running(tmp_path / "killed", topic, **options) as run:
        learns(run, 4)
        number = run.ask(Save()).number
        learns(run, 4)
        assert marks(run) == expected
        run.ask(Rewind(to=number))
        run.sees(lambda: len(marks(run)) == 3)
        run.reaches(8 * SHARE)
        assert marks(run) == [*expected, expected[1]], "what follows the checkpoint is marked once more, the same"
        assert run.board.latest is not None
    with running(tmp_path / "killed", topic, **options) as again:
        learns(again, 1)
        assert [records for records, _, _ in marks(again)] == [9 * SHARE]
    with running(tmp_path / "killed", topic) as without:
        learns(without, 1)
    with running(tmp_path / "killed", topic, **options) as anew:
        learns(anew, 3)
        assert [records for records, _, _ in marks(anew)] == [13 * SHARE], "from a checkpoint without it, it begins"


@pytest.mark.tensorflow
def test_a_mark_pauses_the_training_before_the_next_call_until_it_resumes(
    tmp_path: Path, places: dict[str, str]
) -> None:
    from tests.training.trainer_rig import SHARE, Topic, running

    topic = Topic()
    with running(tmp_path, topic, detectors={"counting": places["counting"]}, pause_on_mark=True) as run:
        topic.produce(8 * SHARE)
        for learnt, call in ((3, 3), (6, 6)):
            run.sees(lambda: run.phases.phase is Phase.PAUSED)
            assert run.ledger.positions() == {P0: learnt * SHARE}
            assert run.phases.snapshot().reason == f"counting: call {call}"
            run.ask(Resume())
        run.reaches(8 * SHARE)
        assert [event.text for event in run.events.since() if event.kind is EventKind.PAUSED] == [
            "Paused: counting: call 3.",
            "Paused: counting: call 6.",
        ]


def test_a_file_that_holds_no_detector_is_told_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class A: pass")
    with pytest.raises(ModelError, match=r"training.detectors: A in .* is no Detector; write from .* import Detector"):
        Detectors({"a": f"{tmp_path / 'a.py'}:A"}, score)
