"""Loads the settings: defaults, over them the file, over it the environment. Runs before any thread starts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from millrace.app.settings.environment import Overrides, read_environment
from millrace.app.settings.renamed import take_new_names
from millrace.app.settings.root import Settings
from millrace.app.settings.sections.kafka import KafkaSettings
from millrace.app.settings.sections.records import told_answers
from millrace.app.settings.sections.registry import RegistrySettings
from millrace.app.settings.spelling import dotted
from millrace.app.settings.validation_errors import Places, describe
from millrace.app.settings.yaml_file import Document, Key, SettingsError, read_yaml
from millrace.consumers.section import FOLDER, Section

_Model = TypeVar("_Model", bound=BaseModel)
DEFAULT = "default"
LOCAL = ("127.0.0.1:9092",)
"""Where Kafka is, by default."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The effective settings, and where each of them came from."""

    settings: Settings
    origins: Mapping[str, str]
    """By dotted key: `default`, `clicks.yaml:7` or `environment MILLRACE_NAME`."""
    warnings: tuple[str, ...] = ()
    """What is probably a mistake, and prevents nothing."""


def load(path: Path | str, environ: Mapping[str, str] | None = None, *, name: str | None = None) -> Loaded:
    """Load a config file with the environment (the process's, unless one is handed in) over it.

    `name` is a name for the model that `--as` puts over both. Raises one SettingsError, a ConfigError with a line for
    every problem.
    """
    document = read_yaml(Path(path))
    overrides = read_environment(Settings, environ)
    if name is not None:
        overrides = overrides.under("--as", ("name",), name)
    renamed = [*take_new_names(document, overrides)]
    places = Places(document, overrides)
    values = _overlaid(document.values, overrides.values)
    for section, info in Settings.model_fields.items():
        if values.get(section) is None and section != "name" and (info.is_required() or section in values):
            values[section] = {}  # so that the settings missing in it are named, each by itself
    settings, error = _validated(Settings, values, document.path.absolute().parent)
    if settings is None or overrides.unknown or overrides.strays.misspelled:
        raise SettingsError(describe(Settings, error, places)) from None
    origins = {dotted(key): _origin(key, places) for key, _ in leaves(settings.model_dump(mode="json"))}
    return Loaded(settings, origins, (*renamed, *_warnings(settings, overrides)))


class _KafkaAlone(Section):
    kafka: KafkaSettings


class _RegistryOfRecords(Section):
    registry: RegistrySettings | None = None


class _RegistryAlone(Section):
    records: _RegistryOfRecords = _RegistryOfRecords()


def load_kafka(
    folder: Path, topic: str, servers: Sequence[str] | None, environ: Mapping[str, str] | None = None
) -> KafkaSettings:
    """Return how to reach a topic without a config file: `--topic` and `--bootstrap-servers` over the environment.

    Of the environment the kafka section alone counts; paths in it are relative to the folder.
    """
    overrides = read_environment(_KafkaAlone, environ)
    overrides = replace(overrides, unknown={}).under("--topic", ("kafka", "topics"), [topic])
    if servers is not None:
        overrides = overrides.under("--bootstrap-servers", ("kafka", "bootstrap_servers"), list(servers))
    values = _overlaid({"kafka": {"bootstrap_servers": list(LOCAL), "group": "millrace-init"}}, overrides.values)
    settings, error = _validated(_KafkaAlone, values, folder.absolute())
    if settings is None or overrides.strays.misspelled:
        raise SettingsError(describe(_KafkaAlone, error, Places(Document(path=folder), overrides))) from None
    return settings.kafka


def load_registry(folder: Path, urls: str | None, environ: Mapping[str, str] | None = None) -> RegistrySettings | None:
    """Return how to reach a schema registry without a config file: `--registry` over the environment; None for none.

    Of the environment records.registry alone counts; paths in it are relative to the folder.
    """
    overrides = replace(read_environment(_RegistryAlone, environ), unknown={})
    if urls is not None:
        overrides = overrides.under("--registry", ("records", "registry", "url"), urls)
    settings, error = _validated(_RegistryAlone, _overlaid({}, overrides.values), folder.absolute())
    if settings is None or overrides.strays.misspelled:
        raise SettingsError(describe(_RegistryAlone, error, Places(Document(path=folder), overrides))) from None
    return settings.records.registry


def _warnings(settings: Settings, overrides: Overrides) -> Iterator[str]:
    yield from told_answers(settings.records)
    for _, section, _ in settings.shapings():
        if (sentence := section.without_effect()) is not None:
            yield sentence
    for name, similar in overrides.strays.ignored.items():
        hint = "" if similar is None else f"; did you mean {similar}?"
        yield f"environment {name} is ignored, because it names no setting{hint}"


def leaves(values: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield every value that is not a mapping, with its key."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _validated(
    settings: type[_Model], values: Mapping[str, Any], folder: Path
) -> tuple[_Model | None, ValidationError | None]:
    try:
        return settings.model_validate(values, context={FOLDER: folder}), None
    except ValidationError as error:
        return None, error


def _overlaid(values: Mapping[str, Any], over: Mapping[Key, Any]) -> dict[str, Any]:
    """Return the file's values with every variable put over them, the wider ones first."""
    result: dict[str, Any] = _copied(values)
    for key in sorted(over, key=len):
        *way, last = map(str, key)
        target = result
        for part in way:
            inner = target.get(part)
            target[part] = target = inner if isinstance(inner, dict) else {}
        target[last] = over[key]
    return result


def _copied(values: Any) -> Any:
    return {key: _copied(value) for key, value in values.items()} if isinstance(values, Mapping) else values


def _origin(key: Key, places: Places) -> str:
    """Return a leaf's origin: the variable or file that has this key, or a value around it."""
    names, lines = places.overrides.names, places.document.lines
    if key in lines or any(key[:length] in names for length in range(1, len(key) + 1)):
        return places.origin(key) or DEFAULT
    return DEFAULT
