"""The end of every command: the one place where an error becomes a line and an exit code.

0 well; 1 failed; 2 usage or configuration; 3 unreachable; 4 refused because data would be lost or repeated; 130 after
Ctrl-C. An error that a user can repair is one line on stderr, or under `--json` one JSON object there. When the reader
of a pipe closes it early (`| head`), the command exits 1 without a message. Any other error is a defect of ours, and
keeps its traceback.
"""

import os
import sys
from collections.abc import Callable

import typer

from millrace.app.cli.notes import report_failure, report_usage_error

INTERRUPTED = 130


def ending(command: Callable[[], object]) -> int:
    """Run a command to its end and give the exit code."""
    try:
        code = _code_of(command)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 1
    return code


def _code_of(command: Callable[[], object]) -> int:
    try:
        code = command()
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as leaving:  # typer's own way to end, usage errors included
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except typer.TyperException as error:
        report_usage_error(error)
        return error.exit_code
    except typer.Abort:  # the end of the input to a question
        return 1
    except Exception as error:
        from millrace.consumers.errors import MillraceError  # noqa: PLC0415 - --help loads no stage

        if not isinstance(error, MillraceError):
            raise
        report_failure(getattr(error, "problems", (str(error),)), error.exit_code)  # settings can have several
        return error.exit_code
    return code if isinstance(code, int) else 0


def _discard_output() -> None:
    """Send what is still buffered to /dev/null, so that the interpreter's last flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
