"""How lanes share the tests, the ledger that they go by, and which tests a change can reach."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import changed, durations, lanes
from tests.durations import Durations, merged

KILLS, TOPICS, STOP = "tests/faults/test_kills.py", "tests/faults/test_topics.py", "tests/faults/test_stop.py"
NETWORK, READS = "tests/faults/test_network.py", "tests/app/api/test_reads.py"
RECORDED: Durations = {
    f"{KILLS}::test_one": 90.0,
    f"{TOPICS}::test_one[a]": 20.0,
    f"{TOPICS}::test_one[b]": 10.0,
    f"{TOPICS}::test_two": 50.0,
    STOP: 20.0,
    NETWORK: 50.0,
    READS: 5.0,
}


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let lanes go by a ledger of a few tests."""
    monkeypatch.setattr(lanes, "recorded", lambda: RECORDED)
    lanes._goes_by_test.cache_clear()
    yield
    lanes._goes_by_test.cache_clear()


@pytest.mark.usefixtures("ledger")
def test_a_lane_takes_a_whole_file_unless_it_is_long_and_shares_nothing() -> None:
    assert lanes.share_of(f"{READS}::test_one[a]") == READS
    assert lanes.share_of(f"{KILLS}::test_one") == KILLS, "its tests look at one campaign"
    assert lanes.share_of(f"{NETWORK}::test_one") == NETWORK, "its tests share a trainer"
    assert lanes.share_of(f"{TOPICS}::test_one[b]") == f"{TOPICS}::test_one"
    assert lanes.share_of(f"{TOPICS}::test_three") == f"{TOPICS}::test_three"


@pytest.mark.usefixtures("ledger")
def test_the_longest_of_a_folder_go_first_and_the_folders_beside_each_other() -> None:
    tests = [
        f"{READS}::test_one",
        f"{STOP}::test_one",
        f"{TOPICS}::test_one[a]",
        f"{TOPICS}::test_one[b]",
        f"{TOPICS}::test_two",
        f"{KILLS}::test_one",
    ]
    places = lanes.places(tests)
    of_faults = [place for test, place in places.items() if "faults" in test]
    assert of_faults == pytest.approx([170 / 190, 140 / 190, 140 / 190, 90 / 190, 0])
    assert places[f"{READS}::test_one"] == 0


def test_a_report_of_pytest_tells_what_each_test_took(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n@pytest.mark.parametrize('x', [1, 2])\ndef test_one(x): pass\ndef test_two(): assert False\n"
        "class TestThree:\n    def test_it(self): pass\n"
    )
    report = tmp_path / "report.xml"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--rootdir={tmp_path}", f"--junitxml={report}", "test_some.py"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    read = dict(durations.read(report))
    assert read.keys() == {
        f"test_some.py::{name}" for name in ("test_one[1]", "test_one[2]", "test_two", "TestThree::test_it")
    }
    assert all(0 <= seconds < 60 for seconds in read.values())


def test_a_figure_of_the_ledger_stays_until_it_is_wrong_by_half() -> None:
    before = {f"{READS}::test_a": 4.0, f"{READS}::test_b": 4.0, READS: 3.0}
    measured = {f"{READS}::test_a": 5.9, f"{READS}::test_b": 6.14, f"{READS}::test_c": 0.9, f"{READS}::test_d": 1.3}
    assert merged(before, measured) == {
        f"{READS}::test_a": 4.0,
        f"{READS}::test_b": 6.1,
        f"{READS}::test_d": 1.3,
        READS: 0.9,
    }


def test_make_test_leaves_out_what_is_long_by_the_ledger_but_for_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    law = "tests/properties/test_lives.py::TestLivesMachine::runTest"
    monkeypatch.setattr(durations, "recorded", lambda: {f"{READS}::test_a": 1.1, f"{READS}::test_b": 1.0, law: 11.0})
    assert durations.is_long(f"{READS}::test_a")
    assert not any(map(durations.is_long, (f"{READS}::test_b", f"{READS}::test_unknown", law)))


def test_what_was_not_measured_stays_in_the_ledger_while_it_exists() -> None:
    machine = "tests/properties/test_lives.py::TestLivesMachine::runTest"
    stay = {f"{KILLS}::test_some_of_the_kills_hit_a_save": 90.0, machine: 9.0}
    gone = {f"{KILLS}::test_gone": 5.0, "tests/faults/test_gone.py": 5.0}
    assert merged({**stay, **gone}, {f"{READS}::test_a": 2.0}) == {**stay, f"{READS}::test_a": 2.0}


def test_the_ledger_is_written_as_it_is_read() -> None:
    assert list(durations.recorded()) == sorted(durations.recorded())
    assert merged(durations.recorded(), {}).keys() <= durations.recorded().keys()
    assert json.loads(durations.LEDGER.read_text()) == durations.recorded()


def test_a_changed_module_reaches_the_tests_that_import_it_by_way_of_others() -> None:
    reached = changed.reached(["app/tools/demo/report.py"])
    assert set(reached) >= {"tests/app/tools/test_demo.py", *changed.laws()}
    assert "tests/pipelines/formats/shared/test_paths.py" not in reached
    assert "tests/training/ledger/test_ledger.py" in changed.reached(["consumers/errors.py"])


def test_a_changed_conftest_reaches_the_tests_below_it() -> None:
    below = set(changed.reached(["tests/app/cli/conftest.py"])) - set(changed.laws())
    assert "tests/app/cli/test_cli.py" in below
    assert "tests/training/ledger/test_ledger.py" not in below
    assert changed.reached(["tests/conftest.py", "README.md"]) == ["tests"]


def test_any_other_changed_file_reaches_the_tests_that_name_it_or_its_folder() -> None:
    assert "tests/deploy/test_manifests.py" in changed.reached(["k8s/base/statefulset.yaml"])
    assert "tests/deploy/test_compose.py" in changed.reached(["compose.yaml"])
    nobodys = f"{TOPICS.upper()}.txt"
    assert changed.reached([nobodys]) == changed.laws()


def test_one_test_of_each_law_is_always_among_them() -> None:
    assert len(changed.laws()) == 6
    assert changed.reached([]) == changed.laws()
