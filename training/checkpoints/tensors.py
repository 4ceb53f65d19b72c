"""Arrays as safetensors: a length, a header in JSON, the raw bytes. No pickle, nothing that runs.

Owns the encoding of a part's arrays; runs on the checkpoint writer's thread, and on any that loads. Encoding gives
views on the arrays' own memory, so that a save costs no second copy of the model. Decoding is the library's, which
checks the header; the types that NumPy lacks come from ml_dtypes.
"""

import json
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from millrace.consumers.durable_files import Bytes
from millrace.training.checkpoints.parts import Array
from millrace.training.errors import UncapturedStateError

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
