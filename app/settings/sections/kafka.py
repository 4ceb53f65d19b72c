"""`kafka`: where the records come from, and how to get in. Kafka's own names where Kafka has one."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from millrace.app.settings.sections.oauth import KafkaOAuthSettings
from millrace.consumers.kafka.positions import Start as StartPosition
from millrace.consumers.kafka.positions import parse_start
from millrace.consumers.section import ConfigPath, Count, Section, SettingError
from millrace.consumers.units import Duration, Size

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/@,]+):(\d{1,5})")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NEEDED: Mapping[str, tuple[str, ...]] = {"OAUTHBEARER": ("oauth",), "AWS_MSK_IAM": ("aws_region",), "GSSAPI": ()}
"""What a mechanism needs instead of a user and a password."""
_LOGINS = ("sasl_username", "sasl_password_file", "oauth", "aws_region")
_START_WAYS = "write earliest, latest, committed, an age as in -7d, a time as in 2026-11-21T03:00:00Z, or offsets"


def _server(text: str) -> str:
    match = _SERVER.fullmatch(text)
    if match is None or not 0 < int(match[2]) < 65536:
        shown = "the text (it holds an @)" if "@" in text else repr(text)
        raise ValueError(f"{shown} is not a server; write host:port, as in localhost:9092")
    try:
        match[1].encode("idna")  # as a look-up of the name does
    except UnicodeError as error:
        raise ValueError(
            f"{match[1]!r} can be no host's name ({error}); write host:port, as in localhost:9092"
        ) from None
    return text


def _topic(text: str) -> str:
    if not _TOPIC.fullmatch(text) or text in {".", ".."}:
        raise ValueError(f"{text!r} is not a topic's name; Kafka allows letters, digits, dot, dash and underscore")
    return text


def _start(value: object) -> object:
    if not isinstance(value, str | dict):
        raise ValueError(f"{value!r} is not a place to start from: {_START_WAYS}")  # noqa: TRY004 - pydantic collects it
    parse_start(value)
    return value


def _weight(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{value} is no weight; write a number above 0")  # noqa: TRY004 - pydantic collects it
    return value


Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI"]
Server = Annotated[str, AfterValidator(_server)]
Topic = Annotated[str, AfterValidator(_topic)]
Weight = Annotated[float, BeforeValidator(_weight), Field(gt=0, le=1e6)]
Start = Annotated[
    str | dict[str, int],
    BeforeValidator(_start),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "examples": ["earliest", "latest", "committed", "-7d", "2026-11-21T00:00:00Z"]},
                {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
            ]
        }
    ),
]


class KafkaSettings(Section):
    """Where the records come from."""

    bootstrap_servers: tuple[Server, ...] = Field(
        min_length=1, description="Brokers to ask first, host:port each.", examples=[["localhost:9092"]]
    )
    topics: Annotated[
        tuple[Topic, ...],
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}},
                ]
            }
        ),
    ] = Field(
        min_length=1,
        description="Topics to learn from; with weights as {clicks: 3, refunds: 1}.",
        examples=[["clicks"]],
    )
    weights: Mapping[Topic, Weight] = Field(
        {},
        description="The weight of each topic while rows of several topics wait: with {clicks: 3, refunds: 1}, three "
        "rows of clicks come for each row of refunds. The weights may stand at topics instead. Every "
        "record is learnt, and the trainer waits for no topic for long. Empty: rows come in the order of "
        "their arrival.",
        examples=[{"clicks": 3, "refunds": 1}],
    )
    start: Start = Field(
        "earliest",
        description="The position at which the very first start begins: earliest, latest, committed (the group's "
        "offsets), an age (-7d), a time with its zone (2026-11-21T00:00:00Z), or offsets by partition "
        "({clicks:0: 123}). With an archive, the earliest record is the archive's. Later starts resume "
        "from the newest checkpoint.",
    )
    out_of_range: Literal["fail", "earliest"] = Field(
        "fail",
        description="When Kafka has removed the records that come next, and no archive has them: fail, or continue "
        "with the earliest record that is left and count the gap as lost.",
    )
    on_recreated: Literal["fail", "earliest"] = Field(
        "fail",
        description="When a topic was deleted and created again under the same name: fail, or close the history of its "
        "partitions and start a new one at their first records.",
    )
    group: str = Field(
        "",
        min_length=1,
        max_length=255,
        description="Group id under which offsets are committed, so that lag tools can see them. The service "
        "does not join "
        "the group.",
        json_schema_extra={"default": "millrace-<name>"},
    )
    isolation_level: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed", description="Whether records of unfinished and aborted transactions are learnt."
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="The protocol of the connection to the brokers."
    )
    sasl_mechanism: Mechanism | None = Field(
        None,
        description="The mechanism of the login; needed with SASL_PLAINTEXT and SASL_SSL. AWS_MSK_IAM needs "
        "the extra `msk` (docs/install.md), GSSAPI (Kerberos) the extra `kerberos`.",
    )
    sasl_username: str | None = Field(None, min_length=1, description="The user of the login.")
    sasl_password_file: ConfigPath | None = Field(
        None, description="File that holds the password; a line break at its end is left out."
    )
    oauth: KafkaOAuthSettings | None = Field(
        None, description="Where the tokens of sasl_mechanism OAUTHBEARER come from."
    )
    aws_region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")] | None = Field(
        None, description="The region of the brokers, with sasl_mechanism AWS_MSK_IAM.", examples=["eu-central-1"]
    )
    sasl_kerberos_service_name: str = Field(
        "kafka", min_length=1, description="The name of the brokers' service, with sasl_mechanism GSSAPI."
    )
    ssl_ca_file: ConfigPath | None = Field(
        None, description="Certificates (PEM) to trust instead of the system's, with SSL and SASL_SSL."
    )
    ssl_certificate_file: ConfigPath | None = Field(
        None, description="Our certificate (PEM), if the brokers ask for one."
    )
    ssl_key_file: ConfigPath | None = Field(None, description="Our certificate's private key (PEM).")
    ssl_key_password_file: ConfigPath | None = Field(
        None, description="File that holds the private key's password, if the key is encrypted."
    )
    ssl_check_hostname: bool = Field(
        default=True, description="Whether the broker's certificate must bear its host's name."
    )
    fetch_bytes: Size = Field(
        2**20,
        ge=1024,
        le=2**31 - 1,
        description="The most bytes that one fetch asks of one partition. A larger value is a little faster and keeps "
        "the consumer's loop busy for longer.",
    )
    chunk_records: Count = Field(
        4096, ge=1, le=1_000_000, description="The most records of one partition that are passed on together."
    )
    metadata_max_age: Duration = Field(
        5.0, ge=1, le=86400, description="How often to look for new partitions; they are read from their beginning."
    )

    @model_validator(mode="before")
    @classmethod
    def _topics_with_weights(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("topics"), dict):
            if values.get("weights"):
                raise SettingError("weights", "the topics have weights already; write them once")
            return {**values, "topics": list(values["topics"]), "weights": values["topics"]}
        return values

    @model_validator(mode="after")
    def _weights_of_all(self) -> Self:
        if self.weights and self.weights.keys() != set(self.topics):
            apart = min(self.weights.keys() ^ set(self.topics))
            raise SettingError("weights", f"{apart} is here or in topics, and not in both; give each topic a weight")
        return self

    @model_validator(mode="after")
    def _topics_once(self) -> Self:
        if len(set(self.topics)) < len(self.topics):
            raise SettingError("topics", "a topic stands here twice; name each once")
        return self

    @model_validator(mode="after")
    def _log_in(self) -> Self:
        if not self.security_protocol.startswith("SASL_"):
            for key in ("sasl_mechanism", *_LOGINS):
                if getattr(self, key) is not None:
                    raise SettingError(
                        key, f"this has no effect with security_protocol {self.security_protocol}; write SASL_SSL"
                    )
            return self
        if self.sasl_mechanism is None:
            raise SettingError("security_protocol", f"{self.security_protocol} also needs kafka.sasl_mechanism")
        needed = _NEEDED.get(self.sasl_mechanism, ("sasl_username", "sasl_password_file"))
        for key in needed:
            if getattr(self, key) is None:
                raise SettingError("security_protocol", f"{self.security_protocol} also needs kafka.{key}")
        for key in _LOGINS:
            if key not in needed and getattr(self, key) is not None:
                raise SettingError(key, f"this has no effect with sasl_mechanism {self.sasl_mechanism}; leave it out")
        return self

    @model_validator(mode="after")
    def _encryption(self) -> Self:
        files = ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file", "ssl_key_password_file")
        given = [key for key in files if getattr(self, key) is not None]
        if given and not self.security_protocol.endswith("SSL"):
            raise SettingError(
                given[0], f"this has no effect with security_protocol {self.security_protocol}; write SSL or SASL_SSL"
            )
        if (self.ssl_certificate_file is None) != (self.ssl_key_file is None):
            missing = "ssl_key_file" if self.ssl_key_file is None else "ssl_certificate_file"
            raise SettingError(given[-1], f"a certificate and its key go together; write kafka.{missing} too")
        return self

    @property
    def start_position(self) -> StartPosition:
        """The parsed value of `start`."""
        return parse_start(self.start)


def derived_group(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in the group's name where the settings leave it to be derived."""
    kafka, name = values.get("kafka"), values.get("name")
    if isinstance(kafka, dict) and kafka.get("group") is None and isinstance(name, str):
        return {**values, "kafka": {**kafka, "group": f"millrace-{name}"}}
    return values
