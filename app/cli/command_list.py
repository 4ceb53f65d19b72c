"""The `millrace` command: the list of its commands, and nothing of what they do.

Each command lives in a module of its own, whose top imports typer and the standard library alone: what a command needs
is imported in its body, so that `millrace --help` answers at once.
"""

from typing import Annotated

import typer

from app.cli import (
    bench,
    checkpoints,
    config,
    dead_letters,
    demo,
    init,
    local,
    pause_resume,
    prove,
    rewind,
    run,
    status,
    validate,
)
from app.cli.errors import ending

application = typer.Typer(
    name="millrace",
    help="A Kafka topic goes in; a Keras model that never stops learning comes out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# The commands, in the order in which --help lists them: a family by `add_typer`, a single one by `command()(function)`.
application.add_typer(init.commands)
application.command()(validate.validate)
application.command()(run.run)
application.command()(status.status)
application.command()(pause_resume.pause)
application.command()(pause_resume.resume)
application.add_typer(checkpoints.checkpoints, name="checkpoints")
application.command()(rewind.rewind)
application.add_typer(dead_letters.dead_letters, name="dead-letters")
application.command()(demo.demo)
application.command()(bench.bench)
application.command()(prove.prove)
application.add_typer(config.config, name="config")
application.add_typer(local.commands, name="local")


def _version(wanted: bool) -> None:
    if wanted:
        from app.version import version

        typer.echo(f"millrace {version()}")
        raise typer.Exit


@application.callback()
def millrace(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command in this process's arguments and exit with its code."""
    raise SystemExit(ending(lambda: application(prog_name="millrace")))
