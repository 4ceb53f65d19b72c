"""The page's history over restarts: kept by the holder of the folder, read by the next one, and never in the way."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.sample_history import COLUMNS, MOST_METRICS, SPANS, SampleHistory
from millrace.app.monitoring.snapshot import Snapshot, take
from millrace.app.service.kept_history import FORMAT, KeptHistory, KeptTables, packed
from millrace.training.checkpoints import Folder, FolderLease
from millrace.training.telemetry.events import MOST_KEPT, Event, EventKind, Events, Severity
from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import P0, Rig

WaitFor = Callable[..., object]
NEVER_S = 3600.0


class Process:
    """A service's history and events, as one process has them."""

    def __init__(self, folder: Folder, every_s: float = NEVER_S) -> None:
        self.curves, self.events = SampleHistory(), Events()
        self.kept = KeptHistory(self.events, every_s)
        self.kept.attach(self.curves)
        self.lease = FolderLease.acquire(folder, "a test")
        self.kept.start(self.lease)

    def end(self) -> None:
        self.kept.stop()
        self.lease.release()

    def add(self, snapshot: Snapshot) -> None:
        self.curves.add(Observer(lambda: snapshot).look())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "kept")


@pytest.fixture
def learnt(rig: Rig) -> Snapshot:
    """A snapshot of a service that has just scored records."""
    rig.produce(P0, 8)
    rig.learn_all()
    rig.post()
    return take(rig.service)


def aged(snapshot: Snapshot, age_s: float, *, ago_s: float = 0.0) -> Snapshot:
    """Return the snapshot as of that long ago, with its newest record scored `age_s` before."""
    assert snapshot.posting is not None
    live = replace(snapshot.posting.live, age_s=age_s)
    posting = replace(snapshot.posting, live=live)
    return replace(snapshot, posting=posting, at=snapshot.at - ago_s, clock=snapshot.clock - ago_s)


def filled(folder: Folder, learnt: Snapshot) -> Process:
    """Return a process that has learnt three hours ago and then no more, and has ended."""
    process = Process(folder)
    for second in range(120):
        process.add(aged(learnt, 0.0, ago_s=3 * 3600.0 - second))
    process.events.report(EventKind.REWOUND, "Rewound to checkpoint 3.", number=7, to=3)
    process.end()
    return process


def test_curves_events_and_the_last_value_outlive_a_restart(
    folder: Folder, learnt: Snapshot, wait_for: WaitFor
) -> None:
    before = filled(folder, learnt)
    after = Process(folder)
    after.add(replace(learnt, posting=None))
    wait_for(lambda: after.curves.metrics)
    then, now = (process.curves.stretch("24h", learnt.clock) for process in (before, after))
    assert now.metric == "accuracy"
    assert now.metrics == ["accuracy", "loss"]
    assert now.at[:-1] == then.at
    assert now.mean.metric == [*then.mean.metric, None]
    assert set(then.mean.metric) == {0.75}
    assert now.last == then.last
    assert now.last is not None
    assert learnt.at - now.last.at == pytest.approx(3 * 3600.0 - 119, abs=0.1)
    assert after.curves.stretch("10m", learnt.clock).at == [round(learnt.at, 3)], (
        "what is older than a tier is left out"
    )
    after.events.report(EventKind.STARTED, "Started again.")
    assert [event.text for event in after.events.since()] == ["Rewound to checkpoint 3.", "Started again."]
    assert after.events.since(before.events.newest)[0].text == "Started again.", "ids go on"
    after.end()
    assert folder.history_terms() == [after.lease.term], "the file of the earlier term is gone"


def test_a_kill_loses_at_most_the_last_interval(folder: Folder, learnt: Snapshot, wait_for: WaitFor) -> None:
    killed = Process(folder, every_s=0.02)
    killed.add(learnt)
    wait_for(folder.history_terms)
    killed.events.report(EventKind.PAUSED, "Paused: asked to.")
    size = folder.history_of(killed.lease.term).stat().st_size
    wait_for(lambda: folder.history_of(killed.lease.term).stat().st_size > size)
    left = folder.history_of(killed.lease.term).read_bytes()
    killed.end()
    folder.history_of(killed.lease.term).write_bytes(left)
    after = Process(folder)
    wait_for(after.events.since)
    after.end()
    assert after.curves.last["accuracy"].value == 0.75


def flipped(raw: bytes) -> bytes:
    return raw[:-100] + bytes([raw[-100] ^ 1]) + raw[-99:]


@pytest.mark.parametrize(
    ("spoil", "why", "stays"),
    [
        (flipped, "its SHA-256 differs", False),
        (lambda raw: raw[: len(raw) // 2], "its SHA-256 differs", False),
        (lambda _: b"", "it is no history of millrace", True),
        (lambda _: b"PK\x03\x04 something else", "it is no history of millrace", True),
        (lambda raw: raw.replace(b" 1\n", b" 2\n", 1), f"it has the format 2, this is {FORMAT}", True),
    ],
    ids=["a bit flipped", "cut off", "empty", "foreign", "of a later version"],
)
def test_a_file_that_cannot_be_used_is_left_out_and_stays_unless_it_is_damaged(
    folder: Folder,
    learnt: Snapshot,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[bytes], bytes],
    why: str,
    stays: bool,
) -> None:
    caplog.set_level(logging.INFO, logger="millrace.app.service.kept_history")
    term = filled(folder, learnt).lease.term
    path = folder.history_of(term)
    spoilt = spoil(path.read_bytes())
    path.write_bytes(spoilt)
    after = Process(folder)
    after.add(learnt)
    after.end()
    (line,) = caplog.messages
    assert str(path) in line
    assert why in line
    assert after.kept.figures().ignored == 1
    assert len(after.curves.stretch("24h", learnt.clock).at) == 1
    assert folder.history_terms() == [term, after.lease.term][not stays :]
    assert not stays or path.read_bytes() == spoilt


def test_only_the_newest_file_of_another_version_stays_over_later_restarts(folder: Folder, learnt: Snapshot) -> None:
    unknown = []
    for version in (b" 2\n", b" 3\n"):
        path = folder.history_of(filled(folder, learnt).lease.term)
        path.write_bytes(path.read_bytes().replace(b" 1\n", version, 1))
        unknown.append(path)
    for _ in range(2):
        later = filled(folder, learnt)
    assert folder.history_terms() == [int(unknown[-1].name), later.lease.term]
    assert later.kept.figures().ignored == 0, "what an earlier process has kept is newer, and was read"


def test_a_file_that_the_disk_does_not_give_is_taken_in_once_it_does(folder: Folder, learnt: Snapshot) -> None:
    path = folder.history_of(filled(folder, learnt).lease.term)
    aside = path.rename(path.with_name("aside"))
    path.symlink_to(path)  # reading it is an OSError
    refused = Process(folder)
    refused.end()
    assert refused.kept.figures().ignored == 1
    assert path.is_symlink()
    folder.history_of(refused.lease.term).unlink()
    aside.rename(path)
    after = Process(folder)
    after.end()
    assert after.curves.metrics == ["accuracy", "loss"]
    assert folder.history_terms() == [after.lease.term]


class Unwritable(SampleHistory):
    """Curves with a fact that JSON does not have, until it is cured."""

    cured = False

    def copied(self) -> tuple[dict[str, KeptTables], dict[str, Any]]:
        tables, facts = super().copied()
        return tables, facts if self.cured else {**facts, "metric": object()}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the keeping has logged: a thread of another test may still log."""
    return [one.getMessage() for one in caplog.records if one.name == "millrace.app.service.kept_history"]


def test_an_unforeseen_error_is_counted_and_ends_no_keeping(
    folder: Folder, caplog: pytest.LogCaptureFixture, wait_for: WaitFor
) -> None:
    caplog.set_level(logging.INFO, logger="millrace.app.service.kept_history")
    curves, kept = Unwritable(), KeptHistory(Events(), 0.02)
    kept.attach(curves)
    lease = FolderLease.acquire(folder, "a test")
    kept.start(lease)
    wait_for(lambda: kept.figures().failed > 2)
    curves.cured = True
    wait_for(folder.history_terms)
    kept.stop()
    lease.release()
    broken, again = said(caplog)
    assert "Object of type object is not JSON serializable" in broken
    assert again == "the page's history is kept again"


def test_what_cannot_be_written_is_counted_and_logged_once_until_it_can(
    folder: Folder, learnt: Snapshot, caplog: pytest.LogCaptureFixture, wait_for: WaitFor
) -> None:
    caplog.set_level(logging.INFO, logger="millrace.app.service.kept_history")
    folder.create()
    folder.history.write_text("in the way")
    process = Process(folder, every_s=0.02)
    process.add(learnt)
    wait_for(lambda: process.kept.figures().failed > 2)
    folder.history.unlink()
    wait_for(folder.history_terms)
    process.end()
    assert [message.split(" in ")[0] for message in said(caplog)] == [
        "the page's history cannot be kept",
        "the page's history is kept again",
    ]


def test_a_writer_that_was_passed_by_a_later_one_writes_no_more(folder: Folder, learnt: Snapshot) -> None:
    passed = Process(folder)
    passed.add(learnt)
    folder.lock(passed.lease.term + 5).touch()
    passed.end()
    assert passed.kept.figures().failed == 1
    assert folder.history_terms() == []


def test_a_day_of_everything_has_a_bounded_size_and_no_values(folder: Folder, learnt: Snapshot) -> None:
    random, history, events = np.random.default_rng(0), SampleHistory(), Events()
    assert learnt.posting is not None
    names = [f"metric_{index}" for index in range(MOST_METRICS)]
    live = replace(learnt.posting.live, values=dict.fromkeys(names, 0.5))
    history.add(Observer(lambda: replace(learnt, posting=replace(learnt.posting, live=live))).look())  # type: ignore[type-var]
    for tiers, columns in [(history._tiers, len(COLUMNS)), *((one, 2) for one in history._metrics.values())]:
        for span in SPANS:
            for slot in range(span.slots):
                for _ in range(2):
                    tiers[span.name].add(float(slot * span.step_s), 1e9 + slot, random.normal(size=columns))
    for severity in Severity:
        for _ in range(MOST_KEPT):
            events.report(EventKind.PROBLEM, "word " * 400, severity)
    assert len(packed(*history.copied(), events.since())) < 2_000_000


def test_a_model_with_other_metrics_gets_its_history_though_the_old_ones_fill_it(
    folder: Folder, learnt: Snapshot, wait_for: WaitFor
) -> None:
    assert learnt.posting is not None
    many = {f"old_{index}": 0.5 for index in range(20)}
    live = replace(learnt.posting.live, values=many, watch=replace(learnt.posting.live.watch, name="old_1"))
    before = Process(folder)
    before.add(replace(learnt, posting=replace(learnt.posting, live=live)))
    before.end()
    after = Process(folder)
    wait_for(lambda: len(after.curves.metrics) == MOST_METRICS)
    after.add(replace(learnt, at=learnt.at + 1, clock=learnt.clock + 1))
    assert {"accuracy", "loss"} <= set(after.curves.metrics)
    assert len(after.curves.metrics) == MOST_METRICS
    assert after.curves.stretch("10m", learnt.clock + 1).mean.metric == [None, 0.75]
    after.end()


@pytest.mark.parametrize(
    ("phase", "age_s", "drawn"), [(Phase.PAUSED, 6.0, False), (Phase.IDLE, 6.0, True), (Phase.IDLE, 61.0, False)]
)
def test_the_line_breaks_where_nothing_is_scored_and_the_last_value_stays(
    learnt: Snapshot, phase: Phase, age_s: float, drawn: bool
) -> None:
    history = SampleHistory()
    rests = replace(aged(learnt, age_s), phase=replace(learnt.phase, phase=phase), clock=learnt.clock + age_s)
    for snapshot in (learnt, replace(rests, at=learnt.at + age_s)):
        history.add(Observer(lambda one=snapshot: one).look())  # type: ignore[misc]
    shown = history.stretch("10m", learnt.clock + age_s)
    assert shown.mean.metric == [0.75, 0.75 if drawn else None]
    assert shown.last is not None
    assert shown.last.value == 0.75
    assert shown.last.at == pytest.approx(learnt.at, abs=0.1)


def test_events_of_a_clock_that_was_ahead_do_not_mix_up_the_ids() -> None:
    events = Events(lambda: 1000.0)
    events.report(EventKind.STARTED, "Started again.")
    ids = (5, 2_000_000)
    of_it = [Event(id=one, at=1.0, kind=EventKind.PAUSED, severity=Severity.INFO, text=str(one)) for one in ids]
    events.restore(of_it)
    assert [event.text for event in events.since()] == ["5", "Started again."]
