"""Writes the draft as two files, and never over a user's own. Touches the disk.

A draft is checked: the records that were looked at are decoded by it.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.app.service.native_log import load_tensorflow
from millrace.app.settings import load, to_decoder, to_format
from millrace.app.tools.validate.record_check import Verdict
from millrace.consumers.durable_files import replace_durably
from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Chunk
from millrace.pipelines.stream.decode import decode_chunk

CONFIG, MODEL = "millrace.yaml", "model.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The contents of the files."""

    config: str
    model: str


def name_of(topic: str) -> str:
    """Return a config's name derived from a topic's."""
    name = re.sub(r"[^a-z0-9._-]", "-", topic.lower()).lstrip("._-")[:100]
    return name or "model"


def refuse_to_overwrite(folder: Path, *, force: bool) -> None:
    """Raise ConfigError where one of the files exists."""
    there = [str(folder / name) for name in (CONFIG, MODEL) if (folder / name).exists()]
    if there and not force:
        raise ConfigError(f"{' and '.join(there)} would be overwritten; give another --out, or --force")


def write(folder: Path, draft: Draft) -> None:
    """Write both files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in ((MODEL, draft.model), (CONFIG, draft.config)):
            replace_durably(folder / name, text.encode())
    except OSError as error:
        raise ConfigError(f"--out: {folder} cannot be written to: {error.strerror or error}") from error


def verdicts_of(config: Path, chunks: Sequence[Chunk]) -> Counter[Verdict]:
    """Return the verdicts on the records that do not decode by the config. Raise ConfigError where none can be read."""
    records = load(config).settings.records
    if to_format(records).loads_tensorflow or any(feature.image for feature in records.features.values()):
        load_tensorflow()  # these decoders import it, and it would print its native lines
    decoder = to_decoder(records)
    decoded = [decode_chunk(chunk, decoder) for chunk in chunks]
    return Counter((refused.reason, refused.field) for one in decoded for refused in one.refused)


def set_aside(verdicts: Counter[Verdict]) -> dict[str, int]:
    """Return how many records would be set aside, by reason and field, most frequent first."""
    named = {(reason, field): f"{reason}{f' ({field})' if field else ''}" for reason, field in verdicts}
    return {named[verdict]: count for verdict, count in verdicts.most_common()}
