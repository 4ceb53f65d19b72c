"""The recipes of tests: `make test` is short and shows every law, and the gate shows all by `make test WHOLE=1`.

`make test-nightly` runs what repeats a claim of the gate.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.durations import file_of, is_long, recorded
from tests.faults.matrix.table import ROWS

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
GATE = (ROOT / ".ci" / "run").read_text()
MARKERS = {"slow", "law", "nightly"}
LAWS: Mapping[str, int] = {"kill": 2, "rewind": 4, "stop": 5, "damage": 17, "poison": 20, "group": 31}
"""The laws that `make test` shows with real processes, each with the row of the matrix that its test stands for."""
LONGEST_LAW_S, ALL_OF_TEST_S = 30.0, 750.0
"""What the test of a law may take, and all of `make test` one test after the other, in seconds of a lane of three."""


def _selection(recipe: str, *, whole: bool = False) -> Expression:
    """Return the expression by which a recipe of the Makefile selects tests; `whole`: with WHOLE=1."""
    found = re.search(
        rf'^{recipe}: .*\n\t\$\(PYTEST\) -m "(?:\$\(if \$\(WHOLE\),(.+?),)?(.+?)\)?"', MAKEFILE, re.MULTILINE
    )
    assert found is not None, recipe
    return Expression.compile(found[1] if whole else found[2])


def _marks(nodes: list[ast.expr]) -> Iterator[str]:
    """Yield the markers in decorators or in a `pytestmark`: `slow`, `row(3)`."""
    for node in nodes:
        yield from re.findall(r"\bmark\.(\w+)\b(?!\()", ast.unparse(node))
        yield from re.findall(r"\b(row\(\d+\))", ast.unparse(node))


def _marked_tests() -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each test of the project with its markers."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        body = ast.parse(path.read_text()).body
        of_all = [
            node.value
            for node in body
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]
        ]
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{path.relative_to(ROOT)}::{node.name}", frozenset(_marks([*of_all, *node.decorator_list]))


@cache
def _tests() -> Mapping[str, frozenset[str]]:
    return dict(_marked_tests())


def _selects(expression: Expression, marks: set[str] | frozenset[str]) -> bool:
    return expression.evaluate(lambda name, /, **_options: name in marks)


def test_every_test_is_run_by_the_gate_or_each_night_and_make_test_runs_some_of_the_gate() -> None:
    for marks in map(set, chain.from_iterable(combinations(MARKERS, size) for size in range(len(MARKERS) + 1))):
        in_gate, each_night = (
            _selects(_selection("test", whole=True), marks),
            _selects(_selection("test-nightly"), marks),
        )
        assert (in_gate, each_night) == ("nightly" not in marks, "nightly" in marks), marks
        assert in_gate or not _selects(_selection("test"), marks)
    assert re.search(r"^nightly: .*(\n\t.*)*\$\(MAKE\) test-nightly$", MAKEFILE, re.MULTILINE)


def test_the_rules_of_the_house_which_they_leave_out_are_run_by_make_check() -> None:
    assert re.findall(r"--ignore (\S+)", MAKEFILE) == ["tests/house"]
    assert re.search(r"^house: .*(\n\t.*)*pytest -q tests/house$", MAKEFILE, re.MULTILINE)
    assert re.search(r"^check: .*\bhouse\b", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS)
def test_the_gate_shows_the_row(row: int) -> None:
    assert re.search(r"^time make test WHOLE=1 ", GATE, re.MULTILINE)
    assert [name for name, marks in _tests().items() if f"row({row})" in marks and "nightly" not in marks] != []


@pytest.mark.parametrize("law", LAWS)
def test_make_test_shows_the_law_by_one_test_of_real_processes(law: str) -> None:
    (marks,) = [marks for marks in _tests().values() if {"law", f"row({LAWS[law]})"} <= marks]
    assert "slow" in marks
    assert _selects(_selection("test"), marks)


def test_no_test_shows_a_law_but_those() -> None:
    assert len([marks for marks in _tests().values() if "law" in marks]) == len(LAWS)


def test_no_test_of_a_law_is_long() -> None:
    laws = {name for name, marks in _tests().items() if "law" in marks}
    assert {name: recorded()[name] for name in laws if recorded().get(name, 0.0) > LONGEST_LAW_S} == {}


def test_make_test_as_a_whole_is_short() -> None:
    assert 100 < sum(_durations().values()) < ALL_OF_TEST_S


def test_the_ledger_holds_the_durations_of_tests_that_exist() -> None:
    assert len(recorded()) > 100
    assert [name for name in recorded() if not (ROOT / file_of(name)).exists()] == []


def _durations() -> Mapping[str, float]:
    """Return the seconds of the tests that `make test` selects, and of what is short in files where it selects some."""
    left_out = {name for name, marks in _tests().items() if not _selects(_selection("test"), marks)}
    laws = {name for name, marks in _tests().items() if "law" in marks}
    files = {file_of(name) for name in recorded()} - _of_browsers()
    files -= {file_of(name) for name in left_out} - {file_of(name) for name in _tests().keys() - left_out}
    return {
        name: seconds
        for name, seconds in recorded().items()
        if name in laws | files or (file_of(name) in files and _function(name) not in left_out and not is_long(name))
    }


def _of_browsers() -> set[str]:
    """Return the files whose tests ask for a browser; they are left to `make test WHOLE=1`."""
    files = {file_of(name) for name in _tests()}
    return {file for file in files if "new_page: NewPage" in (ROOT / file).read_text()}


def _function(test: str) -> str:
    return test.partition("[")[0]
