"""What it costs to import `millrace.consumers`."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("millrace.consumers", ["aiokafka", "tensorflow"]),
        (
            "millrace.consumers.kafka.positions, millrace.consumers.dead_letters.letter, "
            "millrace.consumers.kafka.options, millrace.consumers.kafka.statistics",
            ["aiokafka", "tensorflow"],
        ),
        (
            "millrace.consumers.kafka.source, millrace.consumers.dead_letters.producer",
            ["tensorflow", "keras", "pyarrow"],
        ),
    ],
)
def test_an_import_loads_no_library_that_it_does_not_need(modules: str, absent: list[str]) -> None:
    program = f"import sys, {modules}; print(','.join(name for name in {absent!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
