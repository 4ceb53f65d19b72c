"""Measures how the product is laid out: arrows between rooms, names that are used twice.

    python -m tests.house.structure --out build/house.json

A room is a module or package directly below `app` or `training`. An arrow is a pair of rooms of which one imports the
other. The order of the rooms is that of the layers in pyproject.toml, which the import linter holds.
"""

import argparse
import ast
import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = ("consumers", "pipelines", "training", "app")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

Arrow = tuple[str, str]


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return a module, and all that stands in it."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def _imports() -> tuple[Arrow, ...]:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    return tuple(
        (module, found) for module in graph.modules for found in graph.find_modules_directly_imported_by(module)
    )


def arrows(package: str) -> set[Arrow]:
    """Return the pairs of rooms of a package of which the first imports the second."""
    pairs = {(_room(package, one), _room(package, other)) for one, other in _imports()}
    return {(one, other) for one, other in pairs if one and other and one != other}


def _room(package: str, module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == package and len(parts) > 1 else ""


def levels(package: str) -> Mapping[str, int]:
    """Return each room's level by the package's layers in pyproject.toml; the lowest is 0."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == [package]]
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


def figures() -> dict[str, int]:
    """Return the figures that `make check` leaves in build/house.json."""
    return {
        "app_arrows": len(arrows("app")),
        "training_arrows": len(arrows("training")),
        "arrows_up": len(arrows_up("app")) + len(arrows_up("training")),
        "class_names_twice": len(class_names_twice()),
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
