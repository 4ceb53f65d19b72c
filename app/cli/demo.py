"""`millrace demo`: a broker, a stream, a trainer and a live view, all on this machine."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millrace.app.settings.environment import require_tensorflow_backend
from millrace.app.tools.demo.demo import DemoOptions, run
from millrace.app.tools.demo.report import summary, unlearnt
from millrace.app.tools.demo.screen import Screen
from millrace.app.tools.demo.workspace import Workspace
from millrace.consumers.errors import ConfigError
from millrace.consumers.units import parse_duration


def demo(
    for_: Annotated[
        str | None, typer.Option("--for", help="End after this much of the stream is learnt, as in 60s.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="The folder for all its data; remove it to start again.")] = Path("demo"),
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port of the page; default: the first free one from 8080.")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print lines instead of a drawing, also in a terminal.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 if an accuracy is not what the demo claims.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON; everything else goes to stderr.")
    ] = False,
) -> None:
    """Show a model that learns from a stream whose rule changes: a local Kafka, a trainer, and a live view.

    Kill it and start it again: it resumes where it was, and says what was lost (nothing). Ctrl-C ends it; exits 1 if an
    offset was lost or learnt twice. Example: millrace demo --for 60s
    """
    try:
        for_s = None if for_ is None else parse_duration(for_)
    except ValueError as error:
        raise ConfigError(f"--for: {error}") from None
    require_tensorflow_backend()
    console = Console(stderr=as_json, highlight=False, emoji=False)
    screen = Screen(console, plain=plain)
    report = run(DemoOptions(home=Workspace(path=folder.resolve()), for_s=for_s, api_port=port), screen)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        for line in summary(report):
            screen.say(line)
    wrong = report["broken"] if check else list(unlearnt(report))
    raise typer.Exit(int(bool(wrong)))
