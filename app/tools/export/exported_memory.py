"""What a version carries of the keys of `windows`, so that a server makes the same sequences as the trainer.

It is the part `windows` of the checkpoint that is exported, and so holds at exactly its positions:

    memory/windows.safetensors, memory/windows.json     the part, as a checkpoint has it
    memory/memory.json     {"format": 1, "positions": by partition, "skips": the ranges that commands have cut out,
                            "left_out": keys of the checkpoint that are not here, "made_by": what the rows depend on}

The manifest of the version has the hash of each file. Loads no TensorFlow.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millrace.app.settings import Settings
from millrace.app.settings.exported_records import FOLDER as RECORDS
from millrace.app.settings.exported_records import write_exported_records
from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.windows.key_windows import KeyWindows
from millrace.pipelines.shaping.windows.windows import COUNTS, WindowShaper
from millrace.pipelines.shaping.windows.windows import NAME as WINDOWS
from millrace.training.checkpoints.exports.version_folder import ExportMemory
from millrace.training.checkpoints.part_files import VerifiedCheckpoint, decode, part_sources
from millrace.training.checkpoints.parts import PartState
from millrace.training.ledger.ledger import Skip

FOLDER = "memory"
_FILE = "memory.json"
_FORMAT = 1
_COUNTED = f"/{COUNTS}"
"""How the name of an array ends that has a number for each key."""
_SPARE = 0.95
"""How much of what would fit is kept in the next try, as keys differ in size."""


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """Offsets of a partition that a command has cut out of what is learnt."""

    partition: Partition
    start: int
    end: int
    order: str = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedMemory:
    """The last records of each key, as a version carries them."""

    positions: Mapping[Partition, int]
    """Where the topic goes on behind them."""
    states: Callable[[], Mapping[Partition, KeyWindows]]
    """Reads the states, which takes long where there are many keys. A partition that has none begins empty."""
    skips: tuple[SkippedRange, ...]
    left_out: int
    """Keys of the checkpoint that the version does not carry."""


def window_shaper(settings: Settings) -> WindowShaper:
    """Return the shaper that makes sequences by these settings, which have windows."""
    (found,) = (section.shaper(schema) for name, section, schema in settings.shapings() if name == WINDOWS)
    assert isinstance(found, WindowShaper)
    return found


def write_exported_memory(
    settings: Settings, checkpoint: VerifiedCheckpoint, skips: Sequence[Skip], version: Path
) -> ExportMemory | None:
    """Write what a checkpoint remembers of each key into the folder of a version; return None if it carries nothing."""
    bound = settings.export.memory
    if not settings.windows.used or not bound:
        return None
    part, shaper, left_out = checkpoint.parts.get(WINDOWS, PartState()), window_shaper(settings), 0
    states = shaper.states_of(part.arrays, part.facts) or {}
    part = _part_of(shaper, states)
    while (size := _nbytes(part)) > bound:
        keep = bound / size * _SPARE
        for partition, (position, state) in states.items():
            drop = len(state.slots) - int(len(state.slots) * keep)
            states[partition] = position, state.without_oldest(drop)
            left_out += drop
        part = _part_of(shaper, states)
    folder = version / FOLDER
    folder.mkdir()
    for name, write in part_sources({WINDOWS: part}).items():
        write(folder / name)
    body = {
        "format": _FORMAT,
        "positions": dict(checkpoint.manifest.positions),
        "skips": [[str(one.partition), one.start, one.end] for one in skips],
        "left_out": left_out,
        "made_by": _made_by(settings, version),
    }
    (folder / _FILE).write_text(json.dumps(body, indent=1, sort_keys=True) + "\n", "utf-8")
    return ExportMemory(
        keys=sum(len(array) for name, array in part.arrays.items() if name.endswith(_COUNTED)),
        bytes=sum(path.stat().st_size for path in folder.iterdir()),
        left_out=left_out,
    )


def read_exported_memory(settings: Settings, version: Path) -> CarriedMemory:
    """Return what a version carries; ConfigError if it carries nothing, or was made by other settings."""
    folder = version / FOLDER
    try:
        body: dict[str, Any] = json.loads((folder / _FILE).read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            "serve.memory: this version carries no keys, because an earlier millrace exported it, or export.memory is "
            "0; export a checkpoint again, or leave serve.memory out"
        ) from None
    if body["format"] != _FORMAT:
        raise ConfigError("serve.memory: a later millrace has exported this version; serve it with that one")
    with tempfile.TemporaryDirectory(prefix="millrace-records-") as own:
        write_exported_records(settings, Path(own))
        ours = json.loads(json.dumps(_made_by(settings, Path(own))))
    if others := sorted(name for name in {*ours, *body["made_by"]} if ours.get(name) != body["made_by"].get(name)):
        raise ConfigError(
            f"serve.memory: {' and '.join(others)} of this config differ from those of the trainer that made this "
            "version, so its sequences would be others; start the server with the trainer's config"
        )

    def states() -> dict[Partition, KeyWindows]:
        arrays = folder / f"{WINDOWS}.safetensors"
        facts = json.loads((folder / f"{WINDOWS}.json").read_bytes())
        found = window_shaper(settings).states_of(decode(arrays.read_bytes()) if arrays.exists() else {}, facts) or {}
        return {partition: state for partition, (_, state) in found.items()}

    return CarriedMemory(
        positions={Partition.parse(name): int(offset) for name, offset in body["positions"].items()},
        states=states,
        skips=tuple(SkippedRange(Partition.parse(name), start, end) for name, start, end in body["skips"]),
        left_out=int(body["left_out"]),
    )


def _part_of(shaper: WindowShaper, states: Mapping[Partition, tuple[int, KeyWindows]]) -> PartState:
    arrays, facts = shaper.saved_of(states)
    return PartState(arrays=arrays, facts=facts)


def _nbytes(part: PartState) -> int:
    return sum(np.asarray(array).nbytes for array in part.arrays.values())


def _made_by(settings: Settings, version: Path) -> dict[str, Any]:
    """Return the settings that rows depend on; what the records are stands in a folder of the version."""
    files = sorted((version / RECORDS).iterdir())
    return {
        "records": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
        "records.where": settings.records.model_dump(mode="json", include={"where"})["where"],
        "thinning": settings.thinning.model_dump(mode="json", exclude_defaults=True),
        "windows": settings.windows.model_dump(mode="json", exclude_defaults=True),
    }
