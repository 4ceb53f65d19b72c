"""Looks for the private parts of a library that one of our modules uses, in the installed version."""

import ast
import dis
import inspect
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


def gone(library: str, used: Mapping[type, Iterable[str]], *, by: ModuleType) -> list[str]:
    """Return a sentence for each name that its class no longer has, neither as a method nor in an object of it."""
    return [
        f"{library} {version(library)} has no {owner.__name__}.{name} any more, which {by.__name__} uses"
        for owner, names in used.items()
        for name in names
        if not hasattr(owner, name) and name not in _assigned(owner)
    ]


def private_names(module: ModuleType) -> set[str]:
    """Return the names of private parts that the module takes of something else than its own objects."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    taken = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
    }
    asked = {
        str(node.args[1].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr"}
        if isinstance(node.args[1], ast.Constant)
    }
    return {name for name in taken | asked if name.startswith("_") and not name.startswith("__")}


def _assigned(owner: type) -> set[str]:
    """Return the names of the attributes that methods of a class, or of its bases, assign."""
    methods = [value for base in owner.__mro__ for value in vars(base).values()]
    codes = [inspect.unwrap(method).__code__ for method in methods if inspect.isfunction(method)]
    return {
        str(step.argval)
        for code in codes
        for inner in _all_of(code)
        for step in dis.get_instructions(inner)
        if step.opname == "STORE_ATTR"
    }


def _all_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    inner: Any
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _all_of(inner)
