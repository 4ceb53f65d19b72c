"""Writes the draft as two files, and never over a user's own. Touches the disk."""

import re
from dataclasses import dataclass
from pathlib import Path

from millrace.consumers.errors import ConfigError

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
        (folder / MODEL).write_text(draft.model, encoding="utf-8")
        (folder / CONFIG).write_text(draft.config, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out: {folder} cannot be written to: {error.strerror or error}") from error
