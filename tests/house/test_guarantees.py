"""The page of guarantees: its reasons are those of the code, its tests exist, and the nightly ones bear a mark."""

import ast
import itertools
import re
from pathlib import Path

from millrace.consumers.reasons import Reason

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")


def _meanings() -> dict[str, str]:
    """The sentence under each member of the enumeration, as it stands in the source."""
    tree = ast.parse((ROOT / "consumers" / "reasons.py").read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Reason")
    return {
        str(ast.literal_eval(member.value)): str(ast.literal_eval(below.value))
        for member, below in itertools.pairwise(body)
        if isinstance(member, ast.Assign) and isinstance(below, ast.Expr)
    }


def test_the_page_lists_every_reason_with_its_meaning_and_no_other() -> None:
    section = PAGE.partition("\n## Reasons\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, flags=re.MULTILINE)
    assert listed == list(_meanings().items())
    assert [name for name, _ in listed] == [reason.value for reason in Reason]


def _tests() -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every test by its name, as it stands in the source."""
    return {
        node.name: node
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _is_nightly(mark: ast.expr) -> bool:
    """Whether a decorator makes a test nightly: the marker, or one on each of its parameters."""
    if not isinstance(mark, ast.Call):
        return ast.unparse(mark) == "pytest.mark.nightly"
    lists = [one.elts for one in mark.args if isinstance(one, ast.List)]
    return any(all("pytest.mark.nightly" in ast.unparse(one) for one in each) for each in lists if each)


def test_every_test_that_the_page_names_exists() -> None:
    here = _tests().keys()
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 20
    assert named - here == set()
    files = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_the_page_marks_the_nightly_tests_and_no_other() -> None:
    here = _tests()
    named, marked = (set(re.findall(rf"`(test_\w+)`{mark}", PAGE)) for mark in ("", "†"))
    assert set(re.findall(r"`(test_\w+)`(?!†)", PAGE)) & marked == set(), "a name bears the mark everywhere or nowhere"
    assert marked == {name for name in named if any(map(_is_nightly, here[name].decorator_list))}
