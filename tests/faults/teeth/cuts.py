"""Takes one thing out of a function, by its syntax tree: a call, a condition, an argument, an answer.

A cut names the function and a name in it, and quotes no line, so it outlives changes of format, comments and other
names. The rest of the file stays as it is. Each cut must find what it names exactly once.
"""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PACKAGES = ("consumers", "pipelines", "training", "app")
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Find = Callable[[ast.AST, str], list[ast.AST]]


@dataclass(frozen=True, slots=True)
class Cut:
    """One change of a function."""

    kind: str
    name: str
    """What is sought: something that is called, assigned or mentioned. Names after it must be mentioned too."""
    code: str | None
    """What stands there instead."""
    place: int | str = ""
    """The argument, by its place or name; of equal statements, which one."""


def drop(name: str, which: int | str = "") -> Cut:
    """Leave the statement out that calls, assigns or mentions this."""
    return Cut("statement", name, "pass", which)


def becomes(name: str, code: str) -> Cut:
    """Put another statement in the place of the one that calls, assigns or mentions this."""
    return Cut("statement", name, code)


def decides(name: str, condition: str) -> Cut:
    """Replace the condition that mentions this, or that is this."""
    return Cut("condition", name, condition)


def calls(name: str, expression: str) -> Cut:
    """Replace the call of this."""
    return Cut("call", name, expression)


def argument(name: str, place: int | str, expression: str | None) -> Cut:
    """Replace an argument of the call of this; None leaves it out."""
    return Cut("argument", name, expression, place)


def keyword(name: str, expression: str | None) -> Cut:
    """Replace an argument of the one call that has a keyword of this name; None leaves it out."""
    return Cut("keyword", name, expression, name)


def handles(error: str, code: str) -> Cut:
    """Replace what is done with this error where it is caught."""
    return Cut("handler", error, code)


def file_of(function: str) -> Path:
    """Return the file of a function, `Class.method` or `module:function`, below the project; it must be one."""
    module, _, name = function.rpartition(":")
    found = [path for path in _files()[name] if module in ("", path.stem)]
    assert len(found) == 1, f"{function} is in {len(found)} files: {', '.join(map(str, found))}"
    return found[0]


@cache
def _files() -> Mapping[str, list[Path]]:
    """Return the files that define each class, method and function."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, _DEFINITIONS):
                found[node.name].append(path.relative_to(ROOT))
                for inner in node.body:
                    if isinstance(inner, _DEFINITIONS):
                        found[f"{node.name}.{inner.name}"].append(path.relative_to(ROOT))
    return found


def without(source: str, function: str, cut: Cut) -> str:
    """Return the source after the cut."""
    found = _defined(ast.parse(source), function.rpartition(":")[2].split("."))
    assert found is not None, f"there is no {function}"
    name, *more = cut.name.split(" ") if cut.kind != "condition" else [cut.name]
    nodes = [node for node in _FINDERS[cut.kind](found, name) if all(_mentions(node, each) for each in more)]
    if cut.kind == "statement" and isinstance(cut.place, int):
        nodes = nodes[cut.place : cut.place + 1]
    assert len(nodes) == 1, f"{function} has {len(nodes)} times a {cut.kind} of {cut.name}"
    first, last = (nodes[0].body[0], nodes[0].body[-1]) if isinstance(nodes[0], ast.ExceptHandler) else (nodes[0],) * 2
    return _replaced(source, first, last, _code(nodes[0], cut))


def _defined(tree: ast.AST, names: list[str]) -> ast.AST | None:
    """Return the class or function of this name below a node, and below none of its functions."""
    for node in getattr(tree, "body", ()):
        if isinstance(node, _DEFINITIONS) and node.name == names[0]:
            return node if len(names) == 1 else _defined(node, names[1:])
    return None


def _statements(function: ast.AST, name: str) -> list[ast.AST]:
    simple = [node for node in _inside(function, ast.stmt) if not hasattr(node, "body") and not _is_text(node)]
    ways: tuple[Find, ...] = (_calls, _assigned, _mentions)
    for way in ways:
        if found := [node for node in simple if way(node, name)]:
            return found
    return []


def _conditions(function: ast.AST, name: str) -> list[ast.AST]:
    tests = [node.test for node in _inside(function, ast.If | ast.While | ast.IfExp)]
    tests += [test for node in _inside(function, ast.comprehension) for test in node.ifs]
    return [test for test in tests if ast.unparse(test) == name] or [test for test in tests if _mentions(test, name)]


def _handlers(function: ast.AST, name: str) -> list[ast.AST]:
    caught = (node for node in _inside(function, ast.ExceptHandler) if node.type is not None)
    return [node for node in caught if _mentions(node.type, name)]


def _keywords(function: ast.AST, name: str) -> list[ast.AST]:
    return [call for call in _inside(function, ast.Call) if name in [each.arg for each in call.keywords]]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _calls(node: ast.AST, name: str) -> list[ast.AST]:
    return [call for call in _inside(node, ast.Call) if f".{ast.unparse(call.func)}".endswith(f".{name}")]


def _assigned(node: ast.AST, name: str) -> list[ast.AST]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target for target in targets if _mentions(target, name)]


def _mentions(node: ast.AST, name: str) -> list[ast.AST]:
    """Return the names, attributes and texts in a node that are this one."""
    return [
        each
        for each in ast.walk(node)
        if name in (getattr(each, "id", None), getattr(each, "attr", None))
        or (isinstance(each, ast.Constant) and isinstance(each.value, str) and name in each.value)
    ]


def _inside(node: ast.AST, kind: Any) -> Iterator[Any]:
    return (each for each in _in_order(node) if isinstance(each, kind))


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


_FINDERS: dict[str, Find] = {
    "statement": _statements,
    "condition": _conditions,
    "call": _calls,
    "argument": _calls,
    "keyword": _keywords,
    "handler": _handlers,
}


def _code(node: ast.AST, cut: Cut) -> str:
    if cut.kind not in {"argument", "keyword"}:
        return cut.code or ""
    assert isinstance(node, ast.Call)
    if isinstance(cut.place, int):
        node.args[cut.place : cut.place + 1] = [] if cut.code is None else [ast.parse(cut.code, mode="eval").body]
    else:
        (keyword,) = [each for each in node.keywords if each.arg == cut.place]
        if cut.code is None:
            node.keywords.remove(keyword)
        else:
            keyword.value = ast.parse(cut.code, mode="eval").body
    return ast.unparse(node)


def _replaced(source: str, first: Any, last: Any, code: str) -> str:
    """Return the source with this code from one node to another, indented as the first."""
    lines = source.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: first.lineno - 1])) + first.col_offset
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    if not isinstance(first, ast.stmt):
        code = f"({code})"
    indented = code.replace("\n", "\n" + " " * first.col_offset)
    return (source.encode()[:begin] + indented.encode() + source.encode()[end:]).decode()
