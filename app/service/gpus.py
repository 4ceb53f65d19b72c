"""GPUs: how busy they are and how much memory is taken, by NVIDIA's driver library (NVML).

Owns the thread `gpus`, where that library is and has a GPU: it asks once a second, since an answer may take
milliseconds, and keeps a minute. It has nothing to fill, and ends with the service. The library is that of the driver,
so nothing has to be installed for it; of a GPU in MIG slices it does not say how busy it is.
"""

import ctypes
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from statistics import fmean

from millrace.app.service.figures import GpuFigures

log = logging.getLogger(__name__)
LIBRARY = "libnvidia-ml.so.1"
_EVERY_S, _KEPT_S = 1.0, 60
_STOP_S = 5.0


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Driver:
    """The driver's library: every GPU that it shows to this process, by number."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Raise OSError where there is no library, or it shows no GPU."""
        self._nvml = ctypes.CDLL(library)
        count = ctypes.c_uint()
        self._ask("nvmlInit_v2")
        self._ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
        if not count.value:
            raise OSError(f"{library} shows no GPU")
        self.gpus = [ctypes.c_void_p() for _ in range(count.value)]
        for number, gpu in enumerate(self.gpus):
            self._ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number), ctypes.byref(gpu))

    def busy(self, number: int) -> float | None:
        """Return the share of the last moments in which the GPU computed; None where it does not say."""
        found = _Utilisation()
        try:
            self._ask("nvmlDeviceGetUtilizationRates", self.gpus[number], ctypes.byref(found))
        except OSError:
            return None
        return float(found.gpu) / 100

    def memory(self, number: int) -> tuple[int, int]:
        """Return the bytes of the GPU's memory that are taken, by any process, and all of them."""
        found = _Memory()
        self._ask("nvmlDeviceGetMemoryInfo", self.gpus[number], ctypes.byref(found))
        return int(found.used), int(found.total)

    def close(self) -> None:
        """Let the library go."""
        self._ask("nvmlShutdown")

    def _ask(self, name: str, *arguments: object) -> None:
        if (code := getattr(self._nvml, name)(*arguments)) != 0:
            raise OSError(f"{name} answers {code}")


class Gpus:
    """Watches the GPUs, if there are any."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = library
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._now: Mapping[str, GpuFigures] = {}
        """Replaced as a whole by the thread."""

    def start(self) -> None:
        """Begin to ask, where there is something to ask."""
        try:
            driver = Driver(self._library)
        except (OSError, AttributeError) as error:  # a library without one of these functions is another one
            log.debug("no GPU is watched: %s", error)
            return
        # A daemon, because a driver that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._watch, args=(driver,), name="gpus", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for that for some seconds."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def figures(self) -> Mapping[str, GpuFigures]:
        """Return what was found last, by the GPU's number; nothing where there is no GPU."""
        return self._now

    def _watch(self, driver: Driver) -> None:
        seen = [deque[float](maxlen=_KEPT_S) for _ in driver.gpus]
        try:
            while True:
                self._now = dict(_look(driver, seen))
                if self._stopping.wait(_EVERY_S):
                    break
            driver.close()
        except OSError as error:
            self._now = {}
            log.warning("GPUs are no longer watched: %s; a restart watches them again", error)


def _look(driver: Driver, seen: list[deque[float]]) -> Iterator[tuple[str, GpuFigures]]:
    for number, before in enumerate(seen):
        if (busy := driver.busy(number)) is not None:
            before.append(busy)
        used, total = driver.memory(number)
        share = fmean(before) if before else None
        yield str(number), GpuFigures(utilization=share, memory_bytes=used, memory_total_bytes=total)
