"""The folder that keeps schemas over restarts: those of the registry, each in a file, and which were reported.

A file has its own checksum: one that was damaged is not read, and is written again. No failure of the disk stops
anything: what cannot be kept is asked for again after a restart, or reported again. Used on any thread.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from millrace.consumers.durable_files import replace_durably
from millrace.pipelines.formats.shared.field_fits import FieldFit, SchemaFit
from millrace.pipelines.schema import RegisteredSchema

log = logging.getLogger(__name__)
_MOST_REPORTED = 200
"""Reported schemas that are remembered, the newest."""


class KeptSchemas:
    """What a folder keeps."""

    def __init__(self, folder: Path | None) -> None:
        """None keeps nothing."""
        self._folder = folder

    def schema(self, number: int) -> RegisteredSchema | None:
        """Return a schema; None where it is not there, or cannot be read."""
        kept = self._read(_schema_file(number))
        if kept is None:
            return None
        try:
            references = tuple((str(name), str(text)) for name, text in kept["references"])
            return RegisteredSchema(str(kept["kind"]), str(kept["text"]), references)
        except (LookupError, TypeError, ValueError):  # of a later version
            return None

    def keep_schema(self, number: int, schema: RegisteredSchema) -> None:
        """Keep a schema."""
        document = {"kind": schema.kind, "text": schema.text, "references": schema.references}
        self._write(_schema_file(number), document, "the registry is asked again")

    def reported(self) -> list[SchemaFit]:
        """Return the schemas that were reported, the oldest first."""
        kept = self._read(_REPORTED)
        try:
            return [] if kept is None else [_fit(each) for each in kept["schemas"]]
        except (LookupError, TypeError, ValueError, AttributeError):  # of a later version
            return []

    def keep_reported(self, fits: Sequence[SchemaFit]) -> None:
        """Keep which schemas were reported."""
        newest = [asdict(fit) for fit in fits[-_MOST_REPORTED:]]
        self._write(_REPORTED, {"schemas": newest}, "a restart reports the same schemas again")

    def _read(self, name: str) -> Mapping[str, Any] | None:
        if self._folder is None:
            return None
        path = self._folder / name
        try:
            kept = json.loads(path.read_bytes())
            whole = kept["sha256"] == _checksum(kept["kept"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            log.warning("%s is damaged, and is written again: %s", path, type(error).__name__)
            return None
        if not whole:
            log.warning("%s is damaged, and is written again: its checksum is another", path)
            return None
        found: Mapping[str, Any] = kept["kept"]
        return found

    def _write(self, name: str, document: Mapping[str, Any], otherwise: str) -> None:
        if self._folder is None:
            return
        path, kept = self._folder / name, json.loads(json.dumps(document))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_durably(path, json.dumps({"kept": kept, "sha256": _checksum(kept)}).encode())
        except OSError as error:
            log.warning("%s cannot be written, so %s: %s", path, otherwise, error.strerror)


_REPORTED = "reported.json"


def _schema_file(number: int) -> str:
    return f"schema-{number}.json"


def _checksum(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _fit(kept: Mapping[str, Any]) -> SchemaFit:
    fields = {source: FieldFit(**fit) for source, fit in kept["fields"].items()}
    return SchemaFit(number=kept["number"], name=kept["name"], fields=fields)
