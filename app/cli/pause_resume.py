"""`millrace pause` and `millrace resume`: commands to a running service."""

import json
from collections.abc import Mapping
from typing import Any

import typer

from app.cli.options import CaFile, ClientCertificate, ClientKey, Config, Json, TokenFile, Url, service
from app.tools.service_client import TlsFiles


def pause(
    file: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    client_certificate: ClientCertificate = None,
    client_key: ClientKey = None,
    as_json: Json = False,
) -> None:
    """Pause learning in a running service; the service stays up and keeps its position.

    Example: millrace pause -c clicks.yaml
    """
    files = TlsFiles(ca=ca_file, certificate=client_certificate, key=client_key)
    answer = service(file, url, token_file, files).command("/pause")
    _report(answer, as_json, "paused; `millrace resume` continues learning")


def resume(
    file: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    client_certificate: ClientCertificate = None,
    client_key: ClientKey = None,
    as_json: Json = False,
) -> None:
    """Resume learning in a paused service.

    Example: millrace resume --url http://trainer:8080 --token-file token
    """
    files = TlsFiles(ca=ca_file, certificate=client_certificate, key=client_key)
    answer = service(file, url, token_file, files).command("/resume")
    _report(answer, as_json, f"learning resumes ({answer.get('state')})")


def _report(answer: Mapping[str, Any], as_json: bool, done: str) -> None:
    operation = answer.get("operation")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    elif operation is not None:
        typer.echo(f"accepted; the trainer is still busy with something else (operation {operation['id']})")
    else:
        typer.echo(done)
