"""A proof that held, remembered beside the checkpoints: a restart of the same model need not prove the same again.

What a proof depends on is kept as hashes: the graph of the call and every variable as the model was built, the rows of
the proof as the model is given them, all code that is loaded (the user's files by their contents, installed ones by
size and time), what the service says of itself (versions, the whole config, environment), processor, devices and
threads. And what one call makes of these rows, to the bit: it is made again, so what no hash sees (a table, a kernel)
would show. Where anything differs, or cannot be known, the model is proven again. Only a proof of which each claim
holds is remembered.

Owns the file, which is written while the folder's lease is held; whoever deletes or damages it costs a start its
second, and nothing else. Runs where the model is proven.
"""

import hashlib
import logging
import os
import platform
import sys
import sysconfig
import zlib
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import millrace
from millrace.consumers.durable_files import replace_durably
from millrace.training.checkpoints.sealed_json import canonical, seal, unseal
from millrace.training.model.learner import Learner
from millrace.training.model.proof.proof import Finding
from millrace.training.model.proof.proof_trials import ProofTrials
from millrace.training.model.setup.cores import usable_cores
from millrace.training.model.variables import copies, read

log = logging.getLogger(__name__)

_CALLS_BACK = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
"""Operations that run Python, of which a graph holds a number and not what it does."""
_GENERATED = "__autograph_generated_file"
_PYTHON, _OURS = f"{sysconfig.get_path('stdlib')}{os.sep}", f"{Path(millrace.__file__).parent}{os.sep}"
"""The folders of the standard library and of this package: loading more of these than before changes no proof."""
_PROCESSOR = ("model name", "flags", "Features", "CPU implementer", "CPU part")


class RememberedProof:
    """What one name has proven last."""

    def __init__(self, path: Path, told: Mapping[str, Any]) -> None:
        """`told` says which config, code, versions and environment this process runs with, as JSON."""
        self._path, self._told = path, told
        self._found: dict[str, str] | None = None

    def holds(self, learner: Learner) -> bool:
        """Return whether what is remembered is the proof of this learner, as it was built, in this process."""
        try:
            self._found = self._fingerprint(learner)
            kept = unseal(self._path.read_bytes())
            if self._found is None:
                return False
            files = _unpacked(kept["files"])
            now = {**self._found, "code": _facts_of(files)}
            changed = [name for name in sorted({*kept["proven"], *now}) if kept["proven"].get(name) != now.get(name)]
            more = [one for one in _loaded_files() - files if not one.startswith((_PYTHON, _OURS))]
            if not (changed or more) and kept["outcome"] != _outcome(learner):
                changed = ["outcome of a call"]
        except FileNotFoundError:
            return False
        except Exception as error:  # noqa: BLE001 - the file may hold anything, and the user's code may raise anything
            log.warning("%s is not read, and the model is proven again: %s", self._path, type(error).__name__)
            return False
        if changed or more:
            what = ", ".join([*changed, *(["code that is loaded"] if more else [])])
            log.info("proving the model again: not as at the last proof: %s", what)
            return False
        log.info("the proof of an earlier start holds: model, rows, versions and processor are the same")
        return True

    def keep(self, learner: Learner, findings: Sequence[Finding]) -> None:
        """Remember a proof that was just made, if each claim holds; forget the one before if not."""
        try:
            if self._found is None or not findings or not all(finding.holds for finding in findings):
                self._path.unlink(missing_ok=True)
            # The proof may have left out rows, with which the next start would begin.
            elif _rows(learner) == self._found["rows"]:
                files = _loaded_files()
                proven = {**self._found, "code": _facts_of(files)}
                document = {"proven": proven, "outcome": _outcome(learner), "files": _packed(files)}
                replace_durably(self._path, seal(document))
        except OSError as error:
            log.warning("%s cannot be written, and the next start proves the model again: %s", self._path, error)

    def _fingerprint(self, learner: Learner) -> dict[str, str] | None:
        """Return what the proof depends on, each as a hash; None if something of it cannot be known."""
        graph = _graph(learner)
        if graph is None:
            return None
        return {
            "model": graph,
            "weights": _of_arrays((str(at), np.asarray(read(one))) for at, one in enumerate(learner.state)),
            "rows": _rows(learner),
            "config, versions or environment": hashlib.sha256(canonical(self._told)).hexdigest(),
            "processor": _machine(learner),
        }


def _graph(learner: Learner) -> str | None:
    """Return the hash of the compiled call; None if the graph does not say all that it does."""
    graph = learner.call.traced(learner.rows_of(learner.probe())).graph
    variables = {id(copy.handle) for variable in graph.variables for copy in copies(variable)}
    captured = [tensor for tensor, _ in graph.captures if id(tensor) not in variables]
    # A table or another resource has contents that are in no variable.
    if any(tensor.dtype in (tf.resource, tf.variant) for tensor in captured):
        return None
    definition = graph.as_graph_def()
    functions = sorted(definition.library.function, key=lambda one: one.signature.name)
    if _CALLS_BACK & {node.op for nodes in (definition.node, *(one.node_def for one in functions)) for node in nodes}:
        return None
    definition.library.Clear()
    parts = [one.SerializeToString(deterministic=True) for one in (definition, *functions)]
    return _of_bytes([*parts, _of_arrays((str(at), np.asarray(one)) for at, one in enumerate(captured)).encode()])


def _rows(learner: Learner) -> str:
    """Return the hash of the rows that the proof runs on, as they were read and as the model is given them."""
    sampled = [
        (name, column)
        for sample in learner.probes.samples()
        for name, column in [*sorted(sample.features.items()), *sorted(sample.labels.items())]
    ]
    rows = tf.nest.flatten(learner.rows_of(learner.probe()))
    given = [(str(at), np.asarray(tensor)) for at, tensor in enumerate(rows)]
    return _of_arrays([*sampled, *given])


def _loaded_files() -> set[str]:
    """Return the files of all modules that are loaded."""
    origins = {getattr(getattr(module, "__spec__", None), "origin", None) for module in [*sys.modules.values()]}
    # What AutoGraph has made of the user's code lies in a temporary folder under a new name each time.
    return {one for one in origins if isinstance(one, str) and one.startswith(os.sep) and _GENERATED not in one}


def _facts_of(files: Collection[str]) -> str:
    """Return the hash of files: of installed ones by size and time, of others by their contents."""
    lines = list[str]()
    for name in sorted(files):
        file = Path(name)
        try:
            if _is_installed(name):
                facts = file.stat()
                lines.append(f"{name} {facts.st_size} {facts.st_mtime_ns}")
            else:
                lines.append(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}")
        except OSError:
            lines.append(f"{name} is gone")
    return _of_bytes(line.encode() for line in lines)


def _is_installed(file: str) -> bool:
    return file.startswith(_PYTHON) or "/site-packages/" in file or "/dist-packages/" in file


def _packed(files: Iterable[str]) -> str:
    """Return names as one text: some thousand paths have much in common."""
    return b64encode(zlib.compress("\n".join(sorted(files)).encode())).decode()


def _unpacked(text: str) -> set[str]:
    return set(zlib.decompress(b64decode(text)).decode().split("\n"))


def _machine(learner: Learner) -> str:
    """Return the hash of what the numbers come out of: processor, devices, threads."""
    threading = tf.config.threading
    facts = {
        "platform": [platform.platform(), platform.machine(), *platform.libc_ver()],
        "processor": _processor(),
        "devices": [
            [
                device.name,
                sorted((key, str(value)) for key, value in tf.config.experimental.get_device_details(device).items()),
            ]
            for device in tf.config.list_physical_devices()
        ],
        "replicas": learner.devices,
        "threads": [
            usable_cores(),
            threading.get_intra_op_parallelism_threads(),
            threading.get_inter_op_parallelism_threads(),
        ],
    }
    return hashlib.sha256(canonical(facts)).hexdigest()


def _processor() -> list[str]:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return sorted({line for line in lines if line.startswith(_PROCESSOR)})
    return []


def _outcome(learner: Learner) -> str:
    """Return the hash of what one call makes of the proof's rows, and undo it."""
    probe = learner.probe()
    after = ProofTrials(learner).outcome(probe)
    result = after.result
    returned = [("finite", result.finite), ("losses", result.losses), ("outputs", result.outputs)]
    states = [(f"state {at}", state) for at, state in enumerate(result.states)]
    return _of_arrays([*sorted(after.values.items()), *returned, *states])


def _of_arrays(arrays: Iterable[tuple[str, Any]]) -> str:
    digest = hashlib.sha256()
    for name, array in arrays:
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        if array.dtype == object:
            values = [one if isinstance(one, bytes) else repr(one).encode() for one in array.reshape(-1)]
            digest.update(b"".join(b"%d %b" % (len(value), value) for value in values))
        else:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _of_bytes(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(b"%d " % len(piece))
        digest.update(piece)
    return digest.hexdigest()
