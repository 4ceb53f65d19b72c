"""What a proof comes to: nothing that is missing, skipped or broken passes for shown; and the page that it fills."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.app.tools.prove.kills import TRAINER_POINTS
from tests.faults.campaigns.chaos import FULL, again, report
from tests.faults.campaigns.kills import missed
from tests.faults.matrix.table import ROWS
from tests.faults.matrix.verdict import Evidence

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
KEPT: dict[str, Any] = {
    "kills": {
        "kills": 200,
        "kills_in_save": 80,
        "lost": 0,
        "learnt_twice": 0,
        "unbalanced": 0,
        "valid_rejected": 0,
        "replay_beyond_bound": 0,
        "restored_newest": 150,
        "records": 1_234_567,
        "rto_s": {"n": 9, "p50": 7.5, "p99": 9.0, "max": 9.5},
        "replay": {"n": 9, "p50": 900, "p99": 2000, "max": 2100},
        "kept": True,
    },
    "deterministic": {"kills": 20, "max_weight_difference": 0.0, "wrong": 0, "kept": True},
    "terms": {"terms": 50, "replayed": 0, "seconds_to_exit": {"n": 50, "p50": 1, "p99": 2.5, "max": 3}, "kept": True},
    "group": {"kills": 60, "lost": 0, "learnt_twice": 0, "kept": True},
    "archive": {"kills": 50, "missing": 0, "twice": 0, "changed": 0, "damaged": 0, "left_over": 0, "kept": True},
    "handover": {"kills": 10, "max_weight_difference": 0.0, "kept": True},
    "rebuild": {"kills": 9, "max_weight_difference": 0.0, "kept": True},
    "shaped": {"kills": 20, "lost": 0, "learnt_twice": 0, "max_weight_difference": 0.0, "wrong": 0, "kept": True},
    "formats": {"records": 5_000_000, "unaccounted": 0, "kept": True},
    "exports": {"kills": 50, "half_versions": 0, "disagreeing": 0, "left_over": 0, "kept": True},
    "mutations": {"corrupt_accepted": 0, "valid_rejected": 0},
}


def _test(row: int, outcome: str) -> dict[str, Any]:
    return {"rows": [row], "outcome": outcome, "why": "no /proc" if outcome == "skipped" else "", "properties": {}}


def _tests(**others: str) -> dict[str, Any]:
    """One that passes for each row, and these."""
    passed = {f"row{row}": _test(row, "passed") for row in ROWS}
    return {**passed, **{name: _test(3, outcome) for name, outcome in others.items()}}


def test_every_row_of_the_matrix_has_a_test_that_stands_for_it() -> None:
    paths = (ROOT / "tests").rglob("test_*.py")
    marked = {int(row) for path in paths for row in re.findall(r"mark\.row\((\d+)\)", path.read_text())}
    assert marked >= ROWS.keys()


def test_where_everything_held_nothing_is_broken_and_the_figures_are_flat() -> None:
    evidence = Evidence(tests=_tests(), **KEPT)
    assert list(evidence.broken()) == []
    assert evidence.figures() == {
        "kills": 200,
        "kills_in_save": 80,
        "lost": 0,
        "learnt_twice": 0,
        "corrupt_accepted": 0,
        "valid_rejected": 0,
        "max_weight_difference": 0.0,
        "group_kills": 60,
        "group_lost": 0,
        "group_learnt_twice": 0,
        "archive_kills": 50,
        "archive_missing": 0,
        "archive_twice": 0,
        "handover_max_difference": 0.0,
        "rebuild_max_difference": 0.0,
        "shaping_lost": 0,
        "shaping_learnt_twice": 0,
        "shaping_max_weight_difference": 0.0,
        "shaping_wrong": 0,
        "formats_unaccounted": 0,
        "export_kills": 50,
        "export_half_versions": 0,
        "rows_passed": len(ROWS),
        "rows_skipped": 0,
        "rto_p50_s": 7.5,
        "sigterm_p99_s": 2.5,
    }


def test_a_row_that_nothing_stands_for_is_broken() -> None:
    tests = _tests()
    del tests["row7"]
    assert list(Evidence(tests=tests).broken()) == [f"row 7, {ROWS[7]}: missing"]


@pytest.mark.parametrize("outcome", ["failed", "not run"])
def test_one_test_that_fails_or_never_ran_fails_its_row(outcome: str) -> None:
    evidence = Evidence(tests=_tests(bad=outcome))
    assert evidence.rows()[3].outcome == "failed"
    assert list(evidence.broken()) == [f"row 3, {ROWS[3]}: failed bad"]


def test_a_row_of_which_nothing_could_be_shown_here_counts_as_skipped() -> None:
    evidence = Evidence(tests={**_tests(), "row3": _test(3, "skipped")})
    assert (evidence.figures()["rows_passed"], evidence.figures()["rows_skipped"]) == (len(ROWS) - 1, 1)
    assert Evidence(tests=_tests(beside="skipped")).figures()["rows_skipped"] == 0


@pytest.mark.parametrize(
    ("campaign", "key"),
    [
        ("kills", "lost"),
        ("kills", "learnt_twice"),
        ("kills", "unbalanced"),
        ("kills", "valid_rejected"),
        ("kills", "replay_beyond_bound"),
        ("deterministic", "max_weight_difference"),
        ("terms", "replayed"),
        ("archive", "missing"),
        ("archive", "twice"),
        ("archive", "changed"),
        ("handover", "max_weight_difference"),
        ("rebuild", "max_weight_difference"),
        ("shaped", "lost"),
        ("shaped", "max_weight_difference"),
        ("formats", "unaccounted"),
        ("exports", "half_versions"),
        ("exports", "disagreeing"),
        ("mutations", "corrupt_accepted"),
        ("mutations", "valid_rejected"),
    ],
)
def test_every_figure_that_must_be_nothing_is_a_promise(campaign: str, key: str) -> None:
    found = {**KEPT, campaign: {**KEPT[campaign], key: 1}}
    assert list(Evidence(tests=_tests(), **found).broken()) == [f"{campaign}: {key} is 1, and must be 0"]


def test_a_campaign_that_could_not_be_brought_to_its_end_is_broken() -> None:
    found = {**KEPT, "soak": {"kept": False, "broken": ["it ended with 1"]}}
    assert len(list(Evidence(tests=_tests(), **found).broken())) == 1


def test_a_failpoint_at_which_nobody_died_is_broken() -> None:
    points = dict.fromkeys(TRAINER_POINTS, 1)
    assert missed(points) == []
    assert missed({**points, "commit.before": 0}) == ["commit.before"]
    assert len(list(Evidence(tests=_tests(), missed=["commit.before"], **KEPT).broken())) == 1


def test_campaigns_are_told_again_beside_the_tests_that_have_run_since(tmp_path: Path) -> None:
    before = report(FULL, 7, Evidence(tests={}, **KEPT))
    assert len(before["broken"]) == len(ROWS)
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps({"tests": _tests()}))
    now = again(before, rows)
    assert now["broken"] == []
    assert (now["form"], now["seed"], now["kills"], now["figures"]["rows_passed"]) == (
        "full",
        7,
        KEPT["kills"],
        len(ROWS),
    )


def _filled(folder: Path, page: str, *broken: str) -> subprocess.CompletedProcess[str]:
    evidence = Evidence(tests=_tests(), **KEPT)
    rows = {
        str(number): {"title": row.title, "outcome": row.outcome, "passed": row.passed, "skipped": row.skipped}
        for number, row in evidence.rows().items()
    }
    machine = {"commit": "abc", "cpu": "a CPU", "cpus": 2, "python": "3.11.7", "versions": {"keras": "3"}}
    written = {
        "as_of": "2026-01-02T03:04:05+00:00",
        "form": "full",
        "seed": 7,
        "machine": machine,
        "rows": rows,
        **KEPT,
    }
    told = {**written, "figures": evidence.figures(), "broken": list(broken)}
    (folder / "chaos.json").write_text(json.dumps(told))
    (folder / "page.md").write_text(page)
    command = [sys.executable, "-m", "tests.faults.campaigns.report", "--from", str(folder / "chaos.json")]
    command += ["--figures", str(folder / "figures.json"), "--into", str(folder / "page.md")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_report_fills_the_page_again_and_again_and_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    done = _filled(tmp_path, PAGE)
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "page.md").read_text()
    assert "2026-01-02, commit abc, form full, seed 7; 2 cores (a CPU)" in written
    assert "| `kills` | SIGKILLs, at random times and at every failpoint | **200** |" in written
    assert f"| 2 | {ROWS[2]} | passed | 1 |" in written
    assert "| restart to the first new call, s | p50 7.5, p99 9, max 9.5 (9) |" in written
    assert written.startswith(PAGE.partition("<!--")[0])
    _filled(tmp_path, written)
    assert (tmp_path / "page.md").read_text() == written
    kept = json.loads((tmp_path / "figures.json").read_text())
    assert (kept["kills"]["value"], kept["rto_p50_s"]["unit"], kept["kills"]["command"]) == (200, "s", "make proof")


def test_a_broken_proof_changes_neither_page_nor_figures(tmp_path: Path) -> None:
    done = _filled(tmp_path, PAGE, "row 7: missing")
    assert (done.returncode, "row 7: missing" in done.stderr) == (1, True)
    assert (tmp_path / "page.md").read_text() == PAGE
    assert not (tmp_path / "figures.json").exists()


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    done = _filled(tmp_path, "# Another page\n")
    assert done.returncode != 0
    assert "the page lacks" in done.stderr
    assert (tmp_path / "page.md").read_text() == "# Another page\n"
