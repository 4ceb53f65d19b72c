"""Writes docs/configuration.md out of the models.

python -m millrace.app.settings.reference > docs/configuration.md
"""

import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from millrace.app.settings.all_settings import models_in, settings_of, spelled, type_of
from millrace.app.settings.renamed import RENAMED
from millrace.app.settings.root import Settings
from millrace.app.settings.spelling import dotted, flow
from millrace.app.settings.yaml_file import Key

_INTRODUCTION = """\
# Configuration

<!-- Written by `python -m millrace.app.settings.reference`; a test compares. Change the models in app/settings. -->

One YAML file describes one model. Five lines are enough:

```yaml
name: clicks
kafka:   {bootstrap_servers: [localhost:9092], topics: [clicks]}
records: {format: json, features: {price: float32, ad: string, hour: int32}, label: {clicked: float32}}
model:   {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
```

- **Precedence.** The environment goes over the file, the file over the defaults. `millrace config show -c clicks.yaml`
  prints every effective value with its origin, secrets masked.
- **Your editor** completes, explains and checks settings by a JSON Schema. Print it beside the config, with
  `millrace config schema > millrace.schema.json`, and make `# yaml-language-server: $schema=millrace.schema.json` the
  config's first line: VS Code's YAML extension reads it, and so does every editor with yaml-language-server.
- **Environment.** `MILLRACE_` and the setting's name with `__` between its parts: `MILLRACE_TRAINING__BATCH_SIZE=2048`.
  A list is comma separated or JSON (`MILLRACE_KAFKA__BOOTSTRAP_SERVERS=a:9092,b:9092`), a mapping is JSON, `null`
  unsets. A variable replaces all that it names. Names are read in lower case; set names with capitals in the file.
  `MILLRACE_TRAINING_BATCH_SIZE`, with one underscore, is refused, and so is a variable with `__` that names no setting.
  Any other `MILLRACE_...` is ignored, with a warning unless it is known, as Kubernetes' `MILLRACE_PORT` is.
- **Units.** Durations (`500ms`, `60s`, `10m`, `1h`, `7d`) and sizes (`256MiB`, `1GB`) carry their unit; a bare number
  is an error.
- **YAML 1.2.** `NO` is text, `1.0e6` a number, dates and times are text. A key that stands twice is an error. Anchors,
  aliases and `<<` work. A file of more than 1 MiB or 50,000 values is refused.
- **Paths** are relative to the config file's folder, those in the environment too. Paths in a command's options are
  relative to where the command is typed.
- **Secrets** are named by file (`sasl_password_file`) and never stand in a setting. In `model.args`, `config show`
  masks what is named like a secret.
- **Mistakes** are listed all at once, a line each, and end the command with exit code 2:
  `clicks.yaml:7: records.featurs is not a setting; did you mean records.features?`
"""
_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "mapping",
    "null": "null",
}

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OURS_ALONE = {"title", "ge", "gt"}
"""Keywords that say nothing of a file: class names, and bounds on a quantity that a file writes as text."""


def reference() -> str:
    """Return the whole page."""
    at_the_top = (((name,), info) for name, info in Settings.model_fields.items() if not models_in(info.annotation))
    lines = [_INTRODUCTION, "## At the top\n", *_table(at_the_top)]
    for name, info in Settings.model_fields.items():
        for _, model in models_in(info.annotation):
            lines += [f"## {name}\n\n{info.description}\n", *_table(settings_of(model, (name,)))]
    return "\n".join(lines)


def _table(settings: Iterator[tuple[Key, FieldInfo]]) -> Iterator[str]:
    yield "| setting | type | default | what it is |"
    yield "|---|---|---|---|"
    for key, info in settings:
        schema = type_of(info).json_schema()
        kind = _cell(_words(schema, schema.get("$defs", {})))
        yield f"| `{dotted(key)}` | {kind} | {_default(info)} | {_cell(info.description or '')} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(info: FieldInfo) -> str:
    extra = info.json_schema_extra
    if isinstance(extra, dict) and "default" in extra:
        return f"`{extra['default']}`"
    if info.is_required():
        return "required"
    if models_in(info.annotation) and info.default is not None:
        return ""
    return f"`{flow(spelled(info, info.default))}`"


def _words(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    if reference := schema.get("$ref"):
        return _words(definitions[reference.rsplit("/", 1)[1]], definitions)
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{choice}`" for choice in schema.get("enum", [schema.get("const")]))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_words(option, definitions) for option in options))
    kind = schema.get("format") or schema.get("type")
    if kind == "array":
        return f"list of {_words(schema.get('items', {}), definitions)}"
    if isinstance(kind, list):
        return ", ".join(_WORDS[each] for each in kind)
    return _WORDS.get(str(kind), str(kind or "anything"))


def json_schema() -> dict[str, Any]:
    """Return the whole document."""
    document = Settings.model_json_schema()
    for model in _models_in(Settings):
        schema = document if model is Settings else document["$defs"][model.__name__]
        # A section with a short form has two descriptions; the longer one lists the settings.
        listed = next(option for option in (schema, *schema.get("anyOf", ())) if "properties" in option)
        properties = listed["properties"]
        for attribute, info in model.model_fields.items():
            name = info.alias or attribute
            derived = isinstance(info.json_schema_extra, dict) and "default" in info.json_schema_extra
            if derived:
                properties[name].pop("default")
            elif not info.is_required():
                properties[name]["default"] = spelled(info, info.default)
        for (section, old), (_, new) in RENAMED.items():
            if Settings.model_fields[str(section)].annotation is model:
                properties[old] = {**properties[new], "deprecated": True, "description": f"Now called {new}."}
    return {"$schema": _DIALECT, **_cleaned(document)}


def _models_in(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for info in model.model_fields.values():
        for _, inner in models_in(info.annotation):
            yield from _models_in(inner)


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


if __name__ == "__main__":
    sys.stdout.write(reference())
