"""The command and the environment with which this project's own Python programs run as child processes."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import millrace
from millrace.app.settings.environment import of_others, with_own

ROOT = Path(millrace.__file__).parents[1]


def millrace_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `millrace` with these arguments; its output is unbuffered."""
    return [sys.executable, "-u", "-c", "from millrace.app.cli import main; main()", *arguments]


def module_command(module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs one of our modules with these arguments."""
    return [sys.executable, "-m", module, *arguments]


def python_environment() -> dict[str, str]:
    """Return this process's environment without millrace's own settings, with our packages on the path."""
    return of_others() | {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def worker_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, millrace's own settings included, with these variables over it."""
    environment = with_own(variables)
    path = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    return environment | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
