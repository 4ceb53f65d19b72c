"""`millrace pause` and `millrace resume`: commands to a running service."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from millrace.app.cli.options import Json, ServiceOptions, grouped, print_json


@grouped
def pause(
    *,
    service: ServiceOptions,
    as_json: Json = False,
) -> None:
    """Pause learning in a running service; the service stays up and keeps its position.

    Example: millrace pause -c clicks.yaml
    """
    answer = service.client().command("/pause")
    _report(answer, as_json, "paused; `millrace resume` continues learning")


@grouped
def resume(
    *,
    service: ServiceOptions,
    assume_absent: Annotated[
        bool, typer.Option(help="Learn what waits for labels without them: none have come, and none will.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Resume learning in a paused service.

    Example: millrace resume --url http://trainer:8080 --token-file token
    """
    answer = service.client().command("/resume", {"assume_absent": True} if assume_absent else None)
    _report(answer, as_json, f"learning resumes ({answer.get('state')})")


def _report(answer: Mapping[str, Any], as_json: bool, done: str) -> None:
    operation = answer.get("operation")
    if as_json:
        print_json(answer)
    elif operation is not None:
        typer.echo(f"accepted; the trainer is still busy with something else (operation {operation['id']})")
    else:
        typer.echo(done)
