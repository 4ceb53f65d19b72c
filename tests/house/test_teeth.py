"""The table of protections: what it takes out is there, and the tests that it names stand for their rows."""

import ast
from pathlib import Path

import pytest

from tests.faults.matrix.table import ROWS
from tests.faults.teeth.bite import Outcome, Trial, judged
from tests.faults.teeth.protections import TEETH, Tooth

ROOT = Path(__file__).parents[2]
every_tooth = pytest.mark.parametrize("tooth", TEETH, ids=lambda tooth: f"row {tooth.row}, {tooth.missing}")


def test_every_row_of_the_matrix_has_a_protection_that_is_taken_out() -> None:
    assert {tooth.row for tooth in TEETH} == ROWS.keys()


@every_tooth
def test_what_is_taken_out_stands_in_its_function_once_and_leaves_another_program(tooth: Tooth) -> None:
    source = (ROOT / tooth.file).read_text()
    mutant = tooth.without(source)
    assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(source))
    compile(mutant, str(tooth.file), "exec")


@every_tooth
def test_the_test_that_has_to_fail_is_there_and_stands_for_the_row(tooth: Tooth) -> None:
    file, _, name = tooth.test_id.partition("::")
    body = ast.parse((ROOT / file).read_text()).body
    of_all = [ast.unparse(node.value) for node in body if isinstance(node, ast.Assign) and _sets_pytestmark(node)]
    named = name.partition("[")[0]
    tests = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == named]
    assert len(tests) == bool(name)
    of_one = [ast.unparse(decorator) for test in tests for decorator in test.decorator_list]
    assert any(f"pytest.mark.row({tooth.row})" in marks for marks in (*of_all, *of_one))


def _sets_pytestmark(node: ast.Assign) -> bool:
    return [ast.unparse(target) for target in node.targets] == ["pytestmark"]


@pytest.mark.parametrize(
    ("passed", "failed", "said", "outcome"),
    [
        (True, False, "1 passed", Outcome.UNNOTICED),
        (False, True, "E   AssertionError: lost", Outcome.BITTEN),
        (False, True, "E   Failed: Timeout (>60.0s) from pytest-timeout.", Outcome.BITTEN),
        (False, True, "E   NameError: name 'x' is not defined", Outcome.SPOILT),
        (False, False, "ERROR: file or directory not found", Outcome.SPOILT),
    ],
)
def test_only_a_test_that_ran_and_failed_counts_as_bitten(
    passed: bool, failed: bool, said: str, outcome: Outcome
) -> None:
    trial = Trial(passed=passed, failed=failed, seconds=1.0, how="", said=said)
    assert judged(trial) is outcome
