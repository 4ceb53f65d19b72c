"""How a command finds what it is about.

The service by the config file, which tells where it answers, or by its address; a checkpoint by its number, or as the
latest.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.tools.service_client import Remote

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The config file, whose api.listen says where the service answers."),
]
Url = Annotated[
    str | None, typer.Option("--url", help="Where the service answers, as in http://host:8080; instead of the file.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", envvar="MILLRACE_TOKEN_FILE", help="The file with the token, where the service asks for one."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


def service(file: Path | None, url: str | None, token_file: Path | None = None) -> "Remote":
    """The service that is meant. ConfigError where that is not clear."""
    from app.settings import load
    from app.tools.service_client import Remote, token_in, url_of
    from consumers.errors import ConfigError

    token = token_in(token_file)
    if url is not None and file is None:
        return Remote(url, token)
    if file is None or url is not None:
        raise ConfigError("which service? Name it either by --config FILE or by --url http://host:8080")
    settings = load(file).settings
    return Remote(url_of(settings), token, name=settings.name)


def checkpoint_number(text: str, hint: str) -> int | None:
    """Which checkpoint is meant; None for the latest. A usage error at `hint` where it is neither."""
    if text == "latest":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"{text!r} is neither latest nor a checkpoint's number", param_hint=hint)
    return int(text)
