"""The GPUs that NVIDIA's driver library shows: by a stand-in for that library, as there may be no GPU here.

The stand-in is a shared object of some lines of C with the library's functions and structures: what it answers is what
the test says, and it shows nothing of a real driver.
"""

import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from millrace.app.service.gpus import Driver, Gpus
from tests.training import gpu_check

STAND_IN = r"""
typedef struct { unsigned int gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;
static int opened = 0;
int nvmlInit_v2(void) { opened = 1; return 0; }
int nvmlShutdown(void) { opened = 0; return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = GPUS; return opened ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **gpu) { *gpu = (char *)0x7f0000000000 + index; return 0; }
int nvmlDeviceGetUtilizationRates(void *gpu, utilization *found) {
    if (gpu != (void *)0x7f0000000000) return 3;  /* not supported, as of a GPU in slices */
    found->gpu = 87, found->memory = 12;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *gpu, memory *found) {
    found->total = 85899345920ULL, found->used = 5000000000ULL, found->free = found->total - found->used;
    return opened ? 0 : 1;
}
"""
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="builds a stand-in for the driver's library by gcc")


def stand_in(folder: Path, gpus: int) -> str:
    source, library = folder / "driver.c", folder / f"libdriver{gpus}.so"
    source.write_text(STAND_IN)
    subprocess.run(["gcc", "-shared", "-fPIC", f"-DGPUS={gpus}", "-o", library, source], check=True)
    return str(library)


def watching() -> bool:
    return any(thread.name == "gpus" for thread in threading.enumerate())


@needs_gcc
def test_each_gpu_of_the_driver_is_shown_with_what_it_says_of_itself(tmp_path: Path) -> None:
    gpus = Gpus(stand_in(tmp_path, 2))
    gpus.start()
    deadline = time.monotonic() + 30
    while not (found := gpus.figures()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    gpus.stop()
    assert not watching()
    assert {number: one.utilization for number, one in found.items()} == {"0": 0.87, "1": None}
    assert {(one.memory_bytes, one.memory_total_bytes) for one in found.values()} == {(5_000_000_000, 80 * 2**30)}


@needs_gcc
def test_a_driver_without_a_gpu_is_not_watched(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="shows no GPU"):
        Driver(stand_in(tmp_path, 0))


@pytest.mark.parametrize("library", ["libno-such-driver.so.1", "libm.so.6"])
def test_nothing_is_watched_where_the_library_is_missing_or_another(library: str) -> None:
    gpus = Gpus(library)
    gpus.start()
    gpus.stop()
    assert not watching()
    assert not gpus.figures()


def test_the_check_of_gpus_says_that_there_is_none_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--library", "libno-such-driver.so.1"]) == 0
    assert capsys.readouterr().out == "no GPU\n"
