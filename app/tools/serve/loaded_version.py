"""A version in memory: its SavedModel, loaded and tried once, and its signatures as functions of NumPy arrays.

Owns TensorFlow's session of one version, which `close` ends, and its memory with it. Loading and calling are slow and
run on threads. Requests that use it are counted under a lock, so that a version that was replaced is closed after its
last one, and none begins on a closed one.

A session, as TF Serving has, not `tf.saved_model.load`: that one builds Python functions, under the interpreter's lock.
Measured on a busy machine with two cores (2026-11-23), a thread that wakes every millisecond while a small model is
loaded is held up by 0.8 ms (p90) and 5.5 ms (p99) here, by 6.2 ms and 16 ms there.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.json_format import MessageToDict

from millrace.app.tools.serve.json_tensors import SPLITS, VALUES, Array, ServingError, Signature, TensorFacts
from millrace.app.tools.serve.memory.sequence_inputs import SequenceInputs, SequenceReaders
from millrace.app.tools.serve.record_inputs import RecordInputs, RecordReaders
from millrace.consumers.errors import MillraceError
from millrace.training.model.setup.cores import usable_cores

log = logging.getLogger(__name__)
_INTERNAL, _TAG = "__", "serve"
_DEPRECATED = "saved_model.loader_impl"


def _not_deprecated(record: logging.LogRecord) -> bool:
    """Drop TensorFlow's advice to use the other loader; the top of this module says why it is not used."""
    return _DEPRECATED not in record.getMessage()


logging.getLogger("tensorflow").addFilter(_not_deprecated)


Readers = RecordReaders | SequenceReaders


class UnloadableError(MillraceError):
    """A version cannot be loaded."""


@dataclass(slots=True, eq=False)
class LoadedVersion:
    """A version that answers."""

    number: int
    signatures: Mapping[str, Signature]
    definitions: Mapping[str, Any]
    """The signatures as TF Serving's metadata shows them."""
    about: Mapping[str, Any]
    """The manifest; empty where the version has none."""
    records: RecordInputs | SequenceInputs | str = field(repr=False)
    """What reads records as they are in Kafka; a text says why nothing does."""
    session: Any = field(repr=False)
    calls: Mapping[str, Callable[..., list[Array]]] = field(repr=False)
    """By signature, TensorFlow's function of its inputs in order, which returns its outputs in order."""
    _users: int = 0
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def enter(self) -> bool:
        """Count a request that uses it, until `leave`; False where it was closed, and another one answers by now."""
        with self._lock:
            self._users += not self._closed
            return not self._closed

    def leave(self) -> None:
        """Count a request as ended."""
        with self._lock:
            self._users -= 1

    def call(self, signature: Signature, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Return what the model answers. Raises ServingError where the model refuses what it was given."""
        given = [tensors[name] for name in signature.inputs]
        try:
            return dict(zip(signature.outputs, self.calls[signature.name](*given), strict=True))
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError, ValueError) as error:
            raise ServingError(400, _first_line(error)) from None
        except tf.errors.ResourceExhaustedError:
            raise ServingError(503, "the model has no memory left for this request; send fewer rows") from None
        except tf.errors.OpError as error:
            raise ServingError(500, _first_line(error)) from None

    def close(self) -> bool:
        """Free its memory, unless a request uses it; return whether it is closed."""
        with self._lock:
            self._closed = self._users == 0
        if self._closed:
            self.session.close()
        return self._closed


def load_version(number: int, folder: Path, about: Mapping[str, Any], readers: Readers) -> LoadedVersion:
    """Load a version and call each signature once, so that no request waits for what only a first call does."""
    records = readers.of(folder)
    options = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=usable_cores(), allow_soft_placement=True)
    session = tf.compat.v1.Session(graph=tf.Graph(), config=options)
    try:
        with session.graph.as_default():
            definitions = tf.compat.v1.saved_model.load(session, [_TAG], str(folder)).signature_def
        signatures, calls = {}, {}
        for name, definition in definitions.items():
            if not name.startswith(_INTERNAL):
                signatures[name] = _signature(name, definition, about)
                fetched = [definition.outputs[one].name for one in signatures[name].outputs]
                fed = [definition.inputs[one].name for one in signatures[name].inputs]
                calls[name] = session.make_callable(fetched, feed_list=fed)
    except (OSError, ValueError, KeyError, RuntimeError, tf.errors.OpError) as error:
        session.close()
        raise UnloadableError(f"version {number} in {folder} cannot be loaded: {_first_line(error)}") from error
    if not signatures:
        raise UnloadableError(f"version {number} in {folder} has no signature, so nothing in it can be asked")
    shown = {
        name: MessageToDict(each, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        for name, each in definitions.items()
    }
    loaded = LoadedVersion(
        number=number,
        signatures=signatures,
        definitions=shown,
        about=about,
        records=records,
        session=session,
        calls=calls,
    )
    # One row that means nothing for each signature; a model that refuses such a row is warmed by its first request.
    for signature in signatures.values():
        row = {name: _blank(name, facts, signature) for name, facts in signature.inputs.items()}
        try:
            loaded.call(signature, row)
        except ServingError as error:
            log.warning("version %d could not be tried before its first request: %s", number, error)
    return loaded


def _signature(name: str, definition: Any, about: Mapping[str, Any]) -> Signature:
    inputs = {key: _facts(one.dtype, one.tensor_shape) for key, one in sorted(definition.inputs.items())}
    outputs = {key: _facts(one.dtype, one.tensor_shape) for key, one in sorted(definition.outputs.items())}
    features = about.get("inputs", {})
    classes = {key: frozenset(one["classes"]) for key, one in features.items() if one.get("classes")}
    # What the manifest calls ragged goes in as two tensors, if the signature has both.
    ragged = {
        key for key, one in features.items() if one.get("ragged") and {key + VALUES, key + SPLITS} <= inputs.keys()
    }
    return Signature(name=name, inputs=inputs, outputs=outputs, ragged=frozenset(ragged), classes=classes)


def _facts(dtype: int, shape: Any) -> TensorFacts:
    sizes = None if shape.unknown_rank else tuple(None if dim.size < 0 else int(dim.size) for dim in shape.dim)
    return TensorFacts(dtype=str(tf.as_dtype(dtype).name), shape=sizes)


def _blank(name: str, facts: TensorFacts, signature: Signature) -> Array:
    feature = name.removesuffix(VALUES).removesuffix(SPLITS)
    feature = feature if feature in signature.ragged else name
    if feature != name and name.endswith(SPLITS):
        return np.array([0, 1], np.int64)
    shape = tuple(1 if size is None else size for size in facts.shape or ())
    if facts.dtype != "string":
        return np.zeros(shape, tf.as_dtype(facts.dtype).as_numpy_dtype)
    return np.full(shape, min(signature.classes.get(feature, [""])).encode(), object)


def _first_line(error: BaseException) -> str:
    """Return the first line of what TensorFlow says, without the names of its operations."""
    text = str(getattr(error, "message", error)).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:500]
