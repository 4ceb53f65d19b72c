"""Sequences in a predict request: made of one record a row, and of what the server remembers of its key.

    {"records": [{"card": "a7", "amount": 2.5}, …]}      as they are in Kafka, in their own format
    {"instances": [{"card": "a7", "amount": 2.5}, …]}    the model's features, as JSON, whatever the format is
    beside them, where they are read: "keys", "headers", "timestamps", one for each

The record of a request is the newest of its key, and is not remembered: the topic's is. Sequences, their lengths and
gaps are made by the code that makes them in training. Runs on the threads `json`.
"""

import logging
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from millrace.app.settings import Settings
from millrace.app.settings.sections.records import RecordsSettings
from millrace.app.settings.sections.registry import to_registry
from millrace.app.tools.export.exported_memory import read_exported_memory
from millrace.app.tools.serve.json_tensors import Array, bad_request
from millrace.app.tools.serve.memory.topic_memory import TopicMemory
from millrace.app.tools.serve.record_inputs import RECORDS, RecordInputs
from millrace.consumers.errors import ConfigError
from millrace.pipelines.stream.decode import Decoded
from millrace.training.checkpoints.exports.version_folder import read_export
from millrace.training.model.export.answers import raw_columns

log = logging.getLogger(__name__)
ROWS = "instances"
_REGISTRY_S = 2.0
_OF_A_PATH = re.compile(r"[\\.\[\]$]")


class SequenceInputs:
    """Makes the inputs of a version's signature of single records."""

    def __init__(self, settings: Settings, memory: TopicMemory) -> None:
        """Raise ConfigError if a request cannot bring what the sequences are made of."""
        self.memory, records = memory, settings.records
        gaps = settings.windows.gaps
        schemas = None if records.registry is None else to_registry(records.registry, _REGISTRY_S)
        framed = records.registry is not None and records.format == "json"
        self._records = _reader_or_reason(records, schemas, framed=framed, gaps=gaps, name=RECORDS)
        self._features = _reader_or_reason(_as_features(records), None, framed=False, gaps=gaps, name=ROWS)
        self.waits = schemas is not None
        """Whether a request may wait for a schema."""

    def read(self, body: bytes, document: Mapping[str, Any], name: str) -> Decoded:
        """Return the records, or the features, of a request. Raises ServingError."""
        reader = self._records if name == RECORDS else self._features
        if isinstance(reader, str):
            raise bad_request(f"no '{name}' are taken: {reader}")
        return reader.decoded(body, document)

    def tensors(self, decoded: Decoded) -> dict[str, Array]:
        """Return the tensors of decoded records, each the newest of its key."""
        return raw_columns(self.memory.keys.row_schema, self.memory.keys.rows(decoded))


class SequenceReaders:
    """Makes what reads requests, for each version, and has the memory go on from what the version carries."""

    def __init__(self, settings: Settings, memory: TopicMemory) -> None:
        self._settings, self._memory = settings, memory
        self._inputs = SequenceInputs(settings, memory)

    def of(self, version: Path) -> SequenceInputs:
        """Return what reads requests to the version in a folder. Raises MillraceError if it carries no such keys."""
        carried, manifest = read_exported_memory(self._settings, version), read_export(version)
        there, own = {partition.number for partition in carried.positions}, self._settings.serve.memory.partitions
        if unknown := sorted({*(own or ())} - there):
            raise ConfigError(
                f"serve.memory.partitions: the version knows no partition {unknown[0]}; write some of 0 to {max(there)}"
            )
        if manifest.memory is not None:
            held = [one for one in carried.positions if own is None or one.number in own]
            most, partitions = self._settings.windows.max_bytes, len(held)
            log.info(
                "version %d carries the last records of %d keys in %d bytes; they take at most %d here",
                manifest.number,
                manifest.memory.keys,
                manifest.memory.bytes,
                most * partitions,
            )
        if carried.left_out:
            log.warning(
                "version %d lacks %d keys, which begin empty: raise export.memory", manifest.number, carried.left_out
            )
        self._memory.offer(manifest.number, datetime.fromisoformat(manifest.made_at).timestamp(), carried)
        return self._inputs


def _reader_or_reason(
    records: RecordsSettings, schemas: Any, *, framed: bool, gaps: str | None, name: str
) -> RecordInputs | str:
    try:
        return RecordInputs(records, schemas, framed=framed, timed=gaps, name=name)
    except ConfigError as error:
        return str(error)


def _as_features(records: RecordsSettings) -> RecordsSettings:
    """Return the settings of JSON records whose fields are called as the model's features are."""
    features = {
        name: feature.model_copy(update={"field": _OF_A_PATH.sub(r"\\\g<0>", name)})
        for name, feature in records.features.items()
    }
    return RecordsSettings(features=features)
