"""The page of guarantees: its reasons are those of the code, and every test that it names exists."""

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


def test_every_test_that_the_page_names_exists() -> None:
    paths = list((ROOT / "tests").rglob("test_*.py"))
    here = {
        node.name
        for path in paths
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 20
    assert named - here == set()
    files = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert [file for file in files if not (ROOT / file).is_file()] == []
