"""`records.registry` and `labels.registry`: a schema registry, and how to get in; `to_registry` reads the secrets."""

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from millrace.app.settings.certificates import client_context
from millrace.app.settings.secret_files import names_secret
from millrace.app.settings.sections.http_url import url_of
from millrace.app.settings.sections.oauth import OAuthSettings, PlainText, reader, to_tokens
from millrace.consumers.bearer_tokens import TokenSource, from_file
from millrace.consumers.section import ConfigPath, Section, SettingError

if TYPE_CHECKING:
    from millrace.pipelines.registry.schemas import RegistrySchemas

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS = {"accept", "authorization", "connection", "content-length", "cookie", "host", "transfer-encoding"}
_url = url_of("registry", "http://registry:8081", "write username and password_file")


def _several(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _header(name: str) -> str:
    if not _HEADER.fullmatch(name):
        raise ValueError(f"{name!r} is no header's name")
    if name.lower() in _OURS or names_secret(name):
        raise ValueError(f"{name!r} is not set here; a login goes into username, token_file or oauth")
    return name


HeaderName = Annotated[str, AfterValidator(_header)]
RegistryUrl = Annotated[str, AfterValidator(_url)]


class RegistrySettings(Section):
    """The schema registry, by Confluent's API."""

    place: ClassVar[str] = "records.registry"
    """Where it stands in the config."""

    url: Annotated[tuple[RegistryUrl, ...], BeforeValidator(_several)] = Field(
        min_length=1,
        description="The registry's URL, with its path; or several URLs of the same registry: the first that answers "
        "is used.",
        examples=[["http://registry:8081"]],
    )
    username: str | None = Field(None, min_length=1, description="The user of the login (basic authentication).")
    password_file: ConfigPath | None = Field(None, description="File that holds the user's password.")
    token_file: ConfigPath | None = Field(
        None, description="File that holds a bearer token, instead of a user. It is read again at each request."
    )
    oauth: OAuthSettings | None = Field(None, description="Where bearer tokens come from, instead of a user.")
    headers: dict[HeaderName, PlainText] = Field(
        {},
        description="What else is sent with each request, as some registries need. No secret.",
        examples=[{"target-sr-cluster": "lsrc-123", "Confluent-Identity-Pool-Id": "pool-123"}],
    )
    ca_file: ConfigPath | None = Field(
        None, description="Certificates (PEM) to trust instead of the system's, with https."
    )
    certificate_file: ConfigPath | None = Field(
        None, description="Our certificate (PEM), if the registry asks for one."
    )
    key_file: ConfigPath | None = Field(None, description="Our certificate's private key (PEM).")
    key_password_file: ConfigPath | None = Field(
        None, description="File that holds the private key's password, if the key is encrypted."
    )
    cache: ConfigPath | None = Field(
        None,
        description="Folder that keeps schemas, so that a restart needs no registry for those that it knows. Null: "
        "the folder schemas beside the checkpoints, `<checkpoints.path>/<name>/schemas`, or schemas-of-labels there.",
        examples=["./schemas"],
    )
    on_incompatible: Literal["pause", "set_aside"] = Field(
        "pause",
        description="How to treat records whose schema lacks a field, or has it with a type that does not fit the "
        "dtype. pause: the learning pauses before any of them is set aside, until the config is changed or "
        "`millrace resume` sets them aside. set_aside: they are set aside, as missing or wrong_type.",
    )

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if (self.username is None) != (self.password_file is None):
            missing = "username" if self.username is None else "password_file"
            raise SettingError("url", f"a user and a password go together; write {self.place}.{missing} too")
        ways = [name for name in ("username", "token_file", "oauth") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise SettingError(ways[1], f"{ways[0]} is there already; write one of the two")
        return self

    @model_validator(mode="after")
    def _encryption(self) -> Self:
        files = ("ca_file", "certificate_file", "key_file", "key_password_file")
        given = [key for key in files if getattr(self, key) is not None]
        if given and not any(url.startswith("https:") for url in self.url):
            raise SettingError(given[0], f"this has no effect with http; write https in {self.place}.url")
        if (self.certificate_file is None) != (self.key_file is None):
            missing = "key_file" if self.key_file is None else "certificate_file"
            raise SettingError(given[-1], f"a certificate needs its key; write {self.place}.{missing} too")
        return self


class LabelRegistrySettings(RegistrySettings):
    """The schema registry of the records of labels."""

    place: ClassVar[str] = "labels.registry"


def to_registry(registry: RegistrySettings, wait_s: float) -> "RegistrySchemas":
    """Return the schemas of the registry; `wait_s`: how long one that is not known yet is waited for."""
    from millrace.pipelines.registry.schemas import RegistryOptions, RegistrySchemas  # noqa: PLC0415 - few need it

    context = None
    if any(url.startswith("https:") for url in registry.url):
        context = client_context(
            f"{registry.place}.",
            registry.ca_file,
            registry.certificate_file,
            registry.key_file,
            registry.key_password_file,
        )
    options = RegistryOptions(
        urls=registry.url,
        authorization=_authorization(registry),
        headers=registry.headers,
        context=context,
        cache=cache_of(registry),
        setting=registry.place,
    )
    return RegistrySchemas(options, wait_s=wait_s)


def cache_of(registry: RegistrySettings) -> Path | None:
    """Return the folder that keeps schemas; None where what it would be in is not there."""
    # A command that only looks, as `millrace validate`, makes no folder for a trainer that has never run.
    return registry.cache if registry.cache is not None and registry.cache.parent.is_dir() else None


def derived_cache(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in the folders that keep schemas where the settings leave them to be derived."""
    checkpoints, name = values.get("checkpoints"), values.get("name")
    path = checkpoints.get("path") if isinstance(checkpoints, dict) else None
    if not path or not isinstance(path, str) or not isinstance(name, str):
        return values
    # One each, as a number says another schema in another registry.
    for section, folder in (("records", "schemas"), ("labels", "schemas-of-labels")):
        readers = values.get(section)
        registry = readers.get("registry") if isinstance(readers, dict) else None
        if isinstance(readers, dict) and isinstance(registry, dict) and registry.get("cache") is None:
            kept = {**registry, "cache": f"{path}/{name}/{folder}"}
            values = {**values, section: {**readers, "registry": kept}}
    return values


def _authorization(registry: RegistrySettings) -> Callable[[], str] | None:
    """Return what gives the header of that name; secrets are read again each time, and now, for what is missing."""
    place = registry.place
    if registry.password_file is not None:
        read = reader(f"{place}.password_file", registry.password_file)
        read()
        return lambda: f"Basic {base64.b64encode(f'{registry.username}:{read()}'.encode()).decode()}"
    tokens: TokenSource | None = None
    if registry.token_file is not None:
        read_token = reader(f"{place}.token_file", registry.token_file)
        read_token()
        tokens = from_file(read_token, f"{place}.token_file")
    elif registry.oauth is not None:
        tokens = to_tokens(registry.oauth, f"{place}.oauth")
    return None if tokens is None else lambda: f"Bearer {tokens.token().text}"
