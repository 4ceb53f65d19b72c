"""What became of the rows of the matrix is written down whole, however the tests were run."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.matrix.rows import Rows

ROOT = Path(__file__).parents[2]
ONE = """\
import pytest

row = pytest.mark.row

@row(3)
def test_it_holds(record_property):
    record_property("kills", {"lost": 0})

@row(4)
@row(3)
def test_it_does_not_hold():
    assert False

def test_it_stands_for_nothing():
    pass
"""
OTHER = """\
import pytest

row = pytest.mark.row

@row(5)
def test_it_cannot_be_shown():
    pytest.skip("not here")
"""


@pytest.mark.parametrize(
    "lanes",
    [
        pytest.param([], marks=pytest.mark.nightly, id="one process"),
        pytest.param(["-n", "2", "--dist", "loadfile"], id="two lanes"),
    ],
)
def test_each_test_that_stands_for_a_row_is_told_with_how_it_came_out(tmp_path: Path, lanes: list[str]) -> None:
    (tmp_path / "test_one.py").write_text(ONE)
    (tmp_path / "test_other.py").write_text(OTHER)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = row(number): a row\n")
    rows = tmp_path / "build" / "rows.json"
    command = [sys.executable, "-m", "pytest", "-q", *lanes, "-p", "tests.faults.matrix.rows", "--rows", str(rows)]
    done = subprocess.run(
        [*command, "-c", str(tmp_path / "pytest.ini"), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(rows.read_text())["tests"]
    assert {name: (one["rows"], one["outcome"]) for name, one in told.items()} == {
        "test_one.py::test_it_holds": ([3], "passed"),
        "test_one.py::test_it_does_not_hold": ([3, 4], "failed"),
        "test_other.py::test_it_cannot_be_shown": ([5], "skipped"),
    }
    assert told["test_one.py::test_it_holds"]["properties"] == {"kills": {"lost": 0}}
    assert told["test_other.py::test_it_cannot_be_shown"]["why"] == "Skipped: not here"


def test_what_a_lane_has_not_come_to_is_told_as_not_run(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.json")
    rows.pytest_testnodedown(SimpleNamespace(workeroutput={"rows": {"test_one.py::test_it_holds": [3]}}))
    rows.pytest_testnodedown(SimpleNamespace())  # one that has died told nothing
    rows.pytest_sessionfinish()
    (told,) = json.loads((tmp_path / "rows.json").read_text())["tests"].values()
    assert (told["rows"], told["outcome"]) == ([3], "not run")


def test_outcomes_of_other_tests_stay_in_the_file_only_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    for name, keep in (("former", False), ("first", False), ("second", True)):
        rows = Rows(path, keep=keep)
        rows.pytest_testnodedown(SimpleNamespace(workeroutput={"rows": {name: [3]}}))
        rows.pytest_sessionfinish()
    assert json.loads(path.read_text())["tests"].keys() == {"first", "second"}
