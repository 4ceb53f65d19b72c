"""The house rules that no linter knows: sizes, cycles, doors, names."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grimp
import pytest

from tests.house.structure import MODULES, nodes_of

ROOT = Path(__file__).parents[2]
PACKAGES = ("consumers", "pipelines", "training", "app")
COMMANDS = (ROOT / "app" / "cli" / "command_list.py").read_text()
MOST_LINES = 600
MOST_LINES_IN_A_FUNCTION = 60
MOST_PARAMETERS = 7
MOST_LINES_WITHOUT_A_DOCSTRING = 3
READS_THE_ENVIRONMENT = re.compile(r"^app/(settings|tools/local_broker)(/|\.py$)|/failpoints\.py$")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Found:
    """A function and where it stands."""

    where: str
    node: Function


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _functions() -> Iterator[Found]:
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, Function):
                yield Found(f"{_name(path)}:{node.lineno} {node.name}", node)


def _lines(function: Function) -> int:
    """Count the lines of the body, its docstring left out."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _parameters(function: Function) -> int:
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return sum(parameter.arg not in ("self", "cls") for parameter in every)


def _is_command(found: Found) -> bool:
    """Whether typer makes its parameters into options: many are no burden to a caller."""
    decorators = {ast.unparse(decorator).partition("(")[0] for decorator in found.node.decorator_list}
    decorated = any(name.endswith((".command", ".callback")) for name in decorators)
    listed = f'"millrace.app.cli.{Path(found.where.partition(":")[0]).stem}:{found.node.name}"' in COMMANDS
    return found.where.startswith("app/cli/") and (decorated or listed)


def test_private_parts_of_others_are_reached_for_in_one_module_a_library() -> None:
    """Each has a test that names the part that a new version of the library no longer has."""
    ignored = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["per-file-ignores"]
    reaching = sorted(path for path, rules in ignored.items() if "SLF" in rules and not path.startswith("tests/"))
    assert reaching == ["consumers/kafka/aiokafka_internals.py", "training/model/setup/keras_internals.py"]
    assert [_name(path) for path in MODULES if "SLF001" in path.read_text()] == []


def test_there_is_something_to_judge() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(PACKAGES)
    assert len(list(_functions())) > 50


def test_every_package_is_named_for_the_wheel() -> None:
    """What the list lacks works from the tree, and is missing wherever the project is installed."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.relative_to(ROOT).parent for path in MODULES}
    assert set(named) == {"millrace"} | {".".join(("millrace", *folder.parts)) for folder in folders}


def test_every_python_file_of_the_tree_is_type_checked() -> None:
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    checked += PACKAGES if "millrace" in checked else ()  # it links to them
    modules = {_name(path) for path in _texts_of_the_project() if path.suffix == ".py"}
    assert len(modules) > 500
    assert sorted(name for name in modules if name.partition("/")[0] not in checked) == []


def test_nothing_multiplies_matrices_in_numpy() -> None:
    """It would wake the threads of BLAS, which spin until the next call: a whole core, where the calls are frequent."""
    multiplied = [
        f"{_name(path)}:{node.lineno}"
        for path in MODULES
        if path.relative_to(ROOT).parts[0] in {"consumers", "pipelines", "training"}
        for node in nodes_of(path)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    ]
    assert multiplied == []


def test_no_test_waits_for_javascript_that_the_page_evaluates() -> None:
    """What the page's policy refuses at the second look, so that a test fails where the first one came too early."""
    waiting = re.compile(r"\.wait_for_function\(")
    assert [_name(path) for path in (ROOT / "tests").rglob("*.py") if waiting.search(path.read_text())] == []


def test_no_module_is_long() -> None:
    lengths = {_name(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_function_is_long() -> None:
    lengths = {found.where: _lines(found.node) for found in _functions()}
    assert {where: lines for where, lines in lengths.items() if lines > MOST_LINES_IN_A_FUNCTION} == {}


def test_a_public_function_of_more_than_three_lines_says_what_it_does() -> None:
    """Those of a format say it once for all formats, in the protocol."""
    silent = [
        f"{_name(path)}:{function.lineno} {function.name}"
        for path in MODULES
        if not (path.name == "__init__.py" and "formats" in path.parts)
        for function in _public_functions(cast("ast.Module", nodes_of(path)[0]))
        if ast.get_docstring(function) is None and _lines(function) > MOST_LINES_WITHOUT_A_DOCSTRING
    ]
    assert silent == []


def _public_functions(within: ast.Module | ast.ClassDef) -> Iterator[Function]:
    """Yield the functions of a module, and the methods of its classes; what begins with an underscore is private."""
    for node in within.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if isinstance(node, Function):
                yield node
            else:
                yield from _public_functions(node)


def test_no_function_takes_many_parameters() -> None:
    counts = {found.where: _parameters(found.node) for found in _functions() if not _is_command(found)}
    assert {where: count for where, count in counts.items() if count > MOST_PARAMETERS} == {}


def test_every_module_says_what_it_is() -> None:
    modules = ((path, nodes_of(path)[0]) for path in MODULES)
    assert [_name(path) for path, module in modules if not ast.get_docstring(cast("ast.Module", module))] == []


def test_no_import_goes_round_in_a_circle() -> None:
    graph = grimp.build_graph("millrace", cache_dir=None)
    circles = [
        sorted({module, imported})
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if graph.chain_exists(imported, module)
    ]
    assert circles == []


def test_the_environment_is_read_behind_its_doors_alone() -> None:
    readers = [
        f"{_name(path)}: {ast.unparse(node)}"
        for path in MODULES
        if not READS_THE_ENVIRONMENT.search(_name(path))
        for node in nodes_of(path)
        if _reads_the_environment(node)
    ]
    assert readers == []


def _reads_the_environment(node: ast.AST) -> bool:
    names = {"environ", "environb", "getenv", "getenvb"}
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(alias.name in names for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os"


def _python(code: str, *arguments: str, cwd: Path) -> str:
    """Run code in a fresh interpreter that sees the source tree, and nothing of the current folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_of_ours_and_a_users_own_of_the_same_name_are_two(package: str, tmp_path: Path) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {package}, millrace.{package} as ours"
    found = _python(f"{code}; print({package}.__file__, ours.__file__)", str(tmp_path), cwd=tmp_path).split()
    assert found == [str(tmp_path / package / "__init__.py"), str(ROOT / "millrace" / package / "__init__.py")]


@pytest.mark.parametrize(
    "module",
    [
        "millrace.consumers",
        "millrace.pipelines",
        "millrace.pipelines.formats",
        "millrace.pipelines.formats.json.decoder",
    ],
)
def test_what_is_left_of_the_dataset_loads_no_tensorflow(module: str, tmp_path: Path) -> None:
    code = f"import sys, {module}; print([name for name in ('tensorflow', 'keras') if name in sys.modules])"
    assert _python(code, cwd=tmp_path) == "[]"


def test_help_answers(tmp_path: Path) -> None:
    assert "Usage: millrace" in _python("from millrace.app.cli import main; main()", "--help", cwd=tmp_path)


def _texts_of_the_project() -> Iterator[Path]:
    """Give what is, or would be, committed; in a copy without git, what lies in the folders of the project."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        yield from (ROOT / name.decode() for name in listed.stdout.split(b"\0") if name)
    else:
        for folder in (*PACKAGES, "tests", "bench", "docs", "examples", "k8s"):
            yield from (path for path in (ROOT / folder).rglob("*") if path.suffix != ".pyc")


def test_no_text_names_a_place_on_somebodys_machine() -> None:
    someones_folder = re.compile(r"(?<![\w.}/-])/(?:home|Users|root|work)/\w+")
    texts = [path for path in _texts_of_the_project() if path.is_file()]
    assert len(texts) > 20
    named = {
        _name(path): match.group()
        for path in texts
        if (match := someones_folder.search(path.read_text(errors="ignore"))) is not None
    }
    assert named == {}
