"""`millrace validate`: checks whether a start would succeed, and says what to do if not."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from millrace.app.cli.config_file import ConfigFile, config_file
from millrace.app.cli.options import Json, checkpoint_number, print_json
from millrace.app.cli.tables import console, print_line
from millrace.app.service.native_log import load_tensorflow
from millrace.app.settings.environment import require_tensorflow_backend
from millrace.app.tools.validate import CheckOutcome, CheckResult, exit_code_of

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
_WIDTHS = (4, 12)


def validate(
    file: ConfigFile = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against-checkpoint",
            metavar="latest|N",
            help="Check only whether this model can resume from a checkpoint; exits 4 if not. Kafka is not asked.",
        ),
    ] = None,
    eager: Annotated[
        bool,
        typer.Option(
            "--eager",
            help="Only run preprocess, augment and the model once on sampled records, line by line, so that print and "
            "breakpoint() in them work.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check everything that a start needs, and change nothing.

    Settings, group of workers, tokens, broker, topics, a sample of the records, the model and its proof, the folder of
    checkpoints: a line each, with what to do about every problem. Exits 0 if nothing failed, else as a start would with
    the worst failure.
    Example: millrace validate -c clicks.yaml --against-checkpoint latest
    """
    if eager and (against is not None or as_json):
        raise typer.BadParameter("it runs your code, which may print; write it alone", param_hint="--eager")
    number = None if against is None else checkpoint_number(against, "--against-checkpoint")
    require_tensorflow_backend()
    path = config_file(file)
    load_tensorflow()
    from millrace.app.tools.validate.examination import (  # noqa: PLC0415 - loads TensorFlow
        examine_against,
        examine_eagerly,
        examine_file,
    )

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the table shows what it would log
    checks, screen = [], console()
    if against is not None:
        found = examine_against(path, number)
    else:
        found = examine_eagerly(path) if eager else examine_file(path)
    for check in found:
        checks.append(check)
        if not as_json:
            outcome = check.outcome.value
            print_line(_WIDTHS, [Text(outcome, _STYLES[outcome]), Text(check.name), Text(check.detail)], screen)
    code = exit_code_of(checks)
    if as_json:
        print_json({"checks": [asdict(check) for check in checks], "exit_code": code})
    else:
        typer.echo(_summary(checks, "it ran" if eager else "a start would succeed"))
    raise typer.Exit(code)


def _summary(checks: "Sequence[CheckResult]", success: str) -> str:
    failed = sum(check.outcome is CheckOutcome.FAIL for check in checks)
    warned = sum(check.outcome is CheckOutcome.WARN for check in checks)
    warnings = f", {warned} to look at" if warned else ""
    if failed:
        return f"{failed} of {len(checks)} failed{warnings}: a start would be refused"
    return f"nothing failed{warnings}: {success}"
