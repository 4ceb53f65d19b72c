"""What several verbs share: the config file as it is loaded, --json, and a checkpoint by its number."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from millrace.app.cli.config_file import config_file
from millrace.app.cli.notes import note
from millrace.app.settings import Loaded, load

Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


def loaded(file: Path | None) -> Loaded:
    """Load the config file that -c names, or that of the current folder; print what is probably a mistake in it."""
    found = load(config_file(file))
    for warning in found.warnings:
        note(f"warning: {warning}")
    return found


def named_checkpoint(text: str, hint: str) -> int | Literal["latest", "best"]:
    """Parse a checkpoint's number, `latest` or `best`. Other text is a usage error of the option `hint`."""
    if text in {"latest", "best"}:
        return "best" if text == "best" else "latest"
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"{text!r} is neither latest nor best nor a checkpoint's number", param_hint=hint)
    return int(text)


def checkpoint_number(text: str, hint: str) -> int | None:
    """Parse a checkpoint's number; None stands for the latest. Other text is a usage error of the option `hint`."""
    if text == "latest":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"{text!r} is neither latest nor a checkpoint's number", param_hint=hint)
    return int(text)
