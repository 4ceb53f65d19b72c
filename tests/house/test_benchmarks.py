"""What the benchmarks' page promises, and the script that fills it."""

import json
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.campaigns.report import text as proof
from tests.house.figures import Figures, Run, figure, kept

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
CASE = {"records_per_s": 1000, "cpu_us_per_record": 2.5, "accuracy": 0.8125, "runs": []}
MACHINE = {"commit": "abc", "cpu": "a CPU", "cpus": 2, "python": "3.11.7", "versions": {"keras": "3"}}
REPORT = {
    "as_of": "2026-01-02T03:04:05+00:00",
    "machine": MACHINE,
    "figures": {"json_over_naive": 51.25, "over_river": 12.5, "balance_of_plain": 0.5},
    "figures_by_round": {"json_over_naive": [50.0, 51.25, 60.0]},
    "validity": {"valid": True, "why": None},
    "cases": {"naive-json": CASE},
    "stages": {"json": {"fetch": 0.75, "call": 1.25}, "raw": {"fetch": 0.5, "settle": 0.0125, "call": 1.0}},
    "peers": {
        "as_of": "2026-02-03T04:05:06+00:00",
        "machine": MACHINE,
        "kafka": "3.9.1",
        "plan": {"warm_up": 65_536, "judged": 16_384},
        "absent": ["quix_streams"],
        "cases": {
            "product-json": {**CASE, "records_per_s": 12_500, "package": None, "note": None},
            "river": {**CASE, "package": "river 1", "note": "a linear model"},
        },
    },
    "streams": {
        "as_of": "2026-02-04T04:05:06+00:00",
        "machine": MACHINE,
        "river": "0.26.1",
        "plan": {"records": 4, "concept": 2, "window": 1},
        "mean_percent": {"forest": 60.0, "passes 4, rate 0.003": 70.0},
        "learnt": {
            "agrawal": {
                "forest": {"accuracy": 0.5, "curve": [0.25, 0.75], "cpu_us_per_record": 1500.0},
                "passes 4, rate 0.003": {"accuracy": 0.625, "curve": [0.5, 0.75], "cpu_us_per_record": 100.0},
            },
            "led": {
                "forest": {"accuracy": 0.7, "curve": [0.7, 0.7], "cpu_us_per_record": 2500.0},
                "passes 4, rate 0.003": {"accuracy": 0.775, "curve": [0.7, 0.85], "cpu_us_per_record": 90.0},
            },
        },
    },
}


def _report(folder: Path, page: str, **changed: Any) -> subprocess.CompletedProcess[str]:
    return _run_report(folder, {**REPORT, **changed}, page)


def _run_report(folder: Path, report: dict[str, Any], page: str) -> subprocess.CompletedProcess[str]:
    (folder / "bench.json").write_text(json.dumps(report))
    (folder / "page.md").write_text(page)
    command = [sys.executable, str(ROOT / "bench" / "report.py"), "--from", str(folder / "bench.json")]
    command += ["--figures", str(folder / "figures.json"), "--into", str(folder / "page.md")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_report_fills_the_page_and_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    done = _report(tmp_path, PAGE)
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "page.md").read_text()
    assert "**51.2** | 50 to 60 (3) | ≥ 45 |" in written
    assert "**0.5** |  | ≥ 0.95: missed |" in written
    assert "| river 1 | a linear model | 1,000 | 2.5 | 0.812 | 12.5 times |" in written
    assert "| fetch | 0.750 | 0.500 |" in written
    assert "| **all** | **2.00** | **1.51** |" in written
    assert "| Quix Streams | not measured |" in written
    assert "records 49,153 to 65,536" in written
    assert written.startswith(PAGE.partition("<!--")[0])
    assert "<svg" in (tmp_path / "benchmarks-peers.svg").read_text()
    assert "| River's forest | 50.0 | 70.0 | **60.0** | 1,500 to 2,500 |" in written
    assert "| millrace, passes 4, rate 0.003 | 62.5 | 77.5 | **70.0** | 90 to 100 |" in written
    assert (tmp_path / "benchmarks-streams.svg").read_text().count("<polyline") == 4


def test_a_second_report_takes_the_place_of_the_first(tmp_path: Path) -> None:
    _report(tmp_path, PAGE)
    once = (tmp_path / "page.md").read_text()
    assert "### Figures" in once
    _report(tmp_path, once)
    assert (tmp_path / "page.md").read_text() == once


def test_a_run_that_is_not_valid_leaves_the_figures_of_its_rounds(tmp_path: Path) -> None:
    _report(tmp_path, PAGE)
    later = {"figures": {"json_over_naive": 1.0, "over_river": 13.0}, "validity": {"valid": False, "why": "busy"}}
    _report(tmp_path, PAGE, **later)
    kept = json.loads((tmp_path / "figures.json").read_text())
    assert (kept["json_over_naive"]["value"], kept["over_river"]["value"]) == (51.25, 13.0)


def test_a_run_of_some_cases_leaves_the_figures_of_the_others(tmp_path: Path) -> None:
    _report(tmp_path, PAGE)
    later = {
        "as_of": "2026-03-02T03:04:05+00:00",
        "machine": MACHINE,
        "only": ["balance"],
        "validity": {"valid": True},
        "figures": {"balance_of_plain": 0.75},
        "cases": {"other": CASE},
    }
    assert _run_report(tmp_path, later, PAGE).returncode == 0
    kept = json.loads((tmp_path / "figures.json").read_text())
    assert (kept["json_over_naive"]["value"], kept["balance_of_plain"]["value"]) == (51.25, 0.75)
    assert kept["balance_of_plain"]["command"] == "make bench CASES=balance"
    assert "case.naive-json.cpu_us" in kept
    assert "case.other.cpu_us" not in kept
    written = (tmp_path / "page.md").read_text()
    assert "**0.75** |  | ≥ 0.95: missed | 2026-03-02 |" in written
    assert "**51.2** | 50 to 60 (3) | ≥ 45 | 2026-01-02 |" in written


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    done = _report(tmp_path, "# Another page\n")
    assert done.returncode != 0
    assert "the page lacks" in done.stderr
    assert (tmp_path / "page.md").read_text() == "# Another page\n"


def test_the_tables_of_the_page_are_those_of_the_kept_figures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    command = [sys.executable, str(ROOT / "bench" / "report.py"), "--from", str(tmp_path / "none"), "--into", str(page)]
    subprocess.run(command, check=True, timeout=60)
    assert page.read_text() == PAGE


def test_every_kept_figure_says_where_it_comes_from_and_is_printed() -> None:
    printed = PAGE + (ROOT / "docs" / "guarantees.md").read_text()
    figures = kept()
    assert len(figures) > 100
    for name, told in figures.items():
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", told.date), name
        assert told.commit, name
        assert told.command.startswith("make "), name
        assert f"`{name}`" in printed or "." in name, name


def test_the_page_changes_with_each_figure_that_it_prints_under_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    speed, figures = runpy.run_path(str(ROOT / "bench" / "report.py"))["text"], kept()

    def text(told: Figures) -> str:
        return str(speed(told)) + proof(told)

    printed = text(figures)
    dotted = [(name, told) for name, told in figures.items() if "." in name]
    assert len(dotted) > 50
    for name, told in dotted:
        other = "another" if isinstance(told.value, str) else 7 + 3 * told.value
        assert text({**figures, name: replace(told, value=other)}) != printed, name


def test_a_case_that_a_newer_valid_run_lacks_is_printed_no_more(tmp_path: Path) -> None:
    _report(tmp_path, PAGE)
    _report(tmp_path, PAGE, cases={"other-json": CASE})
    kept_now = json.loads((tmp_path / "figures.json").read_text())
    assert [name for name in kept_now if name.startswith("case.")] == [
        "case.other-json.cpu_us",
        "case.other-json.records_per_s",
    ]
    assert "peer.river.accuracy" in kept_now


def test_the_readme_says_how_many_figures_miss_their_aims() -> None:
    aimed = [told for told in kept().values() if told.aim]
    reached = sum(not told.missed for told in aimed)
    assert f"{reached} of {len(aimed)} figures reach their aims" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("value", "aim", "missed"),
    [(1.46, "≥ 1.5", True), (1.5, "≥ 1.5", False), (300, "≤ 300", False), (0.0, "> 0", True), (0, "0", False)],
)
def test_a_figure_that_does_not_reach_its_aim_is_missed(value: float, aim: str, missed: bool) -> None:
    assert figure("x", value, Run(date="", commit="", command=""), aim=aim).missed is missed


@pytest.mark.parametrize(
    "lock", sorted((ROOT / "bench" / "peers").glob("*/requirements.lock")), ids=lambda p: p.parent.name
)
def test_a_peers_lock_has_a_hash_for_everything_and_names_no_host(lock: Path) -> None:
    text = lock.read_text()
    pinned = re.findall(r"^[\w.-]+(?:\[[\w,-]+\])?==\S+.*$", text, re.MULTILINE)
    assert pinned
    assert all(line.endswith("\\") for line in pinned)
    assert "://" not in text


@pytest.mark.parametrize(
    ("rounds", "others", "valid", "why"),
    [
        ([1.0, 1.1, 1.05], [0.02, 0.1, None], True, None),
        ([1.0, 1.1, 1.05], [0.02, 0.4, 0.3], False, "0.30 cores"),
        ([1.0, 1.5, 1.05], [0.02], False, "figure by 48%"),
        ([1.0, 1.1], [0.02], None, "3 rounds"),
        ([], [0.02], True, None),
        ([], [0.4], False, "0.40 cores"),
        ([], [None], None, "nothing tells"),
    ],
)
def test_a_run_is_believed_by_its_own_spread_and_by_what_others_took(
    rounds: list[float], others: list[float | None], valid: bool | None, why: str | None
) -> None:
    found = runpy.run_path(str(ROOT / "bench" / "validity.py"))["verdict"]({"figure": rounds} if rounds else {}, others)
    assert found["valid"] is valid
    assert (why or "") in (found["why"] or "")
    assert (found["why"] is None) == (why is None)
