"""Notes beside a command's answer: lines on stderr, left out where a program reads along.

Under `--json`, stdout holds the answer alone, and stderr what went wrong, as one JSON object in its last line.
"""

import json
import sys
from collections.abc import Callable, Sequence

import typer

from millrace.app.printable import printable


def json_wanted() -> bool:
    """Return whether the command in this process's arguments was given --json."""
    return "--json" in sys.argv[1:]


def note(text: str) -> None:
    """Print a line for the person who typed the command."""
    if not json_wanted():
        print(f"millrace: {printable(text)}", file=sys.stderr)


def report_usage_error(error: typer.TyperException) -> None:
    """Print what is wrong with the arguments, as typer does, or as one JSON object under --json."""
    message, hint = error.format_message(), ""
    if message.startswith("Got unexpected extra argument") and any(name in message for name in (".yaml", ".yml")):
        hint = "name the config file with -c FILE"
    if json_wanted():
        report_failure([f"{message.rstrip('.')}; {hint}" if hint else message], error.exit_code)
        return
    show: Callable[[], None] | None = getattr(error, "show", None)  # prints the usage too
    if show is None:
        report_failure([message], error.exit_code)
    else:
        show()
    if hint:
        note(hint)


def report_failure(problems: Sequence[str], exit_code: int) -> None:
    """Print what is wrong: a line for each problem, or one JSON object with all of them under --json."""
    lines = [printable(" ".join(problem.split())) for problem in problems]
    if json_wanted():
        facts = {"error": "; ".join(lines), "exit_code": exit_code}
        print(json.dumps({**facts, "problems": lines} if len(lines) > 1 else facts), file=sys.stderr)
        return
    for line in lines:
        print(f"millrace: error: {line}", file=sys.stderr)
