"""Where a proof was made, and with what."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_CPUS = Path("/proc/cpuinfo")


def machine() -> dict[str, Any]:
    """Return the machine, the commit and the versions that matter."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    lines = _CPUS.read_text().splitlines() if _CPUS.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "commit": commit.stdout.strip() or None,
        "cpu": models[0] if models else platform.processor(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": {name: version(name) for name in ("tensorflow", "keras", "aiokafka")},
    }
