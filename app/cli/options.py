"""Options that several verbs share: the service, by its config file or its address, and a checkpoint, by its number."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from app.cli.config_file import config_file, default_config
from app.cli.notes import note
from app.settings import Loaded, load
from app.settings.file_access import exposure
from app.tools.service_client import Remote, TlsFiles, local_service, token_in
from consumers.errors import ConfigError

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="The config file, whose api.listen is the service's address; default: ./millrace.yaml, or millrace.yml.",
    ),
]
Url = Annotated[
    str | None, typer.Option("--url", help="The service's address, as in http://host:8080; instead of the config file.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", envvar="MILLRACE_TOKEN_FILE", help="The file with the token, if the service asks for one."
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="MILLRACE_CA_FILE",
        help="The authorities (PEM) to trust for https, instead of the system's or the config file's certificate.",
    ),
]
ClientCertificate = Annotated[
    Path | None,
    typer.Option(
        "--client-certificate",
        envvar="MILLRACE_CLIENT_CERTIFICATE",
        help="Your certificate (PEM), if the service asks for one.",
    ),
]
ClientKey = Annotated[
    Path | None,
    typer.Option("--client-key", envvar="MILLRACE_CLIENT_KEY", help="The private key (PEM) of your certificate."),
]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


def loaded(file: Path | None) -> Loaded:
    """Load the config file that -c names, or that of the current folder; print what is probably a mistake in it."""
    found = load(config_file(file))
    for warning in found.warnings:
        note(f"warning: {warning}")
    return found


def token_of(token_file: Path | None) -> str | None:
    """Return the token in a file, with a warning where others can read it too; None without a file."""
    token = token_in(token_file)
    if token_file is not None and (complaint := exposure(token_file)) is not None:
        note(f"warning: --token-file: {complaint}")
    return token


def service(file: Path | None, url: str | None, token_file: Path | None, files: TlsFiles) -> Remote:
    """Return the client of the service that the options name. ConfigError where they name none, or two."""
    token = token_of(token_file)
    if url is not None and file is None:
        return Remote(url, token, context=files.context() if url.startswith("https:") else None)
    if url is not None or (file is None and default_config() is None):
        here = "" if url is not None else "; there is no millrace.yaml in this folder"
        raise ConfigError(f"which service? Name it either by --config FILE or by --url http://host:8080{here}")
    return local_service(loaded(file).settings, token, files)


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
