"""`millrace pause` and `resume`: orders to a service that runs."""

import json
from collections.abc import Mapping
from typing import Any

import typer

from app.cli.options import Config, Json, TokenFile, Url, service


def pause(file: Config = None, url: Url = None, token_file: TokenFile = None, as_json: Json = False) -> None:
    """Have a running service learn nothing until it is told to go on; it stays up and keeps its place.

    Example: millrace pause -c clicks.yaml
    """
    answer = service(file, url, token_file).order("/pause")
    _tell(answer, as_json, "paused; `millrace resume` has it go on")


def resume(file: Config = None, url: Url = None, token_file: TokenFile = None, as_json: Json = False) -> None:
    """Have a paused service go on learning.

    Example: millrace resume --url http://trainer:8080 --token-file token
    """
    answer = service(file, url, token_file).order("/resume")
    _tell(answer, as_json, f"learning goes on ({answer.get('state')})")


def _tell(answer: Mapping[str, Any], as_json: bool, done: str) -> None:
    under_way = answer.get("operation")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    elif under_way is not None:
        typer.echo(f"asked for; the trainer is still at something else (operation {under_way['id']})")
    else:
        typer.echo(done)
