"""What the options of `millrace init` say of schemas that records are read by."""

import os
from pathlib import Path

from millrace.app.settings.sections.registry import RegistrySettings, to_registry
from millrace.app.tools.init.record_look import SchemaHints

_REGISTRY_S = 5.0


def schema_hints(registry: RegistrySettings | None, file: Path | None, message: str | None, out: Path) -> SchemaHints:
    """Return the hints; a config in the folder `out` has the file by a path from there."""
    schemas = None if registry is None else to_registry(registry, _REGISTRY_S)
    urls = () if registry is None else registry.url
    return SchemaHints(schemas=schemas, registry=urls, file=file, written=_written(file, out), message=message)


def _written(file: Path | None, out: Path) -> str:
    if file is None:
        return ""
    relative = os.path.relpath(file.absolute(), out.absolute())
    return relative if relative.startswith("..") else f"./{relative}"
