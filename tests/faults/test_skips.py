"""Nothing is skipped in silence."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tests.faults.matrix import skips
from tests.faults.matrix.skips import PERMITTED, judged
from tests.programs import MISSING

ROOT = Path(__file__).parents[2]


def report(nodeid: str, outcome: Literal["passed", "failed", "skipped"] = "skipped") -> pytest.TestReport:
    return pytest.TestReport(nodeid, (nodeid, 1, nodeid), {}, outcome, "for a reason", "call")


def test_a_skip_that_is_not_on_the_list_is_a_failure_and_says_so() -> None:
    failed = judged(report("tests/faults/test_kills.py::test_something[1]"))
    assert failed.outcome == "failed"
    assert "tests/faults/matrix/skips.py does not permit here: for a reason" in str(failed.longrepr)


@pytest.mark.parametrize("entry", PERMITTED, ids=lambda entry: f"row {entry.row}")
@pytest.mark.parametrize("here", [True, False])
def test_a_skip_is_let_pass_only_where_the_list_says(
    entry: skips.Permitted, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skips, "PERMITTED", (replace(entry, here=lambda: here),))
    assert judged(report(f"{entry.test}[a case]")).skipped is here


def test_a_skip_for_want_of_a_program_is_let_pass_and_no_other_reason_like_it() -> None:
    def skipped(reason: str) -> pytest.TestReport:
        return pytest.TestReport("any", ("any", 1, "any"), {}, "skipped", ("file", 1, f"Skipped: {reason}"), "setup")

    assert judged(skipped(f"{MISSING}kustomize; make tools gets it")).skipped
    assert judged(skipped("no kustomize")).failed


def test_what_is_not_skipped_is_left_as_it_is() -> None:
    assert [judged(report("any", outcome)).outcome for outcome in ("passed", "failed")] == ["passed", "failed"]


def test_every_test_on_the_list_exists() -> None:
    for entry in PERMITTED:
        file, _, name = entry.test.partition("::")
        names = {
            node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)
        }
        assert not name or name in names, f"{name} is not in {file} any more"


def test_a_skip_of_this_very_run_would_be_judged(request: pytest.FixtureRequest) -> None:
    """The list is asked: the hook is in place."""
    hooks = request.config.hook.pytest_runtest_makereport.get_hookimpls()
    assert any(hook.function.__module__.endswith("conftest") for hook in hooks)
