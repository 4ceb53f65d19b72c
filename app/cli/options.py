"""Options that several verbs share: the loaded config, --json, a checkpoint by its number, a running service."""

import functools
import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, get_type_hints

import typer

from millrace.app.cli.config_file import config_file, default_config
from millrace.app.cli.notes import note
from millrace.app.settings import Loaded, Settings, load
from millrace.app.settings.secret_files import exposure
from millrace.app.tools.service_client import Remote, TlsFiles, local_service, token_in
from millrace.consumers.errors import ConfigError
from millrace.consumers.units import whole_number

_stdout: ContextVar[TextIO | None] = ContextVar("stdout", default=None)
"""Where the JSON goes if a verb was asked for it."""


def _alone(context: typer.Context, as_json: bool) -> bool:
    """Keep stdout for the JSON: whatever else prints, as a model file may, goes to stderr."""
    if as_json:
        context.call_on_close(functools.partial(_stdout.reset, _stdout.set(sys.stdout)))
        context.with_resource(redirect_stdout(sys.stderr))
    return as_json


Json = Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.", callback=_alone)]


def print_json(answer: Any) -> None:
    """Print what a verb with --json answers. A number that is not finite is null, as JSON has no word for it."""
    typer.echo(json.dumps(_finite(answer), indent=2, allow_nan=False), file=_stdout.get())


def _finite(answer: Any) -> Any:
    if isinstance(answer, Mapping):
        return {name: _finite(value) for name, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [_finite(value) for value in answer]
    return None if isinstance(answer, float) and not math.isfinite(answer) else answer


def loaded(file: Path | None) -> Loaded:
    """Load the config file that -c names, or that of the current folder; print what is probably a mistake in it."""
    found = load(config_file(file))
    for warning in found.warnings:
        note(f"warning: {warning}")
    return found


def named_checkpoint(text: str, hint: str) -> int | Literal["latest", "best"]:
    """Parse a checkpoint's number, `latest` or `best`. Other text is a usage error of the option `hint`."""
    if text in {"latest", "best"}:
        return "best" if text == "best" else "latest"
    if (number := whole_number(text)) is None:
        raise typer.BadParameter(f"{text!r} is neither latest nor best nor a checkpoint's number", param_hint=hint)
    return number


def checkpoint_number(text: str, hint: str) -> int | None:
    """Parse a checkpoint's number; None stands for the latest. Other text is a usage error of the option `hint`."""
    if text == "latest":
        return None
    if (number := whole_number(text)) is None:
        raise typer.BadParameter(f"{text!r} is neither latest nor a checkpoint's number", param_hint=hint)
    return number


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """Give the verb one option for each field of its parameters that are dataclasses, in their places.

    A field is annotated as an option is, and its default is the option's.
    """
    parameters = inspect.signature(verb).parameters
    groups: dict[str, Any] = {n: one.annotation for n, one in parameters.items() if is_dataclass(one.annotation)}

    @functools.wraps(verb)
    def with_options(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        verb(**made, **given)

    options = list[inspect.Parameter]()
    for name, parameter in parameters.items():
        if name not in groups:
            options.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            typed = hints[field.name]
            options.append(
                inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=field.default, annotation=typed)
            )
    # typer reads both of them, to find the options of a command.
    with_options.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # mypy knows none
    with_options.__annotations__ = {option.name: option.annotation for option in options}
    return with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Which service a verb speaks to, and how. Each field is an option of a verb."""

    file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="The config file, whose api.listen is the service's address; default: ./millrace.yaml, or "
            "millrace.yml.",
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option("--url", help="The service's address, as in http://host:8080; instead of the config file."),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", envvar="MILLRACE_TOKEN_FILE", help="The file with the token, if the service asks for one."
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        typer.Option(
            "--ca-file",
            envvar="MILLRACE_CA_FILE",
            help="The authorities (PEM) to trust for https, instead of the system's or the config file's certificate.",
        ),
    ] = None
    client_certificate: Annotated[
        Path | None,
        typer.Option(
            "--client-certificate",
            envvar="MILLRACE_CLIENT_CERTIFICATE",
            help="Your certificate (PEM), if the service asks for one.",
        ),
    ] = None
    client_key: Annotated[
        Path | None,
        typer.Option("--client-key", envvar="MILLRACE_CLIENT_KEY", help="The private key (PEM) of your certificate."),
    ] = None

    @property
    def tls(self) -> TlsFiles:
        """The files for TLS."""
        return TlsFiles(ca=self.ca_file, certificate=self.client_certificate, key=self.client_key)

    def settings(self) -> Settings:
        """Return the settings of the config file, which is read now."""
        return loaded(self.file).settings

    def token(self) -> str | None:
        """Return the token in its file, with a warning where others can read it too; None without a file."""
        token = token_in(self.token_file)
        if self.token_file is not None and (complaint := exposure(self.token_file)) is not None:
            note(f"warning: --token-file: {complaint}")
        return token

    def client(self) -> Remote:
        """Return the client of the service. ConfigError if the options name none, or two."""
        token = self.token()
        if self.url is not None and self.file is None:
            return Remote(self.url, token, context=self.tls.context() if self.url.startswith("https:") else None)
        if self.url is not None or (self.file is None and default_config() is None):
            here = "" if self.url is not None else "; there is no millrace.yaml in this folder"
            raise ConfigError(f"which service? Name it either by --config FILE or by --url http://host:8080{here}")
        return local_service(self.settings(), token, self.tls)
