"""Weights from outside: read from Keras' own files or safetensors, or out of a checkpoint, by the place of each.

Owns the reading of `.keras`, `.weights.h5` and `.safetensors`; runs on the starting thread. No code of a file is run:
of a `.keras` file only the weights inside are read. Whatever is wrong with a file is a ConfigError of one line.

Keras' files number the variables of each layer and name the layers, so such a variable is known as `hidden/0`;
`numbered` gives the same names to the variables of a model. All others are known by their path, as in `hidden/kernel`.
Automatic names (`dense_17`) are renumbered by their order in the model.
"""

import hashlib
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import ml_dtypes
import numpy as np
from keras.src.saving import saving_lib

from millrace.consumers.errors import ConfigError
from millrace.training.checkpoints.part_files import decode
from millrace.training.checkpoints.parts import Array
from millrace.training.model.setup.keras_internals import layers_of, save_variables
from millrace.training.model.variables import automatic_names, by_structure

KERAS, H5, SAFETENSORS = ".keras", ".weights.h5", ".safetensors"
SUFFIXES = (KERAS, H5, SAFETENSORS)
_INSIDE = "model.weights.h5"
_VARIABLES = "vars"
_NOT_WEIGHTS = re.compile(r"_?(optimizer|loss_tracker|compile_metrics|metrics)\b")
_COUNTER = re.compile(r"(.*?)_?(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWeights:
    """The arrays of a file or a checkpoint."""

    what: str
    """Where they are from, for people."""
    sha256: str
    """Of the file; of a checkpoint, of its manifest."""
    arrays: Mapping[str, Array]
    numbered: bool = False
    """Whether the last part of a name is the number of the variable in its layer."""


def read_file(path: Path) -> FoundWeights:
    """Read all weights of a file, by what its name ends with."""
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(f"{path} is no file of weights: its name ends with none of {', '.join(SUFFIXES)}")
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if path.name.endswith(SAFETENSORS):
            return FoundWeights(what=str(path), sha256=digest, arrays=decode(path.read_bytes()))
        arrays = _of_archive(path) if path.name.endswith(KERAS) else _of_h5(saving_lib.H5IOStore(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}; name another file") from error
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{path} holds no weights that can be read: {text}; save them once more") from error
    return FoundWeights(what=str(path), sha256=digest, arrays=arrays, numbered=True)


def numbered(model: Any) -> dict[str, Any]:
    """Return the variables of a model under the names that Keras' files give them."""
    recorder = _Recorder()
    save_variables(model, recorder)  # which notes, and writes nothing
    known = {id(variable) for variable in model.variables}
    named = _named({path: entry.name for path, entry in recorder.entries.items()})
    found = [
        (f"{named[path]}/{index}", variable)
        for path, entry in _in_order(recorder.entries.items())
        for index, variable in entry.items()
        if id(variable) in known
    ]
    keys = canonical([key for key, _ in found], automatic_names(model))
    return {keys[key]: variable for key, variable in found}


def canonical(keys: Iterable[str], automatic: Collection[str]) -> dict[str, str]:
    """Return each name with its automatic parts renumbered, by the given one."""
    ordered = [key for key, _ in _in_order((key, None) for key in keys)]
    renamed = by_structure([SimpleNamespace(path=key) for key in ordered], automatic)
    return {variable.path: key for key, variable in renamed.items()}


class _Entry(dict[str, Any]):
    """What one layer stores, by number."""

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self.name = name


class _Recorder(saving_lib.H5IOStore):  # type: ignore[misc]  # Keras has no types, and takes no store of another class
    """Notes which layer stores which variables."""

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: Mapping[str, str] | None = None) -> _Entry:
        """Return what takes the variables of the layer at this path."""
        self.entries[path] = entry = _Entry((metadata or {}).get("name"))
        return entry


def _of_archive(path: Path) -> dict[str, Array]:
    with zipfile.ZipFile(path) as archive:
        if _INSIDE not in archive.namelist():
            raise ValueError(f"there is no {_INSIDE} inside")
        return _of_h5(saving_lib.H5IOStore(_INSIDE, archive=archive))


def _of_h5(store: Any) -> dict[str, Array]:
    try:
        layers: dict[str, Any] = {}

        def note(path: str, item: Any) -> None:
            if path.rpartition("/")[2] == _VARIABLES and not hasattr(item, "shape"):  # a group, not an array
                layers[path.removesuffix(_VARIABLES).rstrip("/")] = item

        store.h5_file.visititems(note)
        named = _named({path: group.attrs.get("name") for path, group in layers.items()})
        return {
            f"{named[path]}/{index}": _array(group[index])
            for path, group in _in_order(layers.items())
            for index in sorted(group, key=int)
            if not _NOT_WEIGHTS.match(path)
        }
    finally:
        store.close()


def _array(dataset: Any) -> Array:
    array: Array = np.asarray(dataset[()])
    # HDF5 has no bfloat16, so Keras writes its bytes.
    return array.view(ml_dtypes.bfloat16) if dataset.attrs.get("dtype") == "bfloat16" else array


def _named(names: Mapping[str, str | None]) -> dict[str, str]:
    """Return the path of each layer by the names of the layers on the way, without the model's own."""
    found = {}
    for path in names:
        parts, above = path.split("/"), []
        for end in range(1, len(parts) + 1):
            here = "/".join(parts[:end])
            if (name := names.get(here)) is not None or end == len(parts):
                above.append(str(name or parts[-1]))
        found[path] = "/".join(above)
    return found


def _in_order(items: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the items in the order in which Keras counts the layers of one class: `dense_10` after `dense_9`."""
    return sorted(items, key=lambda item: [_counted(part) for part in item[0].split("/")])


def _counted(part: str) -> tuple[str, int]:
    """Return a name without its counter, and the counter: the first of its class has none."""
    match = _COUNTER.fullmatch(part)
    return (match[1], int(match[2])) if match else (part, -1)


def grows(model: Any) -> frozenset[int]:
    """Return the ids of the variables that may have more rows than before: tables of embeddings of counted ids.

    With a layer that hashes, other ids stand for the same value once there are more of them, so no table may grow.
    """
    layers = layers_of(model)
    if any(isinstance(layer, keras.layers.Hashing | keras.layers.HashedCrossing) for layer in layers):
        return frozenset()
    return frozenset(id(layer.variables[0]) for layer in layers if isinstance(layer, keras.layers.Embedding))
