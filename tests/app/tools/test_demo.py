"""The demo's parts: a stream known by its places, a witness taken at its word, a report that can fail."""

import io
import itertools
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from millrace.app.tools.child_process import SupervisedProcess
from millrace.app.tools.demo import drifting_stream
from millrace.app.tools.demo import workspace as homes
from millrace.app.tools.demo.demo import Demo, DemoError, DemoOptions, Findings, start_broker, started
from millrace.app.tools.demo.drifting_stream import CYCLE_S, drift, last_drift, next_drift
from millrace.app.tools.demo.report import AccuracyHistory, report_of, summary
from millrace.app.tools.demo.screen import Screen, View, as_drawing, as_line
from millrace.app.tools.demo.witness_check import Witnesses, WitnessResult
from millrace.app.tools.demo.workspace import Workspace
from millrace.app.tools.local_broker import FolderInUseError, LocalBroker, PortTakenError
from millrace.app.tools.status_view import StatusReadings
from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.checkpoints import CheckpointStore, Folder, FolderLease, PartState, SaveReason, SaveRequest
from millrace.training.ledger.ledger import Ledger
from millrace.training.ledger.offset_checksum import Evidence

END = 1300
"""Offsets of each partition that the checkpoint in these tests has settled; five or six of them all are bad."""


def test_a_record_depends_only_on_its_partition_and_offset() -> None:
    whole = drifting_stream.values(2, 0, 1000)
    assert [
        *drifting_stream.values(2, 0, 7),
        *drifting_stream.values(2, 7, 500),
        *drifting_stream.values(2, 507, 493),
    ] == whole
    assert drifting_stream.values(3, 0, 1000) != whole


def test_the_first_offset_of_a_second_is_the_first_that_is_due_in_it() -> None:
    for partition in range(drifting_stream.PARTITIONS):
        for at_s in (0.0, 0.0003, 40.0, 77.7777):
            offset = drifting_stream.first_offset(partition, at_s)
            assert drifting_stream.seconds(partition, offset) >= at_s
            assert offset == 0 or drifting_stream.seconds(partition, offset - 1) < at_s


def test_the_bad_records_are_those_that_cannot_be_read() -> None:
    for partition in range(drifting_stream.PARTITIONS):
        bad = drifting_stream.is_bad(partition, np.arange(3000, dtype=np.int64))
        assert [not _readable(value) for value in drifting_stream.values(partition, 0, 3000)] == bad.tolist()
    assert sum(drifting_stream.is_bad(number, np.arange(250, dtype=np.int64)).sum() for number in range(4)) == 1


def _readable(value: bytes) -> bool:
    try:
        return isinstance(json.loads(value), dict)
    except ValueError:
        return False


def test_the_first_five_minutes_hold_two_abrupt_drifts_and_a_gradual_one() -> None:
    kinds = [drift(number).kind for number in (1, 2, 3)]
    assert sorted(kinds) == ["abrupt", "abrupt", "gradual"]
    assert drift(3).ends_s < CYCLE_S < drift(4).begins_s
    assert last_drift(0) is None
    for number in range(1, 10):
        begins_s = drift(number).begins_s
        assert last_drift(begins_s) == drift(number)
        assert next_drift(begins_s - 0.001) == drift(number)
        assert next_drift(begins_s) == drift(number + 1)


def test_sales_before_and_after_a_drift_are_uncorrelated() -> None:
    liked = [_liked_at(drift(number).ends_s) for number in (1, 2, 3)]
    for before, after in itertools.pairwise(liked):
        assert abs(np.corrcoef(before, after)[0, 1]) < 0.35


def _liked_at(at_s: float) -> list[float]:
    """Return by item how often it is bought in the eight seconds from then on."""
    rows = [
        json.loads(value)
        for value in drifting_stream.values(0, drifting_stream.first_offset(0, at_s), 10_000)
        if _readable(value)
    ]
    return [float(np.mean([row["bought"] for row in rows if row["item"] == item])) for item in drifting_stream.ITEMS]


def _learnable(partition: int) -> list[int]:
    offsets = np.arange(END, dtype=np.int64)
    return [int(offset) for offset in offsets[~drifting_stream.is_bad(partition, offsets)]]


def _testified(folder: Folder, seen: Callable[[int], list[int]]) -> WitnessResult:
    """Check a checkpoint whose weights have seen these offsets, and whose ledger says that all is well."""
    partitions = [Partition(drifting_stream.TOPIC, number) for number in range(drifting_stream.PARTITIONS)]
    ledger = Ledger()
    for partition in partitions:
        ledger.join(partition, 0)
    ledger.begin_incarnation()
    spans = tuple(
        Span(
            partition=partition,
            index=partition.number,
            start=0,
            end=END,
            learnt=len(_learnable(partition.number)),
            set_aside={Reason.MALFORMED: END - len(_learnable(partition.number))},
        )
        for partition in partitions
    )
    rows = sum(span.learnt for span in spans)
    ledger.settle(
        BlockFacts(
            number=1, incarnation=1, spans=spans, batches=1, rows=rows, seed=0, fetched_at=0.0, oldest_ms=1, newest_ms=1
        )
    )
    evidence = {str(partition): Evidence.of(seen(partition.number)) for partition in partitions}
    parts = {
        ledger.name: ledger.snapshot(),
        "witness": PartState(facts={name: [one.count, one.total, one.mixed] for name, one in evidence.items()}),
        "model": PartState(),
        "optimizer": PartState(),
    }
    writer = FolderLease.acquire(folder, "a test")
    try:
        order = SaveRequest(
            reason=SaveReason.START, parent=None, step=1, incarnation=1, positions=ledger.positions(), provenance={}
        )
        CheckpointStore(folder, writer).publish(order, parts)
    finally:
        writer.release()
    found = Witnesses(folder).newest()
    assert found is not None
    return found


def _seen(partition: int, *, lost: int | None, twice: int | None) -> list[int]:
    offsets = _learnable(partition)
    if partition == 1:
        offsets += [] if twice is None else [twice]
        offsets = [offset for offset in offsets if offset != lost]
    return offsets


@pytest.mark.parametrize(
    ("lost", "twice", "told"),
    [(None, None, (0, 0)), (77, None, (1, 0)), (None, 77, (0, 1)), (77, 78, (1, 1))],
)
def test_the_check_believes_the_witness_and_not_the_ledger(
    lost: int | None, twice: int | None, told: tuple[int, int], tmp_path: Path
) -> None:
    found = _testified(Folder(tmp_path), lambda partition: _seen(partition, lost=lost, twice=twice))
    assert (found.lost, found.learnt_twice) == told
    assert found.holds == (told == (0, 0))
    assert found.offsets == END * drifting_stream.PARTITIONS
    assert found.set_aside == sum(END - len(_learnable(number)) for number in range(drifting_stream.PARTITIONS))


def status(at_s: float, accuracy: float, **more: Any) -> dict[str, Any]:
    """Return the status of a trainer that has learnt the stream up to there."""
    offsets = round(at_s * drifting_stream.RECORDS_PER_S)
    records = {"offsets": offsets, "learnt": offsets, "set_aside": {"malformed": 3}, "balanced": True}
    records |= {"skipped": {}, "gaps": 0, "lost": 0}
    return {
        "name": "demo",
        "as_of": "2026-11-25T10:00:00Z",
        "kafka": {"topics": ["visits"], "connected": True},
        "problems": [],
        "state": "training",
        "verdict": "Learning.",
        "mood": "well",
        "records": records,
        "live": {"headline": "accuracy", "accuracy": accuracy, "baseline": {"accuracy": 0.52}},
        "stream": {"lag_s": 0.2},
        "throughput": {
            "records_per_s": {"10s": 5000.0},
            "waiting": {"compute": 0.3, "records": 0.7},
            "advice": "It learns as fast as records come.",
        },
        "checkpoint": {"number": 4, "age_s": 2.0, "step": 100},
        **more,
    }


def lived(recovers_after_s: float, frozen: float | None, majority: float = 0.52) -> AccuracyHistory:
    """Return a history of eighty seconds with a drift at forty."""
    history = AccuracyHistory()
    for tick in range(160):
        at_s = tick / 2
        good = at_s > 3 and not 40 <= at_s < 40 + recovers_after_s
        live = {"accuracy": 0.92 if good else 0.7, "baseline": {"accuracy": majority}}
        history.see(status(at_s, 0.0, live=live))
        if at_s >= 40 and frozen is not None:
            history.judged({"drift": 1, "second": int(at_s), "records": 1000, "hits": round(1000 * frozen)})
    return history


@pytest.fixture
def well() -> WitnessResult:
    return WitnessResult(checkpoint=9, offsets=110, learnt=100, set_aside=10, lost=0, learnt_twice=0)


def test_a_model_that_recovers_breaks_no_claim(well: WitnessResult) -> None:
    report = report_of(lived(12, frozen=0.5), None, well)
    assert report["broken"] == []
    (seen,) = report["drifts"]
    assert (seen["live_before"], seen["live_lowest"], seen["recovered_after_s"]) == (0.92, 0.7, 12.0)
    assert (seen["frozen"], seen["frozen_records"]) == (0.5, 40_000)
    assert "lost 0, learnt twice 0" in "\n".join(summary(report))


def test_a_drift_without_a_loss_is_reported_without_a_recovery(well: WitnessResult) -> None:
    said = "\n".join(summary(report_of(lived(0, frozen=0.5), None, well)))
    assert "live accuracy 0.920, at its lowest 0.920; a copy" in said
    said = "\n".join(summary(report_of(lived(12, frozen=0.5), None, well)))
    assert "live accuracy 0.920, at its lowest 0.700, above 0.85 again after 12 s; a copy" in said


@pytest.mark.parametrize(
    ("history", "complaint"),
    [
        (lived(35, frozen=0.5), "was not above 0.85 again within 30 s"),
        (lived(12, frozen=0.8), "the frozen copy scored 0.8"),
        (lived(12, frozen=None), "no frozen copy was scored"),
        (lived(12, frozen=0.5, majority=0.7), "the majority class scored 0.7"),
    ],
)
def test_a_broken_claim_is_reported(history: AccuracyHistory, complaint: str, well: WitnessResult) -> None:
    (said,) = report_of(history, None, well)["broken"]
    assert complaint in said


def test_an_offset_that_was_lost_breaks_the_claim_at_a_restart_and_at_the_end(well: WitnessResult) -> None:
    lost = WitnessResult(checkpoint=7, offsets=110, learnt=99, set_aside=10, lost=1, learnt_twice=0)
    for resumed, last in ((lost, well), (well, lost)):
        (said,) = report_of(lived(12, frozen=0.5), resumed, last)["broken"]
        assert said == "checkpoint 7: lost 1, learnt twice 0"


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[SupervisedProcess]:
    """Give a judge that reads no requests any more, and ends on SIGTERM."""
    code = "import os, signal; os.close(0); print('deaf', flush=True); signal.pause()"
    child = SupervisedProcess([sys.executable, "-c", code], tmp_path / "judge.log", pipes=True)
    assert child.output is not None
    assert child.output.readline() == "deaf\n"
    with child._process:
        yield child
        child.end(20)


def test_a_request_to_a_dying_judge_raises_nothing(judge: SupervisedProcess) -> None:
    judge.send_line("the first")
    judge.send_line("the second")
    assert judge.exit_code is None


def test_a_judge_that_ended_ends_the_demo(judge: SupervisedProcess, tmp_path: Path) -> None:
    demo = Demo(
        broker=cast("Any", SimpleNamespace(running=lambda: True)),
        trainer=cast("Any", None),
        freezer=cast("Any", SimpleNamespace(judge=judge)),
        load=cast("Any", SimpleNamespace(error=None)),
        findings=Findings(Workspace(path=tmp_path)),
        screen=Screen(Console(file=io.StringIO()), plain=True),
    )
    judge.end(20)
    with pytest.raises(DemoError, match="the judge ended by itself"):
        demo.watch(None)


def test_a_drift_that_was_not_seen_from_its_beginning_is_not_judged(well: WitnessResult) -> None:
    history = AccuracyHistory()
    for tick in range(100):
        history.see(status(60 + tick / 2, 0.92))
    (seen,) = report_of(history, None, well)["drifts"]
    assert not seen["seen_whole"]
    assert report_of(history, None, well)["broken"] == []


@pytest.mark.parametrize("heard_again_s", [46, 70, 130])
def test_a_drift_while_the_trainer_did_not_answer_breaks_the_claim(heard_again_s: int, well: WitnessResult) -> None:
    history = AccuracyHistory()
    for at_s in (*range(39), *range(heard_again_s, 150)):
        history.see(status(at_s, 0.92))
    said = [line for line in report_of(history, None, well)["broken"] if line.startswith("drift 1 (abrupt, at 40 s)")]
    assert said == ["drift 1 (abrupt, at 40 s): nothing was heard of the trainer when it came, so nothing is known"]


def test_each_drift_is_judged_by_itself(well: WitnessResult) -> None:
    history = AccuracyHistory()
    for tick in range(550):
        at_s = tick / 2
        history.see(status(at_s, 0.7 if 40 <= at_s < 52 or at_s >= 240 else 0.92))
        if (past := last_drift(at_s)) is not None:
            history.judged({"drift": past.number, "second": int(at_s), "records": 1000, "hits": 500})
    (said,) = report_of(history, None, well)["broken"]
    assert said == "drift 3 (abrupt, at 240 s): live accuracy was not above 0.85 again within 30 s"


@pytest.fixture
def taken() -> Iterator[int]:
    """Give a port that another program has."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


def test_a_taken_port_is_skipped(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "_API_PORT", taken)
    assert taken < homes.api_port(None) < taken + 50


def test_a_taken_port_that_was_asked_for_is_an_error(taken: int) -> None:
    with pytest.raises(ConfigError, match=f"--port {taken} is taken"):
        homes.api_port(taken)


def test_without_a_free_port_each_error_names_its_own_remedy(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "_PORTS_TRIED", 1)
    for name in ("_API_PORT", "_BROKER_PORT"):
        monkeypatch.setattr(homes, name, taken)
    with pytest.raises(ConfigError, match=f"{taken} is free; choose one with --port"):
        homes.api_port(None)
    with pytest.raises(ConfigError, match=f"{taken} is free; end a program that has one of them"):
        homes.broker_port(besides=None)


def test_kafka_avoids_the_port_that_the_page_was_asked_to_use() -> None:
    wanted = homes.broker_port(besides=None)
    assert homes.broker_port(besides=wanted) != wanted


def test_a_port_lost_a_moment_ago_asks_for_another_start(taken: int, tmp_path: Path) -> None:
    screen = Screen(Console(file=io.StringIO()), plain=True)
    with pytest.raises(PortTakenError, match=f"another program took 127.0.0.1:{taken}.*start the demo again"):
        start_broker(LocalBroker(tmp_path / "broker", port=taken), screen)


def test_a_model_that_was_edited_stays_as_it_is(tmp_path: Path) -> None:
    home = Workspace(path=tmp_path / "demo")
    home.create()
    home.write_config(broker="127.0.0.1:9092", api_port=8080)
    (home.path / "model.py").write_text("# mine")
    home.create()
    assert (home.path / "model.py").read_text() == "# mine"


@pytest.mark.parametrize("name", ["millrace.yaml", "model.py"])
def test_a_folder_with_a_users_own_files_is_left_unchanged(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("# somebody else's\n")
    with pytest.raises(ConfigError, match=f"{name} is not the demo's own.*choose another --folder"):
        Workspace(path=tmp_path).create()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "# somebody else's\n"


def test_a_start_that_was_cut_short_before_its_config_can_be_repeated(tmp_path: Path) -> None:
    Workspace(path=tmp_path).create()
    Workspace(path=tmp_path).create()


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that takes the place of a trainer in a demo's folder."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "its-config"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        (tmp_path / "trainer.pid").write_text(json.dumps({"pid": process.pid, "marker": "its-config"}))
        yield process
        process.kill()


def test_a_second_demo_in_a_folder_is_refused_and_harms_nothing(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    home = Workspace(path=tmp_path)
    first, screen = LocalBroker(home.broker), Screen(Console(file=io.StringIO()), plain=True)
    first.claim()
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        with (
            pytest.raises(FolderInUseError, match=f"a demo runs in {tmp_path} already.*choose another --folder"),
            started(DemoOptions(home=home), screen, Findings(home)),
        ):
            pass
    finally:
        signal.signal(signal.SIGINT, handlers[0])
        signal.signal(signal.SIGTERM, handlers[1])
    sleeper.communicate(timeout=60)
    assert sleeper.returncode == 0  # it ended by itself, when its input did
    first.stop()


@pytest.fixture
def view(well: WitnessResult) -> View:
    now = lived(12, frozen=0.5).now
    assert now is not None
    return View(pid=4711, page="http://127.0.0.1:8080/", status=status(79.5, 0.92), now=now, testimony=well)


def test_the_view_shows_how_to_kill_it_and_fits_a_small_terminal(view: View) -> None:
    screen = Console(file=io.StringIO(), width=80, record=True)
    screen.print(as_drawing(view, StatusReadings.of(view.status)))
    lines = screen.export_text().splitlines()
    assert len(lines) <= 22
    shown = "\n".join(lines)
    for part in (
        "Learning.",
        "it balances",
        "kill -9 4711",
        "http://127.0.0.1:8080/",
        "0.920",
        "0.500",
        "lost 0, learnt twice 0",
    ):
        assert part in shown


def test_without_a_terminal_there_are_plain_lines(view: View, capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(Console(width=40), plain=False)
    screen.show(view)
    assert capsys.readouterr().out == as_line(view) + "\n"
    assert "live 0.920  frozen 0.500  majority 0.520" in as_line(view)
