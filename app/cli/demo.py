"""`millrace demo`: everything at once, on this machine alone."""

import json
from pathlib import Path
from typing import Annotated

import typer


def demo(
    for_: Annotated[
        str | None, typer.Option("--for", help="End by itself when so much of the stream is learnt, as in 60s.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Everything that it keeps; remove it to begin anew.")] = Path("demo"),
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of the page; by default the first from 8080 on that is free.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a drawing, also in a terminal.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 1 where an accuracy is not what the demo claims.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON; all else goes to stderr.")] = False,
) -> None:
    """Show how a model learns from a stream whose rule changes: a local Kafka, a trainer, and how it goes.

    Kill it and start it again: it goes on where it was, and says what it has lost (nothing). Ctrl-C ends it; exits 1
    where an offset was lost or learnt twice. Example: millrace demo --for 60s
    """
    from rich.console import Console

    from app.settings.units import parse_duration
    from app.tools.demo.lifecycle import run
    from app.tools.demo.report import summary, unlearnt
    from app.tools.demo.screen import screen_for
    from app.tools.demo.workspace import Workspace
    from consumers.errors import ConfigError

    try:
        for_s = None if for_ is None else parse_duration(for_)
    except ValueError as error:
        raise ConfigError(f"--for: {error}") from None
    console = Console(stderr=as_json, highlight=False, emoji=False)
    screen = screen_for(console, plain=plain)
    report = run(Workspace(path=folder.resolve()), screen, for_s=for_s, api_port=port)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        for line in summary(report):
            screen.say(line)
    wrong = report["broken"] if check else list(unlearnt(report))
    raise typer.Exit(int(bool(wrong)))
