"""The chief of a group of real processes shows of inputs, answers and slices what one worker does, through a kill."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.training.checkpoints.parts import PartState
from tests.faults.conftest import MakeStream
from tests.faults.harness.group import GroupOfProcesses
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import USERS, Mixture
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.spikes import QUIET

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.row(31)]
PARTITIONS, EACH = 4, 1000
STILL = Path(__file__).parent / "harness" / "still_model.py"
SECTIONS: dict[str, Any] = {
    "model": {"build": f"{STILL}:build_model"},
    "training": {"batch_size": 16},
    "records": {"slices": {"user": "int64"}},
}
_WINDOW = ("hashes", "offsets", "times", "numbers")


def parts_of(shelf: Shelf) -> dict[str, PartState]:
    """Return what the newest checkpoint holds of what was watched."""
    number = shelf.newest_number()
    assert number is not None
    return {name: shelf.part(number, name) for name in ("inputs", "calibration", "slices")}


def _records_of_slices(group: GroupOfProcesses) -> int:
    found: int = group.chief.status()["training"].get("slices", {}).get("all", {}).get("cumulative_records", 0)
    return found


def test_a_group_of_two_shows_what_one_worker_does_though_a_worker_was_killed(
    stream: MakeStream, tmp_path: Path
) -> None:
    topic = stream(PARTITIONS, Mixture(share=0.02, kinds=QUIET))
    # Their times are those of their writing: all lie within one window.
    topic.write(EACH)
    with GroupOfProcesses(tmp_path, topic, 2, **SECTIONS) as group:
        group.start(0)
        group.start(1, failpoints="call.settled=kill:after=30")
        group.wait_until(lambda: not group.member(1).alive, "the worker is killed", restart=False)
        assert group.settled() < topic.records
        group.assert_learnt_once()
        together = parts_of(group.shelf)
        learnt = sum(len(list(topic.learnable(partition))) for partition in range(PARTITIONS))
        shown = partial(_records_of_slices, group)
        group.chief.wait_for(lambda: shown() == learnt, "the chief shows the slices of all records")
        status = group.chief.status()
        _, data = group.chief.ask("GET", "/data")
    project = Project(tmp_path / "alone", topic, **SECTIONS)
    with Run(project, "--until", "now") as run:
        assert run.exit_code() == 0, run.tail()
    alone = parts_of(Shelf(project.folder))

    one, other = (parts["inputs"] for parts in (alone, together))
    assert one.facts["windows"] == other.facts["windows"] == 0, "the window that all lie in is open"
    assert one.facts["open"]["records"] == other.facts["open"]["records"] == topic.records
    assert one.facts["refused"] == other.facts["refused"] != {}
    assert len(one.arrays["open.hashes"]) > topic.records // 16
    for name in _WINDOW:
        np.testing.assert_array_equal(one.arrays[f"open.{name}"], other.arrays[f"open.{name}"], name)
    names = [[part.facts["open"]["partitions"][at] for at in part.arrays["open.partitions"]] for part in (one, other)]
    assert names[0] == names[1]

    for part in ("calibration", "slices"):
        one, other = (parts[part] for parts in (alone, together))
        assert one.arrays.keys() == other.arrays.keys()
        for name, array in one.arrays.items():
            np.testing.assert_array_equal(array, other.arrays[name], name)
    assert len(other.facts["held"]["user"]) == len({number * number % USERS for number in range(USERS)})
    assert status["training"]["calibration"]["answers"] > 0
    assert one.arrays["all/binned"].sum() == learnt
    assert data["fields"] == []
