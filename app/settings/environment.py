"""The environment over the file: `MILLRACE_KAFKA__TOPICS=clicks,views` sets `kafka.topics`.

The one place that reads the process's environment. Variables are upper or lower case; lists are comma separated or
JSON, mappings are JSON, `null` unsets. A variable with `__` in its name is meant for us, so an unknown one is an error,
as is one that spells a setting with `_` in place of `__`. Any other is ignored with a warning, except for those that
Kubernetes writes for a service of our name (MILLRACE_PORT). Below mappings whose keys are the user's own (`model.args`)
a value is JSON where it can be.
"""

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource
from pydantic_settings.sources.utils import parse_env_vars

from millrace.app.settings.all_settings import NAME, matches, settings_of
from millrace.app.settings.spelling import DELIMITER, PREFIX, variable
from millrace.app.settings.yaml_file import Key
from millrace.consumers.errors import ConfigError

_NULL = "null"
_TIMES, _SUSPECTS = "MILLRACE_TIMES_BEGUN_AGAIN", "MILLRACE_SUSPECTS"
_LIBRARIES = ("TF_", "KERAS_", "XLA_", "CUDA_", "NVIDIA_", "OMP_", "MKL_", "DNNL_", "ONEDNN_", "OPENBLAS_", "PYTHON")
"""Prefixes of variables that are read by libraries."""
_NATIVE_LEVEL, _ERRORS = "TF_CPP_MIN_LOG_LEVEL", "2"
_BACKEND = "tensorflow"

_READ_ELSEWHERE = frozenset(
    {
        "MILLRACE_CA_FILE",
        "MILLRACE_CLIENT_CERTIFICATE",
        "MILLRACE_CLIENT_KEY",
        "MILLRACE_FAILPOINTS",
        "MILLRACE_MAVEN_REPOSITORY",
        "MILLRACE_SUSPECTS",
        "MILLRACE_TIMES_BEGUN_AGAIN",
        "MILLRACE_TOKEN_FILE",
    }
)
_OF_KUBERNETES = re.compile(
    r"MILLRACE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_OF_THE_TESTS = re.compile(r"MILLRACE_TESTS?_\w+")
_SIMILAR = 0.8


@dataclass(frozen=True, slots=True)
class Strays:
    """Variables without `__` that name no setting."""

    misspelled: Mapping[str, str] = field(default_factory=dict)
    """Those that spell a setting with too few underscores, each with the right name."""
    ignored: Mapping[str, str | None] = field(default_factory=dict)
    """The others, each with the name of a similar setting's variable, or None."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What goes over the file: the environment, and over it a command's options."""

    values: dict[Key, Any] = field(default_factory=dict)
    names: dict[Key, str] = field(default_factory=dict)
    """Who says so for each key: the variable, as it is spelled in the environment, or the option."""
    unknown: dict[Key, str] = field(default_factory=dict)
    """Variables that are meant for us and belong to no section."""
    strays: Strays = field(default_factory=Strays)
    """Variables without `__` that name no setting."""

    def under(self, option: str, key: Key, value: Any) -> "Overrides":
        """Return a copy with one option over it, which replaces the setting that it names and all below."""

        def beside(mapping: dict[Key, Any]) -> dict[Key, Any]:
            return {other: kept for other, kept in mapping.items() if other[: len(key)] != key}

        return replace(self, values={**beside(self.values), key: value}, names={**beside(self.names), key: option})


def read_environment(settings: type[BaseModel], environ: Mapping[str, str] | None = None) -> Overrides:
    """Read the overrides out of `environ`, or out of the process's environment."""
    environ = os.environ if environ is None else environ
    ours = {name: value for name, value in environ.items() if name.upper().startswith(PREFIX)}
    keys: dict[str, Key] = {name: tuple(name[len(PREFIX) :].lower().split(DELIMITER)) for name in ours}
    known = {key: name for name, key in keys.items() if key[0] in settings.model_fields}
    unknown = {key: name for name, key in keys.items() if key not in known and len(key) > 1}
    values = {key: _value(settings, name, key, ours[name]) for key, name in known.items()}
    strays = strays_in(settings, (name for name, key in keys.items() if key not in known and key not in unknown))
    return Overrides(values, _said(known), _said(unknown), strays)


def of_others() -> dict[str, str]:
    """Return the process's environment without our variables, for a child with settings of its own."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)}


def of_libraries() -> dict[str, str]:
    """Return the variables by which TensorFlow, Keras and what they compute with behave otherwise."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_LIBRARIES)}


def with_own(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the process's environment with these variables, in place of any that set the same in another spelling."""
    own = {name.upper() for name in variables}
    return {name: value for name, value in os.environ.items() if name.upper() not in own} | dict(variables)


def times_begun_again() -> int:
    """Return how often in a row this process has replaced itself to meet its group."""
    return int(os.environ.get(_TIMES, "0"))


def suspects_told() -> str:
    """Return what the process whose place this one has taken was told to search, as JSON."""
    return os.environ.get(_SUSPECTS, "[]")


def begun_again(times: int, suspects: str) -> dict[str, str]:
    """Return the environment of the process that takes this one's place."""
    return {**os.environ, _TIMES: str(times), _SUSPECTS: suspects}


def any_set(names: Iterable[str]) -> bool:
    """Return whether one of these variables of a library is set."""
    return any(name in os.environ for name in names)


def set_unless_set(variables: Mapping[str, str]) -> None:
    """Set variables of a library in this process, but none that somebody has set."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def quiet_tensorflow() -> None:
    """Keep TensorFlow's native lines below errors off stderr, unless the environment says otherwise. Before import."""
    os.environ.setdefault(_NATIVE_LEVEL, _ERRORS)


def tensorflow_level_is_set() -> bool:
    """Return whether the environment says itself which of TensorFlow's native lines are printed."""
    return os.environ.get(_NATIVE_LEVEL, _ERRORS) != _ERRORS


def require_tensorflow_backend() -> None:
    """Make TensorFlow Keras' backend. Raises ConfigError where the environment names another one. Before the import."""
    chosen = os.environ.get("KERAS_BACKEND") or _BACKEND
    if chosen != _BACKEND:
        raise ConfigError(
            f"environment KERAS_BACKEND: {chosen} cannot be the backend, because millrace trains with TensorFlow; "
            f"unset the variable, or set KERAS_BACKEND={_BACKEND}"
        )
    os.environ["KERAS_BACKEND"] = _BACKEND  # goes over the user's ~/.keras/keras.json


def _said(names: Mapping[Key, str]) -> dict[Key, str]:
    return {key: f"environment {name}" for key, name in names.items()}


def _value(settings: type[BaseModel], name: str, key: Key, text: str) -> Any:
    """Return one variable's value; each is read alone, so that none hides another that lies inside it."""
    value: Any = _Source(settings, {name: text})()
    for part in key:
        if not isinstance(value, dict) or part not in value:
            return text  # below what is no mapping: the check of all settings names it
        value = value[part]
    typed = any(matches(pattern, key) for pattern, _ in settings_of(settings))
    return value if typed or not isinstance(value, str) else _json_or_text(value)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class _Source(EnvSettingsSource):
    """pydantic-settings' reading of nested variables, out of a mapping that is handed in."""

    def __init__(self, settings: type[BaseModel], environ: Mapping[str, str]) -> None:
        super().__init__(
            cast("Any", settings),  # it asks for the fields alone, which every model has
            case_sensitive=False,
            env_prefix=PREFIX,
            env_nested_delimiter=DELIMITER,
            env_parse_none_str=_NULL,
        )
        self.env_vars = parse_env_vars(environ, self.case_sensitive, self.env_ignore_empty, self.env_parse_none_str)

    def decode_complex_value(self, field_name: str, field: FieldInfo | None, value: Any) -> Any:
        """Decode JSON, or a comma separated list where the setting is a list; return other text as it is."""
        del field_name
        decoded = _json_or_text(value)
        if decoded is None or isinstance(decoded, list | dict) or field is None:
            return decoded
        if _is_list(field.annotation):
            return [item.strip() for item in str(value).split(",")]
        return value


def _is_list(annotation: Any) -> bool:
    """Return whether a setting of this type is a list, which may be null."""
    origin, within = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _is_list(within[0])
    if origin in {Union, UnionType}:
        return all(one is NoneType or _is_list(one) for one in within)
    return origin is tuple


def strays_in(settings: type[BaseModel], names: Iterable[str]) -> Strays:
    """Sort variables that begin as ours do and name no setting; those that others are known to write are left out.

    A variable that spells a setting with `_` in place of `__` can mean nothing else, and is refused. Any other may
    belong to another program, so it is ignored, with a warning.
    """
    keys = {"_".join(map(str, key)): key for key, _ in settings_of(settings) if NAME not in key}
    misspelled: dict[str, str] = {}
    ignored: dict[str, str | None] = {}
    for name in filter(_may_be_meant_for_us, names):
        typed = name[len(PREFIX) :].lower()
        if (key := keys.get(typed) or _below(settings, typed)) is not None:
            misspelled[name] = variable(key)
        else:
            near = difflib.get_close_matches(typed, keys, n=1, cutoff=_SIMILAR)
            ignored[name] = variable(keys[near[0]]) if near else None
    return Strays(misspelled, ignored)


def _may_be_meant_for_us(name: str) -> bool:
    name = name.upper()
    return name not in _READ_ELSEWHERE and not (_OF_KUBERNETES.fullmatch(name) or _OF_THE_TESTS.fullmatch(name))


def _below(settings: type[BaseModel], typed: str) -> Key | None:
    """Return the key of a name below a mapping whose keys are the user's own, as in model_args_buckets."""
    for key, info in settings_of(settings):
        origin, joined = get_origin(info.annotation), "_".join(map(str, key))
        if isinstance(origin, type) and issubclass(origin, Mapping) and typed.startswith(f"{joined}_"):
            return (*key, typed[len(joined) + 1 :])
    return None
