"""What it costs to import `consumers`."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("consumers", ["aiokafka", "tensorflow"]),
        (
            "consumers.kafka.positions, consumers.dead_letters.letter, "
            "consumers.kafka.options, consumers.kafka.statistics",
            ["aiokafka", "tensorflow"],
        ),
        ("consumers.kafka.source, consumers.dead_letters.producer", ["tensorflow", "keras", "pyarrow"]),
    ],
)
def test_an_import_loads_no_library_that_it_does_not_need(modules: str, absent: list[str]) -> None:
    program = f"import sys, {modules}; print(','.join(name for name in {absent!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
