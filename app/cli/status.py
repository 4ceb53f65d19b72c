"""`millrace status`: shows how a running service is doing, once or as a view that updates each second."""

import json
from typing import Annotated

import typer

from millrace.app.cli.options import ServiceOptions, grouped
from millrace.app.cli.tables import console
from millrace.app.tools.status_view import StatusReadings, drawn, has_figures, watch
from millrace.consumers.errors import ConfigError
from millrace.consumers.units import parse_duration


@grouped
def status(
    *,
    service: ServiceOptions,
    once: Annotated[bool, typer.Option("--once", help="Show it once; the default without a terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer of /status once.")] = False,
    wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wait this long until the first records are learnt, as in 60s.")
    ] = None,
) -> None:
    """Show how a running service is doing: the verdict, live metrics, lag, throughput, and problems with a way out.

    In a terminal the view updates each second until Ctrl-C, also while the service does not answer. Example:
    millrace status -c clicks.yaml
    """
    try:
        patience_s = 0.0 if wait is None else parse_duration(wait)
    except ValueError as error:
        raise ConfigError(f"--wait: {error}") from None
    remote = service.client()
    answer = remote.ask_patiently("/status", patience_s, has_figures)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    screen = console()
    if once or not screen.is_terminal:
        screen.print(drawn(StatusReadings.of(answer)))
        return

    watch(remote, answer, screen)
