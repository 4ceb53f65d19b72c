"""`api`: where the HTTP side listens, and who may read and send commands."""

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from millrace.consumers.section import ConfigPath, Section, SettingError

_LISTEN = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})", re.ASCII)


def _listen(value: object) -> object:
    match = _LISTEN.fullmatch(str(value))
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{value!r} is not an address; write host:port, as in 127.0.0.1:8080")
    return value


def host_and_port(listen: str) -> tuple[str, int]:
    """Split an address to listen on; an IPv6 host loses its brackets."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


Listen = Annotated[str, BeforeValidator(_listen)]


class TlsSettings(Section):
    """TLS on the main listener."""

    certificate: ConfigPath = Field(
        description="The service's certificate (PEM), with the intermediate ones behind it. It is read again within a "
        "minute after it, the key or client_ca has changed.",
        examples=["/run/secrets/tls/tls.crt"],
    )
    key: ConfigPath = Field(
        description="The private key (PEM) of the certificate.", examples=["/run/secrets/tls/tls.key"]
    )
    key_password_file: ConfigPath | None = Field(
        None, description="File that holds the private key's password, if the key is encrypted."
    )
    client_ca: ConfigPath | None = Field(
        None,
        description="Certificates (PEM) of the authorities by which clients identify themselves (mutual TLS). Null: "
        "clients are not asked for a certificate.",
        examples=["/run/secrets/tls/ca.crt"],
    )
    client_certificate: Literal["required", "optional"] = Field(
        "required",
        description="With client_ca: a client without a certificate is refused (required), or let in while clients are "
        "given theirs (optional). A client with a wrong certificate is always refused.",
    )

    @model_validator(mode="after")
    def _asks_clients(self) -> Self:
        if self.client_ca is None and self.client_certificate == "optional":
            raise SettingError("client_certificate", "this has no effect without api.tls.client_ca; write that too")
        return self


class ApiSettings(Section):
    """The HTTP side of the service."""

    listen: Listen = Field(
        "127.0.0.1:8080", description="Address and port of the HTTP listener. Port 0 takes any free port."
    )
    tokens_dir: ConfigPath | None = Field(
        None,
        description="Folder of bearer tokens: one file for each token, named after the person or program that sends "
        "commands with it. Null: commands are accepted only from this machine.",
        examples=["/run/secrets/millrace"],
    )
    read_tokens_dir: ConfigPath | None = Field(
        None,
        description="Folder of bearer tokens that may read but send no commands, laid out as tokens_dir. With it, "
        "reads need a token of either folder; probes and the page's own files need none. Null: every "
        "client that reaches the address may read.",
        examples=["/run/secrets/millrace-readers"],
    )
    read_values: bool = Field(
        default=False,
        description="Whether who may read also sees values of texts, as the most frequent countries in /data. Without "
        "it /data has their shares alone.",
    )
    tls: TlsSettings | None = Field(
        None,
        description="TLS on `listen`; the separate listener for probes has none. Null: plain HTTP.",
        examples=[{"certificate": "/run/secrets/tls/tls.crt", "key": "/run/secrets/tls/tls.key"}],
    )
    probes: Listen | None = Field(
        None,
        description="Address and port of a separate listener for /livez and /readyz, so that a flood of requests to "
        "the main one does not delay probes. It speaks plain HTTP. The main listener answers both too.",
        examples=["0.0.0.0:8081"],
    )

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.probes == self.listen and self.port != 0:
            raise SettingError("probes", f"{self.probes} is api.listen too; write another port, or leave it out")
        return self

    @property
    def host(self) -> str:
        """The address of `listen`, without the brackets of IPv6."""
        return host_and_port(self.listen)[0]

    @property
    def port(self) -> int:
        """The port of `listen`."""
        return host_and_port(self.listen)[1]

    @property
    def scheme(self) -> Literal["http", "https"]:
        """What the main listener speaks."""
        return "http" if self.tls is None else "https"
