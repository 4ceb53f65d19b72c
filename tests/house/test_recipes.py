"""The two recipes of tests: `make test` shows every row of the matrix, and with `make test-rest` it is everything."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.faults.matrix.table import ROWS

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
MARKERS = {"slow", "fastest"}


def _selection(recipe: str) -> Expression:
    """Return the expression by which a recipe of the Makefile selects tests."""
    found = re.search(rf'^{recipe}: .*\n\t\$\(PYTEST\) -m "(.+?)"', MAKEFILE, re.MULTILINE)
    assert found is not None, recipe
    return Expression.compile(found[1])


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


def test_every_test_is_run_by_exactly_one_of_the_two_recipes() -> None:
    for marks in map(set, chain.from_iterable(combinations(MARKERS, size) for size in range(len(MARKERS) + 1))):
        assert _selects(_selection("test"), marks) != _selects(_selection("test-rest"), marks), marks
    assert re.search(r"^test-all: test test-rest ", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS)
def test_make_test_shows_the_row(row: int) -> None:
    quick = _selection("test")
    assert [name for name, marks in _tests().items() if f"row({row})" in marks and _selects(quick, marks)] != []


def test_the_fastest_test_of_a_row_is_a_slow_one_that_stands_for_a_row() -> None:
    fastest = {name: marks for name, marks in _tests().items() if "fastest" in marks}
    assert len(fastest) > 10
    for name, marks in fastest.items():
        assert "slow" in marks, name
        assert any(mark.startswith("row(") for mark in marks), name


def test_the_gate_runs_both_recipes() -> None:
    assert re.search(r"\bmake test test-all\b", (ROOT / ".ci" / "run").read_text())
