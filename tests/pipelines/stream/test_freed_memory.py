"""Freed memory stays in a process that learns, whatever TensorFlow's own setting is."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(sys.platform != "linux", reason="the settings are those of glibc"),
]
_ROOT = Path(__file__).parents[3]
_PROGRAM = """
import resource, threading
from millrace.pipelines.stream.dataset import DatasetOptions, make_dataset
from millrace.pipelines.stream.feed import Tick
from millrace.pipelines.schema import Field, Schema

class Ticks:
    error = None
    def __iter__(self):
        yield Tick()
        yield Tick()

schema = Schema(features=(Field(name="x", source="x", dtype="float32"),), labels=())
elements = iter(make_dataset(Ticks(), schema, DatasetOptions(batch_size=4)))
next(elements)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    source = bytes(2**20)
    before = faults()
    for _ in range(200):
        copy = bytearray(source)
        other = bytes(copy)
        del copy, other
    print((faults() - before) / 200)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_a_megabyte_freed_beside_a_dataset_is_used_again_without_page_faults() -> None:
    """Run in a process of its own, because the settings stay. Without them each megabyte costs 256 faults and more."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120, check=True, cwd=_ROOT
    )
    assert float(done.stdout) < 50
