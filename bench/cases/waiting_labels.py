"""Labels that wait, five million of them: the memory that they take, and how long a restart takes to read them again.

Records of one moment need the labels of a window, which all wait for them. A run learns the first records and ends.
Then one goes on from its checkpoint, with the labels and, in turns, with hardly any. Time is that of the clock, of the
whole process; memory is the most that each process had, and the difference is that of the labels.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np
from joined_streams import Logs, fill
from rig import STATE, report

PARTITIONS, FIRST, THEN = 4, 1_000, 1_000
"""Partitions of both topics; records of a partition that the first run learns, and the second one."""
WITHIN_MS, EARLY_MS = 3_600_000, 1_000
MODEL = """
import keras

def build_model():
    x = keras.Input((4,), name="x")
    model = keras.Model({"x": x}, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile(optimizer="sgd", loss="binary_crossentropy")
    return model
"""
RUN = "from millrace.app.cli import main; main()"


def impressions(began: int) -> Logs:
    """Return records of a moment."""
    values = [json.dumps({"id": f"i{at}", "x": [0.5, 1.0, at % 7, at % 3]}).encode() for at in range(FIRST + THEN)]
    return [[(began, b"", value) for value in values]] * PARTITIONS


def clicks(began: int, count: int) -> Logs:
    """Return labels within the window of the records, as evenly as they come, and one of nobody behind it."""
    random, each = np.random.default_rng(7), count // PARTITIONS
    behind = (began + WITHIN_MS + 10 * EARLY_MS, b"", b'{"id": "nobody", "y": 0.0}')
    logs: Logs = []
    for _ in range(PARTITIONS):
        keys, step = random.integers(0, 2**63, each).tolist(), WITHIN_MS / max(1, each)
        log = [(began + int(at * step), b"", b'{"id": "%016x", "y": 1.0}' % key) for at, key in enumerate(keys)]
        logs.append([*log, behind])
    return logs


def project(folder: Path, bootstrap: str, topics: tuple[str, str]) -> Path:
    """Write a project that joins both topics, and return its config."""
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    config = folder / "millrace.yaml"
    settings = {
        "name": "waiting",
        "kafka": {"bootstrap_servers": [bootstrap], "topics": [topics[0]], "start": "earliest"},
        "records": {"features": {"x": {"dtype": "float32", "shape": [4]}}, "label": {}},
        "labels": {
            "topics": [topics[1]],
            "join": {"record": "id"},
            "label": {"y": {"dtype": "float32", "absent": 0.0}},
            "within": f"{WITHIN_MS}ms",
            "early": f"{EARLY_MS}ms",
            "on_silence": "absent",
        },
        "model": {"build": "model.py:build_model"},
        "checkpoints": {"path": str(folder / "checkpoints")},
        "api": {"listen": "127.0.0.1:0"},
    }
    config.write_text(json.dumps(settings))
    return config


def ran(config: Path, topic: str, until: int) -> tuple[float, int]:
    """Run up to an offset of each partition; return the seconds and the most bytes of memory that it took."""
    ends = ",".join(f"{topic}:{number}={until}" for number in range(PARTITIONS))
    began, log, most = time.monotonic(), config.with_name("log"), 0
    with log.open("w") as said:
        words = [sys.executable, "-c", RUN, "run", "-c", str(config), "--until", ends]
        process = subprocess.Popen(words, stdout=said, stderr=said)
        while process.poll() is None:
            most = max(most, high_water(process.pid))
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"the run failed:\n{log.read_text()[-3000:]}")
    return time.monotonic() - began, most


def high_water(pid: int) -> int:
    """Return the most bytes of memory that a process had so far; 0 where it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--labels", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    began, name = round(time.time() * 1000) - 6 * 3_600_000, f"bench-waiting-{uuid.uuid4().hex[:8]}"
    asyncio.run(fill(given.bootstrap, name, impressions(began)))
    counts = {"plain": 0, "waiting": given.labels}
    with tempfile.TemporaryDirectory(prefix="waiting-", dir=STATE) as folder:
        configs = dict[str, Path]()
        for kind, count in counts.items():
            asyncio.run(fill(given.bootstrap, f"{name}-{kind}", clicks(began, count)))
            configs[kind] = project(Path(folder) / kind, given.bootstrap, (name, f"{name}-{kind}"))
            ran(configs[kind], name, FIRST)
            shutil.copytree(configs[kind].parent / "checkpoints", configs[kind].parent / "first")
        rounds = []
        for _ in range(given.rounds):
            found = {}
            for kind, config in configs.items():
                shutil.rmtree(config.parent / "checkpoints")
                shutil.copytree(config.parent / "first", config.parent / "checkpoints")
                found[kind] = ran(config, name, FIRST + THEN)
            rounds.append(found)
    more = [tuple(map(float.__sub__, map(float, one["waiting"]), map(float, one["plain"]))) for one in rounds]
    seconds, nbytes = (statistics.median(each) for each in zip(*more, strict=True))
    report(
        {"waiting_labels_5m_bytes": round(nbytes), "waiting_labels_restart_s": round(seconds, 2)},
        {"restart_s": {kind: [round(one[kind][0], 2) for one in rounds] for kind in counts}},
    )


if __name__ == "__main__":
    main()
