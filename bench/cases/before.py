"""What decoding takes of the CPU beside an earlier tree: nested JSON and Avro, each tree's own script in turns.

The scripts are those of `nested_json_of_flat_json` and `avro_over_fastavro`, which both trees have: they make their
records up alike, and decode them in one thread.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rig import ROOT, report

AT_MOST_S = 300.0


class Script(NamedTuple):
    """What one tree is asked."""

    name: str
    rounds: int
    rate: Callable[[Mapping[str, Any]], float]
    """Takes the details that it printed; returns the records that it decodes in a CPU second."""


SCRIPTS = {
    "nested": Script("formats.py", 15, lambda details: details["json_records_a_cpu_s"]["nested"]),
    "avro": Script("decode_avro.py", 3, lambda details: details["avro_records_per_cpu_s"]),
}


def rate(tree: Path, script: Script) -> float:
    """Run a script of a tree, with the code of that tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(tree / "bench" / "cases" / script.name), "--rounds", str(script.rounds)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=AT_MOST_S, env=environment, cwd=tree, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{script.name} of {tree} failed (exit code {done.returncode}):\n{done.stderr[-3000:]}")
    return script.rate(json.loads(done.stdout.splitlines()[-1])["details"])


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="FOLDER", help="the earlier tree")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in SCRIPTS}
    before: Path = given.before.resolve()
    for turn in range(given.turns):
        for name, script in SCRIPTS.items():
            trees = (before, ROOT) if turn % 2 else (ROOT, before)
            found = {tree: rate(tree, script) for tree in trees}
            pairs[name].append((found[before], found[ROOT]))
    report(
        {
            f"{name}_over_before": round(statistics.median(now / then for then, now in each), 3)
            for name, each in pairs.items()
        },
        {"records_per_cpu_s_before_and_now": pairs},
    )


if __name__ == "__main__":
    main()
