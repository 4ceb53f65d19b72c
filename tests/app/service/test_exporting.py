"""The thread that starts exports: what it holds back and since when, and what it makes of a failing child."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from millrace.app.service.exporting import Exporting, ExportVerdict, RunExport
from millrace.app.settings import Settings
from millrace.training.checkpoints.exports.version_folder import VersionFolder
from millrace.training.checkpoints.manifest import GoldenScores, Manifest
from millrace.training.checkpoints.pins import Pins
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.telemetry.events import Events
from millrace.training.telemetry.meter import Meter
from tests.app.checkpoint_history import folder_in, publish_history
from tests.app.conftest import FIVE_LINES, LoadText
from tests.conftest import WaitFor

AUTOGROUP = Path("/proc/self/autogroup")
GIVES_WAY = f"""
import json, os, pathlib
from millrace.app.tools.child_process import give_way
give_way()
file = pathlib.Path({str(AUTOGROUP)!r})
print(json.dumps({{"nice": os.nice(0), "session": file.read_text() if file.exists() else "", "already": False}}))
"""
EXPORT = '\nexport: {path: ./exports, every: 1s, only_if: ["accuracy >= 0.5"]}\n'


class Exports:
    """What is run in place of a child, on the real thread."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answer = ExportVerdict(manifest={"number": 0, "proof": {"rows": 256}, "records": 7, "metrics": {}})

    def __call__(self, number: int, within_s: float, stopped: threading.Event) -> ExportVerdict:
        self.asked.append(number)
        found = self.answer.manifest
        return self.answer if found is None else replace(self.answer, manifest={**found, "number": number})


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    publish_history(folder_in(tmp_path), 5)
    return CheckpointStore(folder_in(tmp_path)).manifest(0)


@contextmanager
def exporting(settings: Settings, run: RunExport, events: Events) -> Iterator[Exporting]:
    thread = Exporting(settings, events.report, run, clock=iter(range(10**6)).__next__)  # a second a look
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def made_at(manifest: Manifest, number: int, accuracy: float) -> Manifest:
    return replace(manifest, number=number, step=number, metrics={"accuracy": accuracy})


def kinds(events: Events) -> list[str]:
    return [event.kind.value for event in events.since()]


def test_a_gate_says_once_what_is_missing_and_since_when(
    load_text: LoadText, manifest: Manifest, wait_for: WaitFor, tmp_path: Path
) -> None:
    runs, events, settings = Exports(), Events(), load_text(FIVE_LINES + EXPORT).settings
    with exporting(settings, runs, events) as thread:
        for number in (1, 2):
            thread.durable(made_at(manifest, number, 0.25), Meter(time.monotonic))
            wait_for(lambda: (found := thread.figures()) is not None and found.missing is not None, timeout=10)
        held = thread.figures()
        assert held is not None
        assert held.missing == ("accuracy is 0.25, and accuracy >= 0.5 is asked",)
        assert held.missing_since is not None
        assert time.time() - held.missing_since < 60
        thread.durable(made_at(manifest, 3, 0.75), Meter(time.monotonic))
        wait_for(lambda: (found := thread.figures()) is not None and found.made == 1, timeout=10)
        passed = thread.figures()
    assert passed is not None
    assert (passed.newest, passed.missing, passed.missing_since) == (3, None, None)
    assert runs.asked == [3]
    assert [pin.number for pin in Pins(folder_in(tmp_path)).all()] == [3], "it may be pruned before a process starts"
    assert kinds(events) == ["export_held_back", "exported"]


def held_for(thread: Exporting, lacking: str) -> bool:
    figures = thread.figures()
    return figures is not None and figures.missing == (lacking,)


def test_a_gate_may_ask_for_a_score_on_the_golden_set(
    load_text: LoadText, manifest: Manifest, wait_for: WaitFor
) -> None:
    text = EXPORT.replace("accuracy >= 0.5", "golden.accuracy >= 0.5")
    runs, settings = Exports(), load_text(FIVE_LINES + text).settings
    with exporting(settings, runs, Events()) as thread:
        for number, golden, lacking in (
            (1, None, "golden.accuracy is not known yet, and has to be >= 0.5"),
            (2, 0.25, "golden.accuracy is 0.25, and golden.accuracy >= 0.5 is asked"),
        ):
            made = made_at(manifest, number, accuracy=0.75)
            scores = None if golden is None else GoldenScores(rows=9, sha256="ab", values={"accuracy": golden})
            thread.durable(replace(made, golden=scores), Meter(time.monotonic))
            wait_for(partial(held_for, thread, lacking), timeout=10)
        scores = GoldenScores(rows=9, sha256="ab", values={"accuracy": 0.5})
        thread.durable(replace(made_at(manifest, 3, 0.25), golden=scores), Meter(time.monotonic))
        wait_for(lambda: (found := thread.figures()) is not None and found.made == 1, timeout=10)
    assert runs.asked == [3]


def test_a_gate_counts_the_records_that_the_checkpoint_has_learnt(
    load_text: LoadText, manifest: Manifest, wait_for: WaitFor, tmp_path: Path
) -> None:
    runs, settings = Exports(), load_text(FIVE_LINES + EXPORT.replace("]", ', "records >= 28"]')).settings
    saved = CheckpointStore(folder_in(tmp_path)).manifest(2)  # of 18 and 10 records
    with exporting(settings, runs, Events()) as thread:
        thread.durable(replace(saved, number=99, metrics={"accuracy": 0.75}), Meter(time.monotonic))
        wait_for(partial(held_for, thread, "records is not known yet, and has to be >= 28"), timeout=10)
        thread.durable(replace(saved, metrics={"accuracy": 0.75}), Meter(time.monotonic))
        wait_for(lambda: (found := thread.figures()) is not None and found.made == 1, timeout=10)
    assert runs.asked == [2]


def test_an_export_that_fails_is_an_event_and_the_next_is_made(
    load_text: LoadText, manifest: Manifest, wait_for: WaitFor
) -> None:
    runs, events, settings = Exports(), Events(), load_text(FIVE_LINES + EXPORT).settings
    works, runs.answer = runs.answer, ExportVerdict(manifest=None, error="the volume is full")
    with exporting(settings, runs, events) as thread:
        thread.durable(made_at(manifest, 1, 0.75), Meter(time.monotonic))
        wait_for(lambda: (found := thread.figures()) is not None and found.refused == 1, timeout=10)
        runs.answer = works
        thread.durable(made_at(manifest, 2, 0.75), Meter(time.monotonic))
        wait_for(lambda: (found := thread.figures()) is not None and found.made == 1, timeout=10)
    texts = [event.text for event in events.since()]
    assert texts[0] == "Checkpoint 1 is not exported: the volume is full. It is tried again with a later one, in 1s."
    assert texts[1] == "Version 2 is published, proven on 256 records."


@pytest.mark.parametrize("provenance", [{}, {"initial_weights": {}}, {"pretrained": {}}, {"forked_from": {}}])
def test_a_beginning_is_exported_only_with_weights_that_were_learnt_before(
    load_text: LoadText, manifest: Manifest, wait_for: WaitFor, provenance: dict[str, object]
) -> None:
    runs, settings = Exports(), load_text(FIVE_LINES + "\nexport: {path: ./exports, every: 1s}\n").settings
    with exporting(settings, runs, Events()) as thread:
        thread.durable(replace(manifest, provenance=provenance), Meter(time.monotonic))
        if provenance:
            wait_for(lambda: runs.asked == [0], timeout=10)
        else:
            assert thread._newest is None
        thread.durable(made_at(manifest, 1, 0.75), Meter(time.monotonic))
        wait_for(lambda: runs.asked[-1:] == [1], timeout=10)
    assert runs.asked == [0, 1] if provenance else [1]


def test_the_log_says_what_becomes_of_each_export(
    load_text: LoadText,
    manifest: Manifest,
    wait_for: WaitFor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("millrace.app.service.exporting", "millrace.app.service.exporting.refusals"):
        monkeypatch.setattr(logging.getLogger(name), "filters", [])  # other tests have used up their lines
    runs, settings = Exports(), load_text(FIVE_LINES + EXPORT).settings
    published = runs.answer
    hangs = threading.Event()

    def run(number: int, within_s: float, stopped: threading.Event) -> ExportVerdict:
        runs.answer = ExportVerdict(manifest=None, error="the volume is full") if number == 3 else published
        if number == 5:
            hangs.set()
            stopped.wait()
            return ExportVerdict(manifest=None, error="its process ended with killed by signal 9")
        return replace(runs(number, within_s, stopped), already=number == 4)

    def saved(number: int, accuracy: float = 0.75) -> None:
        thread.durable(made_at(manifest, number, accuracy), Meter(time.monotonic))

    def said(line: str) -> bool:
        return line in [record.getMessage() for record in caplog.records]

    caplog.set_level(logging.INFO, "millrace.app.service.exporting")
    with exporting(settings, run, Events()) as thread:
        saved(0)
        saved(1, accuracy=0.25)
        lacking = "accuracy is 0.25, and accuracy >= 0.5 is asked"
        wait_for(lambda: said(f"checkpoint 1 is not exported, nor are later ones before it holds: {lacking}"), 10)
        for number, end in (
            (2, "version 2 is published, proven on 256 records, after 1.0 s"),
            (3, "checkpoint 3 is not exported: the volume is full; a later one is tried in 1s"),
            (4, "version 4 is there already"),
        ):
            saved(number)
            wait_for(partial(said, end), 10)
            assert said(f"checkpoint {number} is being exported")
        saved(5)
        assert hangs.wait(10)
        assert (now := thread.figures()) is not None
        assert (now.running, now.running_since is not None, now.error) == (5, True, None)
    assert said("checkpoint 0 is not exported: it has learnt nothing yet")
    assert said("the export of checkpoint 5 is ended, because the service ends")


def test_without_an_interval_nothing_is_started(load_text: LoadText, manifest: Manifest) -> None:
    thread = Exporting(load_text(FIVE_LINES + "\nexport: {path: ./exports}\n").settings, Events().report, Exports())
    thread.start()
    thread.durable(manifest, Meter(time.monotonic))
    assert (found := thread.figures()) is not None
    assert (found.made, found.running) == (0, None)
    thread.stop()


def test_without_a_folder_there_is_nothing_to_report(load_text: LoadText) -> None:
    assert Exporting(load_text(FIVE_LINES).settings, Events().report, Exports()).figures() is None


def priority() -> tuple[int, str]:
    """Return how this process gives way to others, and how its session does."""
    return os.getpriority(os.PRIO_PROCESS, 0), AUTOGROUP.read_text() if AUTOGROUP.exists() else ""


@pytest.mark.slow
def test_exports_leave_the_priority_of_the_trainer_and_its_session(tmp_path: Path) -> None:
    from millrace.app.tools.child_process.die_with_parent import dying_with_parent
    from millrace.app.tools.export.child_process import ExportProcess

    export, before = ExportProcess(tmp_path / "clicks.yaml"), priority()
    export._command = dying_with_parent([sys.executable, "-c", GIVES_WAY])  # as the verb does, without TensorFlow
    lowered = [export(0, 60.0, threading.Event()).manifest for _ in range(3)]
    assert priority() == before
    assert [each and (each["nice"], each["session"]) for each in lowered] == [(19, before[1])] * 3


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux runs processes while a core is idle")
def test_an_export_runs_on_idle_cores_and_again_at_low_priority_if_it_starves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.app.tools.child_process.die_with_parent import dying_with_parent
    from millrace.app.tools.export import child_process

    # It says how it is scheduled; while it may run on idle cores alone it sleeps, as one does that gets none.
    code = (
        "import json, os, sys, time\n"
        "open(sys.argv[1], 'a').write(f'{os.sched_getscheduler(0)} ')\n"
        "time.sleep(600 * (os.sched_getscheduler(0) == os.SCHED_IDLE))\n"
        "print(json.dumps({'nice': os.nice(0), 'already': True}))\n"  # as if the first had published
    )
    monkeypatch.setattr(child_process, "_STARVING_S", 5.0)
    export = child_process.ExportProcess(tmp_path / "clicks.yaml")
    export._command = dying_with_parent([sys.executable, "-c", code, str(tmp_path / "tried")])
    verdict = export(0, 60.0, threading.Event())
    assert verdict.manifest == {"nice": 19, "already": True}
    assert not verdict.already
    assert (tmp_path / "tried").read_text().split() == [str(os.SCHED_IDLE), str(os.SCHED_OTHER)]


def test_a_sandbox_that_forbids_idle_scheduling_has_exports_at_low_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.app.tools.child_process.die_with_parent import dying_with_parent
    from millrace.app.tools.export.child_process import ExportProcess

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    export = ExportProcess(tmp_path / "clicks.yaml")
    export._command = dying_with_parent([sys.executable, "-c", GIVES_WAY])
    found = export(0, 60.0, threading.Event()).manifest
    assert found is not None
    assert found["nice"] == 19


def test_an_export_typed_in_a_terminal_leaves_the_priority_of_that_session() -> None:
    before = priority()
    shown = subprocess.run([sys.executable, "-c", GIVES_WAY], capture_output=True, text=True, check=True).stdout
    assert priority() == before
    assert json.loads(shown) == {"nice": 19, "session": before[1], "already": False}


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(("armed", "why"), [("sleep:600", "it took longer than 20 s"), ("kill", "killed by signal 9")])
def test_a_child_that_hangs_or_dies_is_ended_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, armed: str, why: str
) -> None:
    from millrace.app.tools.export import child_process
    from millrace.app.tools.export.child_process import ExportProcess
    from tests.app.tools.export.exported_model import project

    monkeypatch.setattr(child_process, "run_when_idle", lambda _pid: False)  # beside other tests no core is idle
    folder = VersionFolder(project(tmp_path, saves=0).settings.export.path or tmp_path)
    monkeypatch.setenv("MILLRACE_FAILPOINTS", f"export.before_save={armed}")
    before = priority()
    verdict = ExportProcess(tmp_path / "clicks.yaml")(0, 20.0 if "sleep" in armed else 100.0, threading.Event())
    assert priority() == before
    assert (verdict.manifest, why in verdict.error) == (None, True), verdict.error
    assert folder.numbers() == []


def test_what_a_model_prints_is_not_taken_for_what_was_published() -> None:
    from millrace.app.tools.export.child_process import published

    verdict = published('model: building\n{\n  "number": 3,\n  "already": false\n}\n')
    assert (verdict.manifest, verdict.already, verdict.error) == ({"number": 3, "already": False}, False, "")
    assert published("killed\n").error == "it has not reported what it published"
