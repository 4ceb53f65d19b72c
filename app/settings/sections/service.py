"""`checkpoints`, `api`, `stop` and `logs`: what is kept, and how the service is seen and ended."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from app.settings.section import ConfigPath, Count, Section, SettingError
from app.settings.units import Duration, format_duration, parse_duration

_STEPS = re.compile(r"\s*([1-9]\d{0,14})\s*steps?\s*", re.ASCII)
_LISTEN = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """How often to save: by time or by steps, exactly one of them."""

    seconds: float | None = None
    steps: int | None = None

    def __str__(self) -> str:
        return format_duration(self.seconds) if self.seconds is not None else f"{self.steps} steps"


def _every(value: object) -> Every:
    if isinstance(value, Every):
        return value
    if isinstance(value, int | float):
        raise ValueError(f"{value} has no unit; write 60s, or 5000 steps")  # noqa: TRY004 - pydantic collects these
    if match := _STEPS.fullmatch(str(value)):
        return Every(steps=int(match[1]))
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; or steps, as in 5000 steps") from None
    if seconds < 1:
        raise ValueError(f"{value!r} is too often; write at least 1s")
    return Every(seconds=seconds)


def _listen(value: object) -> object:
    match = _LISTEN.fullmatch(str(value))
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{value!r} is not an address; write host:port, as in 127.0.0.1:8080")
    return value


def host_and_port(listen: str) -> tuple[str, int]:
    """Split an address to listen on; an IPv6 host loses its brackets."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


SaveEvery = Annotated[
    Every,
    BeforeValidator(_every),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["60s", "5000 steps"]}),
]
Listen = Annotated[str, BeforeValidator(_listen)]


class KeepSettings(Section):
    """Which checkpoints stay."""

    last: Count = Field(5, ge=1, description="How many of the newest are kept.")
    hourly: Count = Field(0, ge=0, description="For how many hours one checkpoint an hour is kept beyond them.")


class CheckpointSettings(Section):
    """Where checkpoints are kept, which a restart resumes from."""

    path: ConfigPath = Field(
        description="Folder for checkpoints, one folder per name below it.", examples=["./checkpoints"]
    )
    every: SaveEvery = Field(
        Every(seconds=60.0), description="How often to save: a time (60s) or a number of steps (5000 steps)."
    )
    keep: KeepSettings = Field(KeepSettings(), description="Which checkpoints stay; the newest always does.")


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
        description="Address and port of a separate listener for /livez and /readyz, so that a flood of "
        "requests to the "
        "main one does not delay probes. The main one answers both too.",
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


class StopSettings(Section):
    """How the service ends."""

    grace: Duration = Field(
        25.0,
        ge=1,
        description="The longest time from SIGTERM to the end: finish the call, save, commit. Set it shorter than the "
        "time that the sender of the SIGTERM waits.",
    )


class LimitSettings(Section):
    """How long the trainer may take for one thing before it counts as hung and /livez fails."""

    trace: Duration = Field(900.0, ge=1, description="Building the model, tracing and proving it.")
    restore: Duration = Field(600.0, ge=1, description="Loading a checkpoint, at a start or for a rewind.")
    call: Duration = Field(300.0, ge=1, description="One call, or preparing the records for it.")


class LogSettings(Section):
    """What the service logs on stderr."""

    format: Literal["auto", "text", "json"] = Field(
        "auto", description="text for people, json for machines; auto is text on a terminal and json elsewhere."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level that is logged; commands are always logged."
    )
