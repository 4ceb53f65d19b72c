"""The options that name a running service, which several verbs share: config file or address, token, TLS files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from millrace.app.cli.config_file import default_config
from millrace.app.cli.notes import note
from millrace.app.cli.options import loaded
from millrace.app.settings import Settings
from millrace.app.settings.file_access import exposure
from millrace.app.tools.service_client import Remote, TlsFiles, local_service, token_in
from millrace.consumers.errors import ConfigError


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
        """Return the client of the service. ConfigError where the options name none, or two."""
        token = self.token()
        if self.url is not None and self.file is None:
            return Remote(self.url, token, context=self.tls.context() if self.url.startswith("https:") else None)
        if self.url is not None or (self.file is None and default_config() is None):
            here = "" if self.url is not None else "; there is no millrace.yaml in this folder"
            raise ConfigError(f"which service? Name it either by --config FILE or by --url http://host:8080{here}")
        return local_service(self.settings(), token, self.tls)
