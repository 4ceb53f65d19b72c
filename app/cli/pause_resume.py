"""`millrace pause` and `millrace resume`: commands to a running service."""

import json
from collections.abc import Mapping
from typing import Any

import typer

from app.cli.options import Config, Json, TokenFile, Url, service


def pause(file: Config = None, url: Url = None, token_file: TokenFile = None, as_json: Json = False) -> None:
    """Pause learning in a running service; the service stays up and keeps its position.

    Example: millrace pause -c clicks.yaml
    """
    answer = service(file, url, token_file).command("/pause")
    _report(answer, as_json, "paused; `millrace resume` continues learning")


def resume(file: Config = None, url: Url = None, token_file: TokenFile = None, as_json: Json = False) -> None:
    """Resume learning in a paused service.

    Example: millrace resume --url http://trainer:8080 --token-file token
    """
    answer = service(file, url, token_file).command("/resume")
    _report(answer, as_json, f"learning resumes ({answer.get('state')})")


def _report(answer: Mapping[str, Any], as_json: bool, done: str) -> None:
    operation = answer.get("operation")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    elif operation is not None:
        typer.echo(f"accepted; the trainer is still busy with something else (operation {operation['id']})")
    else:
        typer.echo(done)
