"""What a proof comes to: nothing that is missing, skipped or broken passes for shown; and the page that it fills."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.app.tools.prove.kills import TRAINER_POINTS
from tests.faults.campaigns.chaos import FULL, report
from tests.faults.campaigns.kills import missed
from tests.faults.campaigns.report import BEGIN, END, text
from tests.faults.matrix.table import ROWS
from tests.faults.matrix.verdict import PARTS, Evidence
from tests.house.figures import fill, kept

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
        "points": dict.fromkeys(TRAINER_POINTS, 1),
        "kept": True,
    },
    "deterministic": {"kills": 20, "max_weight_difference": 0.0, "wrong": 0, "kept": True},
    "terms": {"terms": 50, "replayed": 0, "seconds_to_exit": {"n": 50, "p50": 1, "p99": 2.5, "max": 3}, "kept": True},
    "group": {"kills": 60, "lost": 0, "learnt_twice": 0, "kept": True},
    "archive": {"kills": 50, "missing": 0, "twice": 0, "changed": 0, "damaged": 0, "left_over": 0, "kept": True},
    "handover": {"kills": 10, "max_weight_difference": 0.0, "kept": True},
    "rebuild": {"kills": 9, "max_weight_difference": 0.0, "kept": True},
    "shaped": {"kills": 20, "lost": 0, "learnt_twice": 0, "max_weight_difference": 0.0, "wrong": 0, "kept": True},
    "members": {"kills": 20, "lost": 0, "learnt_twice": 0, "max_weight_difference": 0.0, "kept": True},
    "ordinary": {"kills": 20, "lost": 0, "learnt_twice": 0, "max_weight_difference": 0.0, "kept": True},
    "joined": {
        "kills": 20,
        "records": 1_000_000,
        "lost": 0,
        "learnt_twice": 0,
        "wrong_labels": 0,
        "false_negatives": 0,
        "unaccounted": 0,
        "max_weight_difference": 0.0,
        "kept": True,
    },
    "joined_group": {
        "kills": 16,
        "lost": 0,
        "learnt_twice": 0,
        "wrong_labels": 0,
        "false_negatives": 0,
        "unaccounted": 0,
        "kept": True,
    },
    "arrivals": {"kills": 3, "points": 0.05, "unaccounted": 0, "kept": True},
    "formats": {"records": 5_000_000, "unaccounted": 0, "kept": True},
    "exports": {"kills": 50, "half_versions": 0, "disagreeing": 0, "left_over": 0, "kept": True},
    "logins": {"lost": 0, "learnt_twice": 0, "stall_ms": 300, "kept": True},
    "served": {
        "served_kills": 20,
        "served_rows": 1_000_000,
        "served_rows_wrong": 0,
        "not_learnt": 0,
        "refused": 0,
        "versions": 20,
        "kept": True,
    },
    "mirror": {"losses": 20, "lost": 0, "learnt_twice": 0, "unlearnt": 0, "wrong": 0, "kept": True},
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
        "members_kills": 20,
        "members_max_weight_difference": 0.0,
        "ordinary_kills": 20,
        "ordinary_lost": 0,
        "ordinary_learnt_twice": 0,
        "ordinary_max_weight_difference": 0.0,
        "join_kills": 20,
        "join_records": 1_000_000,
        "join_lost": 0,
        "join_learnt_twice": 0,
        "join_wrong": 0,
        "join_false_negatives": 0,
        "join_unaccounted": 0,
        "join_max_weight_difference": 0.0,
        "group_join_kills": 16,
        "group_join_lost": 0,
        "group_join_learnt_twice": 0,
        "group_join_wrong": 0,
        "group_join_false_negatives": 0,
        "group_join_unaccounted": 0,
        "arrival_kills": 3,
        "arrival_points": 0.05,
        "formats_unaccounted": 0,
        "export_kills": 50,
        "export_half_versions": 0,
        "oauth_lost": 0,
        "oauth_learnt_twice": 0,
        "oauth_stall_ms": 300,
        "served_kills": 20,
        "served_rows": 1_000_000,
        "served_rows_wrong": 0,
        "served_versions": 20,
        "mirror_losses": 0,
        "mirror_wrong": 0,
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
        ("members", "lost"),
        ("members", "max_weight_difference"),
        ("ordinary", "lost"),
        ("ordinary", "learnt_twice"),
        ("ordinary", "max_weight_difference"),
        ("joined", "wrong_labels"),
        ("joined", "unaccounted"),
        ("joined_group", "wrong_labels"),
        ("joined_group", "unaccounted"),
        ("arrivals", "unaccounted"),
        ("formats", "unaccounted"),
        ("exports", "half_versions"),
        ("exports", "disagreeing"),
        ("logins", "lost"),
        ("logins", "learnt_twice"),
        ("served", "served_rows_wrong"),
        ("served", "not_learnt"),
        ("mirror", "lost"),
        ("mirror", "wrong"),
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


def _whole(*, broken: Sequence[str] = (), **parts: Any) -> dict[str, Any]:
    """The report of a whole proof, of some time ago."""
    made = Evidence(tests=_tests(), **{**KEPT, **parts})
    told = report(FULL, 7, made, frozenset(PARTS) - {"soak"}, {})
    machine = {"commit": "abc", "cpu": "a CPU", "cpus": 2, "python": "3.11.7", "versions": {"keras": "3"}}
    for run in told["runs"].values():
        run |= {"as_of": "2026-01-02T03:04:05+00:00", "machine": machine}
    return {**told, "broken": [*told["broken"], *broken]}


def test_a_part_that_is_made_alone_replaces_its_own_figures_and_leaves_those_of_the_others() -> None:
    before = _whole(kills={**KEPT["kills"], "lost": 3}, terms={**KEPT["terms"], "replayed": 1})
    assert before["broken"] == ["kills: lost is 3, and must be 0", "terms: replayed is 1, and must be 0"]
    now = report(FULL, 8, Evidence(tests={}, kills=KEPT["kills"]), frozenset({"kills"}), before)
    assert now["broken"] == ["terms: replayed is 1, and must be 0"]
    assert (now["figures"]["lost"], now["figures"]["group_kills"], now["figures"]["rows_passed"]) == (0, 60, len(ROWS))
    assert [now["runs"][part]["seed"] for part in ("kills", "terms", "rows")] == [8, 7, 7]


def test_rows_that_failed_before_are_replaced_by_those_of_the_tests_that_ran_since() -> None:
    before = report(FULL, 7, Evidence(tests=_tests(bad="failed"), **KEPT), frozenset(PARTS) - {"soak"}, {})
    now = report(FULL, 8, Evidence(tests=_tests()), frozenset({"rows"}), before)
    assert (len(before["broken"]), now["broken"], now["kills"]) == (1, [], KEPT["kills"])


def _filled(folder: Path, page: str, told: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    (folder / "chaos.json").write_text(json.dumps(told))
    (folder / "page.md").write_text(page)
    command = [sys.executable, "-m", "tests.faults.campaigns.report", "--from", str(folder / "chaos.json")]
    command += ["--figures", str(folder / "figures.json"), "--into", str(folder / "page.md")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_report_fills_the_page_again_and_again_and_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    done = _filled(tmp_path, PAGE, _whole())
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "page.md").read_text()
    assert "On 2 cores (a CPU), Python 3.11.7, keras 3." in written
    assert "| `kills` | SIGKILLs, at random times and at every failpoint | **200** | 2026-01-02, abc |" in written
    assert f"| 2 | {ROWS[2]} | passed (1 test) | 2026-01-02, abc |" in written
    assert "| restart to the first new call, s | **p50 7.5, p99 9, max 9.5 (9)** | 2026-01-02, abc |" in written
    assert written.startswith(PAGE.partition("<!--")[0])
    _filled(tmp_path, written, _whole())
    assert (tmp_path / "page.md").read_text() == written
    kept = json.loads((tmp_path / "figures.json").read_text())
    assert (kept["kills"]["value"], kept["rto_p50_s"]["unit"], kept["kills"]["command"]) == (200, "s", "make proof")


def test_a_part_that_the_report_lacks_stays_as_it_was_published(tmp_path: Path) -> None:
    _filled(tmp_path, PAGE, _whole())
    now = report(FULL, 8, Evidence(tests={}, kills={**KEPT["kills"], "kills": 201}), frozenset({"kills"}), {})
    done = _filled(tmp_path, (tmp_path / "page.md").read_text(), now)
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "page.md").read_text()
    assert "| `group_kills` |" in written
    assert f"| 2 | {ROWS[2]} | passed (1 test) | 2026-01-02, abc |" in written
    assert re.search(r"\| `kills` \| .* \| \*\*201\*\* \| (?!2026-01-02)", written)


def test_the_page_holds_the_figures_that_are_kept() -> None:
    assert fill(PAGE, text(kept()), BEGIN, END) == PAGE


def test_a_broken_proof_changes_neither_page_nor_figures(tmp_path: Path) -> None:
    done = _filled(tmp_path, PAGE, _whole(broken=["row 7: missing"]))
    assert (done.returncode, "row 7: missing" in done.stderr) == (1, True)
    assert (tmp_path / "page.md").read_text() == PAGE
    assert not (tmp_path / "figures.json").exists()


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    done = _filled(tmp_path, "# Another page\n", _whole())
    assert done.returncode != 0
    assert "the page lacks" in done.stderr
    assert (tmp_path / "page.md").read_text() == "# Another page\n"
