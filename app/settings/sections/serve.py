"""`serve`: which exports `millrace serve` answers from, where it listens, and how much it takes on."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema, model_validator

from millrace.app.settings.sections.api import Listen, host_and_port
from millrace.app.settings.sections.kafka import Topic
from millrace.consumers.section import ConfigPath, Count, Section, SettingError, from_folder, not_empty
from millrace.consumers.units import Duration, Share, Size

_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?", re.ASCII)
LATEST = "latest"


def _exports(text: str, info: ValidationInfo) -> str:
    """Keep a URL, and resolve a path against the config file's folder."""
    if "://" not in text:
        return str(from_folder(Path(text), info))
    if not _URL.fullmatch(text):
        raise ValueError(f"{text!r} is no address of a trainer; write http://host:8080, or the path of a folder")
    return text.rstrip("/")


def _version(value: object) -> object:
    if value == LATEST or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    raise ValueError(f"{value!r} is no version; write {LATEST}, or the number of an export")


Exports = Annotated[str, BeforeValidator(not_empty), AfterValidator(_exports)]
Version = Annotated[
    int | Literal["latest"],
    BeforeValidator(_version),
    WithJsonSchema({"anyOf": [{"const": LATEST}, {"type": "integer", "minimum": 0}]}),
]


class BatchSettings(Section):
    """How requests that come at the same time are answered together."""

    rows: Count = Field(
        256,
        ge=1,
        le=65536,
        description="The most rows of a call of the model. A larger request is a call of its own.",
    )
    wait: Duration = Field(
        0.002,
        ge=0,
        le=1,
        description="How long the first request of a batch waits for others to join it. 0ms: it does not wait; "
        "requests that come while a call runs are still answered together.",
    )
    queue: Count = Field(
        256,
        ge=1,
        le=65536,
        description="The most requests in progress at once; a further request gets 503 with Retry-After.",
    )


def _memory(value: object) -> object:
    """Take the one word that says how, too."""
    return {"how": value} if isinstance(value, str) else value


class ServeMemorySettings(Section):
    """What the server itself knows of each key, for a model with windows."""

    how: Literal["follow"] | None = Field(
        None,
        description="follow: the server holds the last records of each key, which the export carries, and reads the "
        "topic from there on; a request brings the newest record of a key, and the sequence is made as in training. "
        "Null: sequences come in the request. `serve.memory: follow` says the same.",
    )
    max_lag: Duration | None = Field(
        300.0,
        gt=0,
        description="By how much the memory may be older than the topic before /readyz fails. Null: it never fails "
        "for that.",
    )

    partitions: Annotated[tuple[Count, ...], Field(min_length=1)] | None = Field(
        None,
        description="The numbers of the partitions whose keys this server holds, where several servers share the keys "
        "and callers ask the one that has theirs. Null: all of them.",
        examples=[[0, 1, 2, 3]],
    )

    @property
    def follows(self) -> bool:
        """Whether the server reads the topic."""
        return self.how is not None


class ServeLogSettings(Section):
    """Predictions as records of a topic."""

    topic: Topic | None = Field(
        None,
        description="A share of the predictions becomes records of this topic, which has to exist: with the key, the "
        "version, its positions, the prediction and the time. The trainer reads them back, and scores each by the "
        "label with which its row is learnt. Null: nothing is logged.",
        examples=["cards-served"],
    )
    share: Share = Field(
        0.05,
        gt=0,
        le=1,
        description="The share of the rows that is logged, chosen by their features.",
    )


class ServeSettings(Section):
    """The server that answers requests with exports of the model: `millrace serve`."""

    exports: Exports | None = Field(
        None,
        description="Where the exports are: the folder that holds the numbered versions, or the address of the "
        "trainer's HTTP side (http://trainer:8080), from which they are fetched. Null: export.path and the name.",
        examples=["/mnt/exports/clicks", "http://trainer:8080"],
    )
    version: Version = Field(
        "latest",
        description="The version that answers: latest, or its number.",
    )
    loaded: Count = Field(
        1,
        ge=1,
        le=10,
        description="The number of versions that are loaded at once: the one that answers, and the newest others, "
        "which a request can ask for by number.",
    )
    poll: Duration = Field(5.0, ge=0.1, description="How often to look for a new version.")
    path: ConfigPath | None = Field(
        None,
        description="The server's own folder, one folder per name below it, for versions that were fetched over HTTP. "
        "Null: `serve` in the config file's folder.",
        examples=["/var/lib/millrace/serve"],
    )
    token_file: ConfigPath | None = Field(
        None,
        description="With an address as `exports`: file that holds the token to read them with, if the trainer asks "
        "for one.",
        examples=["/run/secrets/millrace-readers/serve"],
    )
    ca_file: ConfigPath | None = Field(
        None,
        description="With an https address as `exports`: certificates (PEM) of the authorities to trust, instead of "
        "the system's.",
    )
    listen: Listen = Field(
        "127.0.0.1:8501",
        description="Address and port of the HTTP listener. Port 0 takes any free port. Tokens and TLS are those of "
        "`api`.",
    )
    probes: Listen | None = Field(
        None,
        description="Address and port of a separate listener for /livez and /readyz, in plain HTTP. The main listener "
        "answers both too.",
        examples=["0.0.0.0:8502"],
    )
    batch: BatchSettings = Field(
        BatchSettings(), description="How requests are answered together, in one call of the model."
    )
    memory: Annotated[
        ServeMemorySettings, BeforeValidator(_memory, json_schema_input_type=ServeMemorySettings | Literal["follow"])
    ] = Field(ServeMemorySettings(), description="What the server itself knows of each key, for a model with windows.")
    log: ServeLogSettings = Field(ServeLogSettings(), description="Predictions as records of a topic.")
    max_body: Size = Field(4 << 20, ge=1024, le=1 << 30, description="The largest body of a request.")
    timeout: Duration = Field(
        30.0, ge=0.1, description="How long a request may wait for the model; then it gets 504, as in TF Serving."
    )
    drain: Duration = Field(
        3.0,
        ge=0,
        description="How long the server goes on answering after SIGTERM, while /readyz fails and every answer closes "
        "its connection, so that clients go elsewhere.",
    )

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.probes == self.listen and host_and_port(self.listen)[1] != 0:
            raise SettingError("probes", f"{self.probes} is serve.listen too; write another port, or leave it out")
        for name in ("token_file", "ca_file"):
            if getattr(self, name) is not None and not self.over_http:
                raise SettingError(name, "this has no effect unless serve.exports is the address of a trainer")
        return self

    @property
    def over_http(self) -> bool:
        """Whether the exports are fetched from a trainer."""
        return self.exports is not None and "://" in self.exports
