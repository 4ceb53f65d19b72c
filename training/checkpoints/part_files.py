"""The files of the parts: arrays in `<part>.safetensors`, facts in `<part>.json`.

Owns the translation between a PartState and its files; runs on the checkpoint writer's thread, and on any that loads.
Safetensors are a length, a header in JSON, the raw bytes: no pickle, nothing that runs. Encoding gives views on the
arrays' own memory, so that a save costs no second copy of the model. Decoding is the library's, which checks the
header; the types that NumPy lacks come from ml_dtypes.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from millrace.consumers.durable_files import Bytes, FileFacts, complaint, write_durably
from millrace.training.checkpoints.files import read_verified, require_space
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.parts import Array, PartState, checked_name
from millrace.training.checkpoints.publication import FileSource
from millrace.training.errors import CorruptError, UncapturedStateError

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "F32": np.dtype(np.float32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_RESERVED = "__metadata__"


def encode(part: str, arrays: Mapping[str, Array]) -> list[Bytes]:
    """Return the pieces of a file that holds these arrays; all but the first are views on the arrays."""
    plain = {name: _plain(part, name, array) for name, array in arrays.items()}
    order = sorted(plain, key=lambda name: (-plain[name].itemsize, name))  # every array lies aligned
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        array, start = plain[name], end
        end += array.nbytes
        header[name] = {"dtype": _CODES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    # Padded by spaces, as the format allows, so that the data begins at a multiple of 8 bytes.
    text += b" " * (-len(text) % 8)
    views = (plain[name].reshape(-1).view(np.uint8).data for name in order if plain[name].nbytes)
    return [len(text).to_bytes(8, "little") + text, *views]


def decode(raw: bytes) -> dict[str, Array]:
    """Return the arrays of a file, writable, each in memory of its own."""
    return {
        name: np.frombuffer(spec["data"], dtype=_DTYPES[spec["dtype"]]).reshape(spec["shape"])
        for name, spec in safetensors.deserialize(raw)  # type: ignore[no-untyped-call]  # the library has no stubs for it
    }


def _plain(part: str, name: str, value: Array) -> Array:
    array = np.asarray(value, order="C")
    # The format is little-endian on every machine.
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if name == _RESERVED or array.dtype not in _CODES:
        raise UncapturedStateError(
            f"{name!r} of the part {part!r} is of dtype {array.dtype}, which no checkpoint can hold: "
            "keep it as numbers or as text in the part's facts"
        )
    return array


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
