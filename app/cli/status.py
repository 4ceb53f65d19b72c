"""`millrace status`: how a running service fares, as a view to leave open or as one answer."""

import json
from typing import Annotated

import typer

from app.cli.options import Config, Url, service


def status(
    file: Config = None,
    url: Url = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once, as where there is no terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer of /status, once.")] = False,
    wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long a service may take to come up, as in 60s.")
    ] = None,
) -> None:
    """Show how a running service fares: the verdict, how well, how far behind, how fast, and what to look at.

    In a terminal it stays, drawn anew each second, until Ctrl-C; a service that falls silent is waited for. Example:
    millrace status -c clicks.yaml
    """
    from app.cli.render.tables import console
    from app.settings.units import parse_duration
    from consumers.errors import ConfigError

    try:
        patience_s = 0.0 if wait is None else parse_duration(wait)
    except ValueError as error:
        raise ConfigError(f"--wait: {error}") from None
    remote = service(file, url)
    answer = remote.ask_patiently("/status", patience_s, lambda answer: answer.get("mood") != "busy")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    screen = console()
    if once or not screen.is_terminal:
        from app.tools.status.status_view import drawn
        from app.tools.status.watched import Watched

        screen.print(drawn(Watched.of(answer)))
        return
    from app.tools.status.watch_loop import watch

    watch(remote, answer, screen)
