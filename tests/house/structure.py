"""Measures how the product is laid out: arrows between rooms, names that are used twice, how it is cut up.

    python -m tests.house.structure --out build/house.json

A room is a module or package directly below `app`, `training`, `training.model`, `pipelines` or `pipelines.formats`. An
arrow is a pair of rooms, one of which imports the other. The order of the rooms is that of the layers in
pyproject.toml, which the import linter holds.
"""

import argparse
import ast
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = ("consumers", "pipelines", "training", "app")
HOUSES = ("app", "training", "training.model", "pipelines", "pipelines.formats")
"""The packages whose rooms lie in layers."""
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

Arrow = tuple[str, str]

_PRIVATE = re.compile(r"\b_[a-z]\w*")
_PRIVATE_FUNCTION = re.compile(r"^ *(?:async )?def (_[a-z]\w*)", re.MULTILINE)
_HEADLESS = re.compile(
    r"\W*(?:whether|what|of|by|as|where|when|how|who|whose|which|all|so|nothing|never|always|in|on|with|without|from|to"
    r"|for|at|the|an?|if|no|one|each|every|both|its)\b",
    re.IGNORECASE,
)
"""How no sentence begins that says what a function does."""


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return a module, and all that stands in it."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def _imports() -> tuple[Arrow, ...]:
    graph = grimp.build_graph("millrace", cache_dir=None)
    return tuple(
        (module.removeprefix("millrace."), found.removeprefix("millrace."))
        for module in graph.modules
        for found in graph.find_modules_directly_imported_by(module)
    )


def rooms(package: str) -> set[str]:
    """Return the modules and packages directly below a package."""
    folder = ROOT / package.replace(".", "/")
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return modules | {path.parent.name for path in folder.glob("*/__init__.py")}


def arrows(package: str) -> set[Arrow]:
    """Return the pairs of rooms of a package, the first of which imports the second."""
    pairs = {(_room(package, one), _room(package, other)) for one, other in _imports()}
    return {(one, other) for one, other in pairs if one and other and one != other}


def _room(package: str, module: str) -> str:
    inside = module.removeprefix(f"{package}.")
    return "" if inside == module else inside.partition(".")[0]


def levels(package: str) -> Mapping[str, int]:
    """Return each room's level by the package's layers in pyproject.toml; the lowest is 0."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == [f"millrace.{package}"]]
    return {room.strip(): level for level, layer in enumerate(reversed(layers)) for room in layer.split("|")}


def arrows_up(package: str) -> set[Arrow]:
    """Return the arrows that run up, or sideways, against the layers."""
    level = levels(package)
    return {(one, other) for one, other in arrows(package) if level[one] <= level[other]}


def class_names_twice() -> Mapping[str, list[str]]:
    """Return the names of classes that are defined in more than one module; leading underscores do not count."""
    where: defaultdict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                where[node.name.lstrip("_")].append(path.relative_to(ROOT).as_posix())
    return _several(where)


def file_names_twice() -> Mapping[str, list[str]]:
    """Return the names of files that stand in more than one folder, `__init__.py` aside."""
    where: defaultdict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        if path.name != "__init__.py":
            where[path.stem].append(path.parent.relative_to(ROOT).as_posix())
    return _several(where)


def _several(where: Mapping[str, Iterable[str]]) -> Mapping[str, list[str]]:
    return {name: places for name, found in sorted(where.items()) if len(places := sorted(found)) > 1}


def private_with_one_caller() -> list[str]:
    """Return the private functions whose name stands twice in their module: in the definition, and in one use."""
    found = []
    for path in MODULES:
        text = path.read_text()
        used = _PRIVATE.findall(text)
        names = [name for name in _PRIVATE_FUNCTION.findall(text) if used.count(name) == 2]
        found += [f"{path.relative_to(ROOT).as_posix()} {name}" for name in names]
    return found


def headless() -> list[str]:
    """Return the functions whose docstring does not begin with what they do; properties say what they are."""
    return [
        f"{path.relative_to(ROOT).as_posix()}:{function.lineno} {function.name}"
        for path in MODULES
        for function in _functions(path)
        if _HEADLESS.match(ast.get_docstring(function) or "")
        if not any("property" in ast.unparse(decorator) for decorator in function.decorator_list)
    ]


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def figures() -> dict[str, int]:
    """Return the figures that `make check` leaves in build/house.json."""
    return {
        "app_arrows": len(arrows("app")),
        "training_arrows": len(arrows("training")),
        "model_arrows": len(arrows("training.model")),
        "pipelines_arrows": len(arrows("pipelines")),
        "formats_arrows": len(arrows("pipelines.formats")),
        "arrows_up": sum(len(arrows_up(package)) for package in HOUSES),
        "class_names_twice": len(class_names_twice()),
        "modules": len(MODULES),
        "product_lines": sum(path.read_text().count("\n") for path in MODULES),
        "private_one_caller": len(private_with_one_caller()),
        "headless": len(headless()),
    }


def main() -> None:
    """Write the figures to a file, and print them."""
    parser = argparse.ArgumentParser(description="Measure how the product is laid out.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "house.json")
    out: Path = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(figures(), indent=2) + "\n")
    print(out.read_text(), end="")  # noqa: T201 - a program of its own


if __name__ == "__main__":
    main()
