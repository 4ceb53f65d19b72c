"""The fresh processes of an export, forked from one that has imported TensorFlow: each costs no 4 s of imports.

What is forked has computed nothing and knows nothing of the exporting process, so it is as fresh as a start of Python.
Where such a start is the claim, as of what `millrace export` writes, tests leave the processes as they are.
"""

import io
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.app.tools.child_process.die_with_parent import die_with_parent
from millrace.app.tools.export import child_process
from millrace.training.model.export import writers
from tests.faults.harness import fork_server


def fork_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork what an export runs in fresh processes from now on."""

    def run(command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        module, *arguments = command[command.index("-m") + 1 :]
        return _run_forked(module, arguments, options["input"], options["env"], options["timeout"])

    monkeypatch.setattr(child_process, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run}))


def _run_forked(
    module: str, arguments: Sequence[str], given: str, env: Mapping[str, str], timeout: float
) -> "subprocess.CompletedProcess[str]":
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        for file, text in zip(files, (given, "", ""), strict=True):
            file.write_text(text)
        process = fork_server.fork(_become, module, list(arguments), files, dict(env))
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(module, timeout)
        return subprocess.CompletedProcess([module], process.exitcode, files[1].read_text(), files[2].read_text())


def _become(module: str, arguments: list[str], files: Sequence[Path], env: dict[str, str]) -> None:
    """Run the module as `python -m` does, in the forked process."""
    die_with_parent()
    for number, file in enumerate(files):
        descriptor = os.open(file, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False))
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    sys.argv = [module, *arguments]
    if module == writers.__name__:
        writers.main()
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
