"""Names the files of tests that a change can reach, for `make test-changed`.

    python -m tests.changed main        what differs from the branch main, in commits and in the working tree

A changed module reaches the tests that import it, by whichever way; any other file reaches the tests that name it, or
a folder of it. One test a law is always among them, because a process that is killed reaches everything.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import grimp

ROOT = Path(__file__).parents[1]
_PACKAGES = ("consumers", "pipelines", "training", "app", "tests")
_REACHES_ALL = ("tests/conftest.py", "pyproject.toml", "Makefile", "requirements/dev.lock")


def reached(changed: Iterable[str]) -> list[str]:
    """Return the files of tests that these changed files can reach, by their names in the tree."""
    changed = list(changed)
    if any(name in _REACHES_ALL for name in changed):
        return ["tests"]
    found = {test for name in changed for test in _tests_of(name)}
    return sorted({test.relative_to(ROOT).as_posix() for test in found} | set(laws()))


def laws() -> list[str]:
    """Return the files that hold the test of a law."""
    return sorted(test.relative_to(ROOT).as_posix() for test in _tests() if "@pytest.mark.law\n" in test.read_text())


def _tests_of(name: str) -> Iterator[Path]:
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    module = module if module.startswith("tests.") else f"millrace.{module}"
    if name.endswith(".py") and module in _imports().modules:
        near = {module} | ({f"{module.rpartition('.')[0]}."} if module.endswith("conftest") else set())
        reached_modules = {module, *_imports().find_downstream_modules(module)}
        for test in _tests():
            itself = test.relative_to(ROOT).as_posix().removesuffix(".py").replace("/", ".")
            if itself in reached_modules or any(itself.startswith(part) for part in near if part.endswith(".")):
                yield test
    else:
        words = list(_words(Path(name)))
        yield from (test for test in _tests() if any(word in test.read_text() for word in words))


def _words(name: Path) -> Iterator[str]:
    """Give what a test that reads this file holds: its name, or that of a folder around it, written either way."""
    yield f'"{name.name}"'
    for part in (name, *name.parents[:-1]):
        if part.as_posix() not in _PACKAGES:
            yield " / ".join(f'"{one}"' for one in part.parts)
        if len(part.parts) > 1:
            yield f'"{part}'


@cache
def _tests() -> tuple[Path, ...]:
    """Return all files of tests but those of the house, which `make check` runs."""
    tests = (ROOT / "tests").rglob("test_*.py")
    return tuple(sorted(test for test in tests if "house" not in test.parts))


@cache
def _imports() -> grimp.ImportGraph:
    with mock.patch.object(sys, "path", [str(ROOT)]):  # other packages have modules named `tests` too
        return grimp.build_graph("millrace", "tests", cache_dir=None)


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    return done.stdout.splitlines()


def main() -> None:
    """Print the files, each on a line."""
    parser = argparse.ArgumentParser(description="Name the files of tests that a change can reach.")
    parser.add_argument("base", nargs="?", default="HEAD", help="the commit or branch to compare the working tree with")
    base: str = parser.parse_args().base
    changed = {*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")}
    print(*reached(changed), sep="\n")  # noqa: T201 - a program of its own


if __name__ == "__main__":
    main()
