"""What people see of a group: who is behind, who is slow, who is waited for; and of one process alone nothing."""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest

from millrace.app.monitoring.metrics.collector import ServiceCollector
from millrace.app.monitoring.observer import Observation, Observer
from millrace.app.monitoring.snapshot import Snapshot, take
from millrace.app.monitoring.status import status_of
from millrace.app.monitoring.throughput import throughput_of
from millrace.training.telemetry.group_report import GroupReport
from millrace.training.telemetry.meter import Meterings
from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import P0, Rig
from tests.app.groups import ADDRESSES, group, member
from tests.app.metrics_text import Scrape


class Scene:
    """A worker whose group a test moves on."""

    def __init__(self, rig: Rig) -> None:
        self.snapshot: Snapshot = take(rig.service)
        self.observer = Observer(lambda: self.snapshot)
        self.began = self.snapshot.clock

    def at(self, seconds: float, group: GroupReport, **more: object) -> Observation:
        """Look at the group this many seconds after the beginning."""
        changes = {"clock": self.began + seconds, "group": group, **more}
        self.snapshot = replace(self.snapshot, **changes)  # type: ignore[arg-type]
        return self.observer.look()


SPENT_ELSE = {"compute": 0.3, "workers": 0.0, "saving": 0.0}


def spent(scene: Scene) -> Meterings:
    """Return the meter of a trainer that spends most of its time waiting for the others."""
    waiting = {"blocks": 0.1, "workers": 0.6, "compute": 0.3, "saving": 0.0}
    return replace(scene.snapshot.meter, calls=9, waiting=waiting)


@pytest.fixture
def scene(rig: Rig) -> Scene:
    return Scene(rig)


def test_one_process_alone_shows_no_group(rig: Rig) -> None:
    status = status_of(Observer(lambda: take(rig.service)).look())
    assert status.group is None
    assert "workers" not in status.throughput.waiting


def test_one_process_alone_loads_nothing_of_a_group() -> None:
    of_a_group = ("millrace.training.group", "millrace.app.service.group_service")
    assert all(find_spec(name) for name in of_a_group)
    program = (
        "import sys, millrace.app.run, millrace.app.api.server, millrace.app.cli.run, millrace.app.service.service\n"
        f"print([name for name in sys.modules if name.startswith({of_a_group!r})])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_worker_that_waits_least_while_others_wait_is_the_slow_one(scene: Scene) -> None:
    scene.at(0, group(0, member(), member()))
    seen = scene.at(10, group(0, member(waited_s=6, learnt=400, lag_records=7), member(waited_s=0.1, learnt=600)))
    shown = status_of(seen).group
    assert shown is not None
    assert (shown.workers, shown.worker, shown.chief) == (2, 0, ADDRESSES[0])
    assert (shown.records_per_s, shown.lag_records, shown.slowest) == (100.0, 7, 1)
    chief, worker = shown.members["0"], shown.members["1"]
    assert (chief.name, chief.waiting, chief.records_per_s, chief.waited_s) == ("the chief", 0.6, 40.0, 6.0)
    assert (worker.name, worker.waiting, worker.learnt) == ("worker 1", 0.01, 600)


def test_where_nobody_waits_for_long_nobody_is_slow(scene: Scene) -> None:
    scene.at(0, group(0, member(), member()))
    shown = status_of(scene.at(10, group(0, member(waited_s=0.9), member(waited_s=0.1)))).group
    assert shown is not None
    assert shown.slowest is None


def test_a_worker_that_has_not_spoken_yet_is_shown_without_numbers(scene: Scene) -> None:
    shown = status_of(scene.at(0, group(1))).group
    assert shown is not None
    assert shown.lag_records is None
    assert shown.members["0"].model_dump(exclude_none=True) == {"name": "the chief", "address": ADDRESSES[0]}


def test_while_it_waits_the_verdict_names_the_missing_workers(rig: Rig) -> None:
    waiting = replace(take(rig.service), group=group(0, missing=(1,)))
    waiting = replace(waiting, phase=replace(waiting.phase, phase=Phase.WAITING), posting=None)
    status = status_of(Observer(lambda: waiting).look())
    assert status.verdict == "Waiting for worker 1 of the group."
    assert status.group is not None
    assert status.group.members["1"].missing
    assert (status.mood, status.problems) == ("busy", [])


def test_a_trainer_that_waits_most_for_other_workers_is_bound_by_them(scene: Scene) -> None:
    scene.at(0, group(0, member(), member()))
    view = throughput_of(scene.at(10, group(0, member(waited_s=6), member(lag_records=9)), meter=spent(scene)))
    assert (view.bound_by, view.waiting["workers"]) == ("workers", 0.6)
    assert sum(view.waiting.values()) == pytest.approx(1.0)
    assert "above all for worker 1" in view.advice


def test_in_a_group_that_keeps_up_every_wait_is_for_records(scene: Scene, rig: Rig) -> None:
    scene.at(0, group(0, member(), member()))
    view = throughput_of(scene.at(10, group(0, member(waited_s=6), member()), meter=spent(scene)))
    assert (view.bound_by, view.waiting) == ("records", {"records": 0.7, "input": 0.0, **SPENT_ELSE})


def test_the_verdict_says_its_own_rate_and_that_of_the_group(scene: Scene, rig: Rig) -> None:
    scene.at(0, group(0, member(), member()))
    meter = replace(scene.snapshot.meter, calls=9, records_per_s={"10s": 40.0, "1m": 40.0, "5m": 40.0})
    phase = replace(scene.snapshot.phase, phase=Phase.TRAINING)
    status = status_of(scene.at(10, group(0, member(learnt=400), member(learnt=600)), meter=meter, phase=phase))
    assert status.verdict.startswith("Learning. 40 records/s of the group's 100, ")


def test_a_worker_without_partitions_says_so_and_has_no_problem(scene: Scene) -> None:
    ledger = replace(scene.snapshot.ledger, partitions={})
    status = status_of(scene.at(0, group(1, member(), member(partitions=0)), ledger=ledger))
    assert status.verdict.startswith("At work without a partition")
    assert status.problems == []


@pytest.mark.parametrize(("index", "told"), [(0, {"0": 7.0, "1": 0.0}), (1, {})])
def test_the_chief_alone_gives_series_by_worker(rig: Rig, index: int, told: dict[str, float]) -> None:
    rig.produce(P0, 3)
    rig.service.board.group = group(index, member(lag_records=7), member())
    text, _ = ServiceCollector(Observer(lambda: take(rig.service)).look, dict).render("")
    families = Scrape(text.decode()).families
    assert families["millrace_group_workers"].samples[0].value == 2
    lags = families.get("millrace_group_worker_lag_records")
    assert {one.labels["worker"]: one.value for one in (lags.samples if lags else ())} == told
