"""Options that several verbs share: the service, by its config file or its address, and a checkpoint, by its number."""

from pathlib import Path
from typing import Annotated

import typer

from app.settings import load
from app.tools.service_client import Remote, token_in, url_of
from consumers.errors import ConfigError

ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="The config file.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The config file; its api.listen is the service's address."),
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
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


def service(file: Path | None, url: str | None, token_file: Path | None = None) -> Remote:
    """Return the client of the service that the options name. ConfigError where they name none, or two."""
    token = token_in(token_file)
    if url is not None and file is None:
        return Remote(url, token)
    if file is None or url is not None:
        raise ConfigError("which service? Name it either by --config FILE or by --url http://host:8080")
    settings = load(file).settings
    return Remote(url_of(settings), token, name=settings.name)


def checkpoint_number(text: str, hint: str) -> int | None:
    """Parse a checkpoint's number; None stands for the latest. Other text is a usage error of the option `hint`."""
    if text == "latest":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"{text!r} is neither latest nor a checkpoint's number", param_hint=hint)
    return int(text)
