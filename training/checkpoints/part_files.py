"""The files of the parts: arrays in `<part>.safetensors`, facts in `<part>.json`.

Owns the translation between a PartState and its files; runs on the checkpoint writer's thread, and on any that loads.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from millrace.consumers.durable_files import FileFacts, complaint, write_durably
from millrace.training.checkpoints.files import read_verified, require_space
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.parts import Array, PartState, checked_name
from millrace.training.checkpoints.publication import FileSource
from millrace.training.checkpoints.tensors import decode, encode
from millrace.training.errors import CorruptError, UncapturedStateError

_ARRAYS = "safetensors"
_FACTS = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCheckpoint:
    """A checkpoint of which every file was read and hashed, once."""

    manifest: Manifest
    parts: Mapping[str, PartState]
    """Those that were asked for, out of the very bytes that were hashed."""


def part_sources(parts: Mapping[str, PartState]) -> dict[str, FileSource]:
    """Return the functions that write the files of these parts, by file name."""
    sources: dict[str, FileSource] = {}
    for name, state in sorted(parts.items()):
        checked_name(name)
        if state.arrays:
            sources[f"{name}.{_ARRAYS}"] = partial(_write_arrays, name, state.arrays)
        if state.facts or not state.arrays:
            sources[f"{name}.{_FACTS}"] = partial(_write_facts, name, state.facts)
    return sources


def digests(parts: Mapping[str, PartState]) -> dict[str, str]:
    """Return the SHA-256 of the files of these parts, by file name; nothing is written."""
    found: dict[str, str] = {}
    for name, state in sorted(parts.items()):
        if state.arrays:
            digest = hashlib.sha256()
            for piece in encode(name, state.arrays):
                digest.update(piece)
            found[f"{name}.{_ARRAYS}"] = digest.hexdigest()
        if state.facts or not state.arrays:
            found[f"{name}.{_FACTS}"] = hashlib.sha256(_rendered(name, state.facts)).hexdigest()
    return found


def read_parts(folder: Path, manifest: Manifest, only: Collection[str] | None = None) -> dict[str, PartState]:
    """Return the parts of a checkpoint, all or some, out of bytes that were verified after they were read."""
    return {name: _read_part(folder, manifest, name) for name in manifest.parts if only is None or name in only}


def read_checkpoint(folder: Path, manifest: Manifest, keep: Collection[str] | None) -> VerifiedCheckpoint:
    """Read and hash all files of a checkpoint, and keep the parts named in `keep`, or all of them.

    Raises CorruptError for the first file that is not what was written. The files of the other parts are hashed piece
    by piece and take no memory.
    """
    parts = read_parts(folder, manifest, keep)
    for name, facts in sorted(manifest.files.items()):
        if name.partition(".")[0] not in parts:
            problem = complaint(folder / name, facts, deep=True)
            if problem is not None:
                raise CorruptError(problem)
    return VerifiedCheckpoint(manifest=manifest, parts=parts)


def _read_part(folder: Path, manifest: Manifest, name: str) -> PartState:
    arrays, facts = f"{name}.{_ARRAYS}", f"{name}.{_FACTS}"
    return PartState(
        arrays=decode(read_verified(folder / arrays, manifest.files[arrays])) if arrays in manifest.files else {},
        facts=json.loads(read_verified(folder / facts, manifest.files[facts])) if facts in manifest.files else {},
    )


def _write_arrays(part: str, arrays: Mapping[str, Array], path: Path) -> FileFacts:
    pieces = encode(part, arrays)
    # Asked for before the first byte, so that a full disk is named as what it is and nothing is left to remove.
    require_space(path.parent, sum(len(piece) for piece in pieces))
    return write_durably(path, pieces)


def _write_facts(part: str, facts: Mapping[str, Any], path: Path) -> FileFacts:
    return write_durably(path, [_rendered(part, facts)])


def _rendered(part: str, facts: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(facts, sort_keys=True, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UncapturedStateError(
            f"the facts of the part {part!r} are not JSON ({error}): keep numbers that may be infinite in its arrays"
        ) from error
    return text.encode()
