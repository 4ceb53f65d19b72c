"""The JSON Schema of a config file, for editors: defaults are spelled as a file would have them."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from millrace.app.settings.all_settings import models_in, spelled
from millrace.app.settings.root import Settings

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OURS_ALONE = {"title", "ge", "gt"}
"""Keywords that say nothing of a file: class names, and bounds on a quantity that a file writes as text."""


def json_schema() -> dict[str, Any]:
    """Return the whole document."""
    document = Settings.model_json_schema()
    for model in _sections(Settings):
        schema = document if model is Settings else document["$defs"][model.__name__]
        # A section with a short form has two descriptions; the longer one lists the settings.
        properties = next(option for option in (schema, *schema.get("anyOf", ())) if "properties" in option)
        _respell(model, properties["properties"])
    return {"$schema": _DIALECT, **_cleaned(document)}


def _sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for info in model.model_fields.values():
        for _, inner in models_in(info.annotation):
            yield from _sections(inner)


def _respell(model: type[BaseModel], properties: dict[str, Any]) -> None:
    for name, info in model.model_fields.items():
        derived = isinstance(info.json_schema_extra, dict) and "default" in info.json_schema_extra
        if derived:
            properties[name].pop("default")
        elif not info.is_required():
            properties[name]["default"] = spelled(info, info.default)


def _cleaned(schema: Any, *, names: bool = False) -> Any:
    """Remove our own keywords; where the keys are names of settings, keep all of them."""
    if isinstance(schema, list):
        return [_cleaned(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value
        if key in {"default", "examples"} and not names
        else _cleaned(value, names=key in {"properties", "$defs"})
        for key, value in schema.items()
        if names or key not in _OURS_ALONE
    }
