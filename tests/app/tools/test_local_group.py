"""A group on one machine: real processes in place of its trainers, that end when and how a test wants."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.app.settings import load
from millrace.app.settings.environment import with_own
from millrace.app.tools import local_group
from millrace.app.tools.local_group import FORCED, Plan, StopSignals, Worker, plan_of, run_group
from millrace.consumers.errors import ConfigError
from millrace.training.telemetry.group_report import CHIEF

CONFIG = """\
name: clicks
kafka: {bootstrap_servers: [localhost:9092], topics: [clicks]}
records: {format: json, features: {price: float32}, label: {clicked: float32}}
model: {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
"""
ON_SIGTERM = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit({code})); print('up', flush=True)\n"
OBEDIENT = ON_SIGTERM.format(code=0) + "signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
WAIT_S = 60.0


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    """Write a config with further lines."""

    def write(more: str = "") -> Path:
        path = tmp_path / "clicks.yaml"
        path.write_text(CONFIG + more)
        (tmp_path / "model.py").write_text("def build_model(): ...\n")
        return path

    return write


def planned(path: Path, workers: int = 4, *taken: int) -> Plan:
    return plan_of(path, workers, in_terminal=False, free=lambda port: port not in taken)


def test_each_worker_finds_its_place_and_all_the_same_addresses(config: Callable[[str], Path]) -> None:
    path = config("scale: {workers: 2}\n")
    found = [load(path, with_own(place.variables)).settings for place in planned(path).places]
    assert [one.scale.index for one in found] == [0, 1, 2, 3]
    assert {one.scale.workers for one in found} == {4}
    (addresses,) = {one.scale.everyone for one in found}
    assert len(set(addresses)) == 4
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_the_chief_has_the_port_of_the_config_and_the_others_the_next_free_ones(config: Callable[[str], Path]) -> None:
    path = config('api: {listen: "127.0.0.1:8100", probes: "127.0.0.1:8101"}\n')
    places = planned(path, 4, 8101, 8103).places
    found = [load(path, with_own(place.variables)).settings.api for place in places]
    assert [one.listen for one in found] == [f"127.0.0.1:{port}" for port in (8100, 8102, 8104, 8105)]
    assert [one.probes for one in found] == ["127.0.0.1:8101", None, None, None]
    assert [place.page for place in places] == [f"http://{one.listen}/" for one in found]
    assert [place.name for place in places] == ["chief", "worker 1", "worker 2", "worker 3"]


def test_no_page_has_a_port_on_which_the_group_is_to_meet(
    config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_group, "free_port", iter((8101, 8103)).__next__)
    places = planned(config('api: {listen: "127.0.0.1:8100"}\n'), 2).places
    assert [place.page for place in places] == ["http://127.0.0.1:8100/", "http://127.0.0.1:8102/"]


def test_a_batch_that_the_workers_cannot_share_is_refused_before_one_starts(config: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="multiple of 3"):
        planned(config("training: {batch_size: 64}\n"), 3)


def test_other_spellings_of_a_workers_setting_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("millrace_scale__index", "5")
    monkeypatch.setenv("MILLRACE_KAFKA__GROUP", "mine")
    environment = with_own({"MILLRACE_SCALE__INDEX": "1"})
    assert {name for name in environment if name.upper() == "MILLRACE_SCALE__INDEX"} == {"MILLRACE_SCALE__INDEX"}
    assert environment["MILLRACE_KAFKA__GROUP"] == "mine"


class Lines:
    """A group that runs in a thread, and what it has written."""

    def __init__(self, folder: Path, *codes: str, ends: bool = False, grace_s: float = WAIT_S) -> None:
        self.written: list[str] = []
        self.started: list[str] = []
        self.signals = StopSignals()
        self.workers = [
            Worker(name, [sys.executable, "-c", code], os.environ, folder / f"{name}.log", self.written.append)
            for name, code in zip(("chief", "worker 1"), codes, strict=True)
        ]
        self.code: int | None = None
        self._ends, self._grace_s = ends, grace_s
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.code = run_group(
            self.workers,
            self.signals,
            ends=self._ends,
            grace_s=self._grace_s,
            started=lambda worker: self.started.append(worker.name),
        )

    def ended(self) -> int | None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        assert not any(worker.runs for worker in self.workers)
        return self.code

    def stop(self) -> int | None:
        self.signals.taken += 1
        return self.ended()


Wait = Callable[[Callable[[], object]], None]


def test_all_are_stopped_by_sigterm_and_the_group_ends_as_the_chief_did(tmp_path: Path, wait_for: Wait) -> None:
    group = Lines(tmp_path, ON_SIGTERM.format(code=4) + "signal.pause()", OBEDIENT)
    wait_for(lambda: len(group.written) == 2)
    assert group.stop() == 4
    assert [worker.exit_code for worker in group.workers] == [4, 0]


def test_each_line_bears_the_name_of_its_worker(tmp_path: Path, wait_for: Wait) -> None:
    group = Lines(tmp_path, OBEDIENT, OBEDIENT)
    wait_for(lambda: len(group.written) == 2)
    group.stop()
    assert sorted(group.written) == ["chief    | up", "worker 1 | up"]


def test_a_worker_that_is_killed_is_started_again(tmp_path: Path, wait_for: Wait) -> None:
    group = Lines(tmp_path, OBEDIENT, OBEDIENT)
    wait_for(lambda: len(group.written) == 2)
    os.kill(group.workers[1].pid, signal.SIGKILL)
    wait_for(lambda: group.written.count("worker 1 | up") == 2)
    assert group.stop() == 0
    assert group.started == ["chief", "worker 1", "worker 1"]
    assert "worker 1 ended with -9; it starts again after 1 s" in group.written


def test_a_mistake_in_the_config_ends_the_whole_group_with_2(tmp_path: Path) -> None:
    group = Lines(tmp_path, OBEDIENT, "import sys; print('it is wrong'); sys.exit(2)")
    assert group.ended() == 2
    assert "worker 1 | it is wrong" in group.written
    assert group.started == ["chief", "worker 1"]


def test_a_group_that_has_learnt_all_ends_with_its_chief(tmp_path: Path) -> None:
    group = Lines(tmp_path, "import time; time.sleep(1)", "", ends=True)
    assert group.ended() == 0
    assert group.started == ["chief", "worker 1"]


def test_a_drained_worker_of_a_group_without_an_end_is_started_again(tmp_path: Path, wait_for: Wait) -> None:
    group = Lines(tmp_path, OBEDIENT, "")
    wait_for(lambda: group.started.count("worker 1") >= 2)
    assert group.stop() == 0


def test_a_worker_that_outlasts_the_grace_is_killed(tmp_path: Path, wait_for: Wait) -> None:
    group = Lines(tmp_path, STUBBORN, OBEDIENT, grace_s=0.2)
    wait_for(lambda: len(group.written) == 2)
    assert group.stop() == FORCED
    assert group.workers[CHIEF].exit_code == -signal.SIGKILL


def test_a_second_signal_ends_all_at_once(tmp_path: Path, wait_for: Wait) -> None:
    group = Lines(tmp_path, STUBBORN, STUBBORN)
    wait_for(lambda: len(group.written) == 2)
    group.signals.taken += 1
    assert group.stop() == FORCED
