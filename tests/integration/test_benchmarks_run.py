"""A case of the benchmark runs from end to end: a service that learns, its figure, the report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_a_case_of_the_quick_round_writes_its_figure(broker: str, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "bench/run.py", "--quick", "--cases", "freshness", "--out", str(out)]
    done = subprocess.run(
        [*command, "--bootstrap", broker], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["figures"]["freshness_p99_ms"] > 0
