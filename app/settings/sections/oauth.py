"""`oauth`: where the tokens of a login come from, at Kafka and at a schema registry; `to_tokens` reads the secrets."""

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from millrace.app.settings.certificates import client_context
from millrace.app.settings.secret_files import read_secret
from millrace.consumers.bearer_tokens import Endpoint, TokenSource, from_command, from_endpoint, from_file
from millrace.consumers.section import ConfigPath, Section, SettingError

_ENDPOINT = re.compile(r"https?://[^/?#@\s]+(/[^#\s]*)?")
_EXTENSION = re.compile(r"[A-Za-z]+")
_WAYS = ("token_endpoint", "token_file", "token_command")


def _endpoint(value: str) -> str:
    if not _ENDPOINT.fullmatch(value):
        shown = "the text (it holds an @)" if "@" in value else repr(value)
        raise ValueError(f"{shown} is no URL of an endpoint; write it as in https://login.example/oauth2/token")
    return value


def _extension(name: str) -> str:
    if not _EXTENSION.fullmatch(name) or name.lower() == "auth":
        raise ValueError(f"{name!r} is no extension's name; Kafka allows letters alone, and not auth")
    return name


def _plain(value: str) -> str:
    if not value.isprintable() or not value.isascii():
        raise ValueError("this holds a character that cannot be sent; write printable ASCII alone")
    return value


ExtensionName = Annotated[str, AfterValidator(_extension)]
PlainText = Annotated[str, AfterValidator(_plain)]


class OAuthSettings(Section):
    """Where tokens come from: an OpenID provider's endpoint, a file that is replaced, or a command."""

    token_endpoint: Annotated[str, AfterValidator(_endpoint)] | None = Field(
        None,
        description="The token endpoint of an OpenID provider. A token is asked for by client credentials, kept while "
        "it is valid, and renewed before it ends.",
        examples=["https://login.example/oauth2/token"],
    )
    client_id: str | None = Field(None, min_length=1, description="Our name at the token endpoint.")
    client_secret_file: ConfigPath | None = Field(
        None, description="File that holds the client's secret. It is read at each request."
    )
    client_assertion_file: ConfigPath | None = Field(
        None,
        description="File that holds a token which stands for the client's secret, as that of a workload identity. It "
        "is read at each request.",
    )
    scope: str | None = Field(None, min_length=1, description="The scope to ask for, if the endpoint needs one.")
    parameters: dict[str, str] = Field(
        {},
        description="What else the endpoint needs in the request. No secret.",
        examples=[{"audience": "kafka"}],
    )
    ca_file: ConfigPath | None = Field(
        None, description="Certificates (PEM) to trust instead of the system's, at an endpoint with https."
    )
    token_file: ConfigPath | None = Field(
        None, description="File that holds the token, instead of an endpoint. It is read again at each login."
    )
    token_command: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Command that prints the token, instead of an endpoint: the program and its arguments. No shell.",
        examples=[["print-token", "--audience", "kafka"]],
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [name for name in _WAYS if getattr(self, name) is not None]
        if len(ways) != 1:
            if not ways:
                raise ValueError(f"write one of {', '.join(_WAYS)}")
            raise SettingError(ways[-1], f"{ways[0]} is there already; write one of the two")
        of_endpoint = ("client_id", "client_secret_file", "client_assertion_file", "scope", "parameters", "ca_file")
        if self.token_endpoint is None:
            if given := [name for name in of_endpoint if getattr(self, name)]:
                raise SettingError(given[0], f"this has no effect with {ways[0]}; leave it out")
            return self
        if self.client_id is None:
            raise SettingError("token_endpoint", "an endpoint needs our name there; write client_id too")
        if (self.client_secret_file is None) == (self.client_assertion_file is None):
            if self.client_secret_file is None:
                raise SettingError("token_endpoint", "an endpoint needs a secret of ours; write client_secret_file too")
            raise SettingError("client_assertion_file", "client_secret_file is there already; write one of the two")
        if self.ca_file is not None and not self.token_endpoint.startswith("https:"):
            raise SettingError("ca_file", "this has no effect with http; write https in token_endpoint")
        return self


class KafkaOAuthSettings(OAuthSettings):
    """Where the tokens for Kafka come from, and what is sent beside them."""

    extensions: dict[ExtensionName, PlainText] = Field(
        {},
        description="What is sent to the brokers beside the token (SASL extensions). No secret.",
        examples=[{"logicalCluster": "lkc-123", "identityPoolId": "pool-123"}],
    )


def to_tokens(oauth: OAuthSettings, place: str) -> TokenSource:
    """Return the source of the tokens, the same for all that ask for the same.

    `place` is where the settings stand. Raises ConfigError if a secret's file cannot be read now.
    """
    for name in ("client_secret_file", "client_assertion_file", "token_file"):
        read_secret(f"{place}.{name}", getattr(oauth, name))
    return _shared(type(oauth), oauth.model_dump_json(exclude={"extensions"}), place)


@lru_cache(maxsize=32)
def _shared(kind: type[OAuthSettings], written: str, place: str) -> TokenSource:
    oauth = kind.model_validate_json(written)
    if oauth.token_file is not None:
        return from_file(reader(f"{place}.token_file", oauth.token_file), f"{place}.token_file")
    if oauth.token_command is not None:
        return from_command(oauth.token_command, f"{place}.token_command")
    secret, assertion = oauth.client_secret_file, oauth.client_assertion_file
    endpoint = Endpoint(
        url=str(oauth.token_endpoint),
        client_id=str(oauth.client_id),
        secret=None if secret is None else reader(f"{place}.client_secret_file", secret),
        assertion=None if assertion is None else reader(f"{place}.client_assertion_file", assertion),
        scope=oauth.scope,
        parameters=oauth.parameters,
        context=client_context(f"{place}.", oauth.ca_file, None, None, None)
        if str(oauth.token_endpoint).startswith("https:")
        else None,
    )
    return from_endpoint(endpoint, place)


def reader(key: str, path: Path) -> Callable[[], str]:
    """Return what reads a secret's file, which may be replaced at any time; it raises ConfigError."""

    def read() -> str:
        secret = read_secret(key, path)
        assert secret is not None, "there is a path"
        return secret.get_secret_value()

    return read
