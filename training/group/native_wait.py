"""TensorFlow's wait for the other members, without the interpreter's lock.

Where the runtime connects the members, it waits for all of them, for up to an hour, and its Python binding holds the
interpreter's lock meanwhile: no probe is answered, no signal is seen, and no other thread could end the wait. So the
same function of its C interface is called here by ctypes, which releases the lock. Runs on the trainer's thread.
"""

import ctypes
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe  # what TensorFlow's own Python code calls

log = logging.getLogger(__name__)
_NAME = "TFE_EnableCollectiveOps"


@contextmanager
def other_threads_run() -> Iterator[None]:
    """Have the runtime wait for the others without the lock; with it where this TensorFlow has no such function."""
    held = getattr(pywrap_tfe, _NAME)
    try:
        setattr(pywrap_tfe, _NAME, _without_lock())
    except (OSError, AttributeError) as error:
        log.warning("no thread runs while the group meets: %s", error)
    try:
        yield
    finally:
        setattr(pywrap_tfe, _NAME, held)


def _without_lock() -> Callable[[Any, bytes], None]:
    folder = Path(tf.sysconfig.get_lib())
    runtime = ctypes.CDLL(str(folder / "libtensorflow_cc.so.2"))
    statuses = ctypes.CDLL(str(folder / "libtensorflow_framework.so.2"))
    connect = getattr(runtime, _NAME)
    connect.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    connect.restype = None
    statuses.TF_NewStatus.restype = ctypes.c_void_p
    statuses.TF_Message.restype = ctypes.c_char_p
    for function in (statuses.TF_GetCode, statuses.TF_Message, statuses.TF_DeleteStatus):
        function.argtypes = [ctypes.c_void_p]

    def called(context: Any, server: bytes) -> None:
        status = statuses.TF_NewStatus()
        try:
            connect(_pointer_in(context), server, len(server), status)
            if code := statuses.TF_GetCode(status):
                text = (statuses.TF_Message(status) or b"").decode(errors="replace")
                raise tf.compat.v1.errors.exception_type_from_error_code(code)(None, None, text)
        finally:
            statuses.TF_DeleteStatus(status)

    return called


def _pointer_in(capsule: Any) -> int:
    python = ctypes.pythonapi
    python.PyCapsule_GetName.restype, python.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return int(python.PyCapsule_GetPointer(capsule, python.PyCapsule_GetName(capsule)))
