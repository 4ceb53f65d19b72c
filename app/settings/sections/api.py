"""`api`: where the HTTP side listens, and who may send commands."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from app.settings.section import ConfigPath, Section, SettingError

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


class ApiSettings(Section):
    """The HTTP side of the service."""

    listen: Listen = Field("127.0.0.1:8080", description="Address and port that answer. Port 0 takes any that is free.")
    tokens_dir: ConfigPath | None = Field(
        None,
        description="Folder of bearer tokens: one file for each token, named after the person or program that sends "
        "commands with it. Null: commands are accepted only from this machine.",
        examples=["/run/secrets/millrace"],
    )
    probes: Listen | None = Field(
        None,
        description="Address and port of a separate listener for /livez and /readyz, so that a flood of requests to "
        "the main one does not delay probes. The main one answers both too.",
        examples=["0.0.0.0:8081"],
    )

    @model_validator(mode="after")
    def _apart(self) -> "ApiSettings":
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
