"""TensorFlow's native lines: what its C++ code prints while it is loaded becomes lines of the log.

TensorFlow prints some lines before it can be told not to, and looks for GPUs on machines that have none. While it is
loaded, file descriptor 2 is a temporary file; its lines are then logged: what is only informative at debug level, and
so is what is said about GPUs where none is expected. Afterwards descriptor 2 is stderr again, for good: a pipe and a
thread behind it would lose the last words of a process that crashes. For the same reason nothing is redirected where
loading is known to end the process, on an x86 without AVX, or where the environment sets TF_CPP_MIN_LOG_LEVEL itself.
"""

import contextlib
import logging
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path

from millrace.app.settings.environment import quiet_tensorflow, tensorflow_level_is_set

log = logging.getLogger(__name__)
_NATIVE = re.compile(
    r"(?P<short>[IWEF])\d{4} \d\d:\d\d:[\d.]+ +\d+ (?P<text>.*)"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: (?P<long>[IWEF]) (?P<rest>.*)"
)
_PREAMBLE = "WARNING: All log messages before absl::InitializeLog()"
_LEVELS = {"I": logging.DEBUG, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
_ABOUT_GPUS = re.compile(r"cuda|cudnn|cublas|cufft|cuinit|gpu|tensorrt|rocm", re.IGNORECASE)
_GPU_DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", "/dev/kfd")


def load_tensorflow() -> None:
    """Import TensorFlow and have it look for devices; log what it prints meanwhile, also where it raises."""
    redirects = not tensorflow_level_is_set() and _loads_here()
    quiet_tensorflow()
    with _logging_stderr() if redirects else contextlib.nullcontext():
        import_module("tensorflow").config.list_physical_devices()


@contextlib.contextmanager
def _logging_stderr() -> Iterator[None]:
    """Log what is written to file descriptor 2 in this block, when the block has ended."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            # There is a GPU's driver, or TensorFlow was installed with CUDA.
            expects_gpu = any(Path(driver).exists() for driver in _GPU_DRIVERS) or any(
                (found.name or "").startswith("nvidia-cuda-runtime") for found in distributions()
            )
            log_native(written.read().decode(errors="replace").splitlines(), expects_gpu=expects_gpu)


def log_native(lines: Iterable[str], *, expects_gpu: bool) -> None:
    """Log each line at its own level; a line that is not TensorFlow's continues the one before, or is a warning."""
    level = logging.WARNING
    for line in lines:
        if line.startswith(_PREAMBLE):
            level = logging.DEBUG
        elif match := _NATIVE.fullmatch(line):
            level = _LEVELS[match["short"] or match["long"]]
            if _ABOUT_GPUS.search(line) and not expects_gpu:
                level = logging.DEBUG
        if line.strip():
            log.log(level, "%s", line)


def _loads_here() -> bool:
    """Return whether this processor can run TensorFlow; without AVX it prints that and aborts."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return True
    try:
        return " avx " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
