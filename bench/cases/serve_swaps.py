"""What a client of `millrace serve` notices of a swap: no request fails, and the slowest of a hundred is hardly slower.

A real server on one folder, clients in this process that ask at a fixed rate over connections that stay open, and a new
version every second while it swaps: far more often than anyone exports, so that a third of all requests come while a
version is loaded. Times with swaps and times without, half as long, take turns, as others on this machine are in both.
Every answer is checked: it is that of the version that the answer names. The model is a stack of three dense layers of
256 on 28 features, as the other cases have.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from rig import ROOT, STATE, other_work_s, report

from millrace.training.checkpoints.exports.version_folder import ExportDraft, ExportProof, ExportSource, VersionFolder

NAME, FEATURES = "swaps", 28
CLIENTS, RATE = 4, 80
"""Requests a second of all clients: about a third of what the server can answer on one core."""
SWAP_EVERY_S = 1.0
SETTLE_S = 3.0
START_S = 120.0
PARTS = 10
CONFIG = """\
name: swaps
kafka:   {bootstrap_servers: [localhost:9092], topics: [swaps]}
records: {features: {x: {dtype: float32, shape: [28]}}, label: {y: float32}}
model:   {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
serve: {exports: ./exports/swaps, listen: "127.0.0.1:0", poll: 100ms}
"""


class Stack(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
    """Three dense layers, and the version's number beside what they say."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (FEATURES, 256, 256, 256, 1)
        random = np.random.default_rng(7)
        self.weights = [tf.Variable(random.normal(0, 0.1, shape).astype(np.float32)) for shape in pairwise(sizes)]
        self.number = tf.Variable(0.0)

    @tf.function(  # type: ignore[untyped-decorator]  # as above
        input_signature=[tf.TensorSpec([None, FEATURES], tf.float32, "x")]
    )
    def answer(self, x: Any) -> dict[str, Any]:
        for matrix in self.weights[:-1]:
            x = tf.nn.relu(x @ matrix)
        return {"y": tf.sigmoid(x @ self.weights[-1]), "number": tf.repeat(self.number, tf.shape(x)[0])}


class Exporter:
    """Publishes versions of one model, each with its own number in it, before they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._model, self._stock = VersionFolder(folder / "exports" / NAME), Stack(), folder / "stock"
        self.number = 0
        self._made: list[Path] = []

    def prepare(self, count: int) -> None:
        """Write so many versions aside: saving one costs this process more than serving it costs the server."""
        for _ in range(count):
            number = self.number + len(self._made) + 1
            self._model.number.assign(float(number))
            place = self._stock / str(number)
            tf.saved_model.save(
                self._model, str(place), {"serving_default": self._model.answer.get_concrete_function()}
            )
            self._made.append(place)

    def publish(self) -> None:
        """Publish the next one, and keep three."""
        self.number += 1
        source = ExportSource(number=self.number, incarnation=1, parent=None, sha256="")
        draft = ExportDraft(
            name=NAME,
            number=self.number,
            checkpoint=source,
            positions={},
            records=0,
            metrics={},
            inputs={},
            outputs={},
            classes={},
            tensorflow=tf.__version__,
            keras="",
            proof=ExportProof(rows=0, records="kept", max_difference=0.0, tolerance=0.0),
            made_at="2026-11-23T00:00:00Z",
            config_sha256="",
            model_sha256="",
            schema_sha256="",
            millrace="",
        )
        with self._folder.writing(5.0):
            written = self._folder.draft_folder(self.number)
            shutil.copytree(self._made.pop(0), written)
            self._folder.publish(written, draft)
            self._folder.prune(3)


@dataclass
class Load:
    """Clients that ask at a fixed rate, and what became of their requests."""

    port: int
    seconds: list[tuple[float, float]] = field(default_factory=list)
    """When each began, and how long it took: from when it was due, so that a slow answer delays no other's clock."""
    failed: list[str] = field(default_factory=list)
    versions: set[int] = field(default_factory=set)
    ended: bool = False

    def ask(self, client: int) -> None:
        """Ask until the end. The thread of one client."""
        body = json.dumps({"instances": [[0.5] * FEATURES]})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        due = time.monotonic() + client / RATE
        while not self.ended:
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                connection.request("POST", f"/v1/models/{NAME}:predict", body)
                answer = connection.getresponse()
                said, version = json.loads(answer.read()), answer.headers["millrace-version"]
                if answer.status == 200 and said["predictions"][0]["number"] == float(version):
                    self.versions.add(int(version))
                else:
                    self.failed.append(f"{answer.status} {version} {said}")
            except Exception as error:  # noqa: BLE001 - whatever it is, a client has seen it
                self.failed.append(repr(error))
                connection.close()
            self.seconds.append((due, time.monotonic() - due))
            due = max(due + CLIENTS / RATE, time.monotonic() - 1.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ask on a thread a client."""
        threads = [threading.Thread(target=self.ask, args=(client,)) for client in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.ended = True
            for thread in threads:
                thread.join()

    def between(self, spans: list[tuple[float, float]]) -> list[float]:
        """Return the seconds of the requests that were due in these spans."""
        return [took for due, took in self.seconds if any(begin <= due < end for begin, end in spans)]


@contextmanager
def server(folder: Path) -> Iterator[tuple[int, int]]:
    """A server of the folder: its port, and its process."""
    config, log = folder / "swaps.yaml", folder / "log"
    config.write_text(CONFIG)
    command = [sys.executable, "-c", "from millrace.app.cli import main; main()", "serve", "-c", str(config)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, cwd=ROOT)
    try:
        deadline = time.monotonic() + START_S
        while "answers now" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(log.read_text())
            time.sleep(0.05)
        found = re.search(r"answering on http://[^:]+:(\d+)", log.read_text())
        assert found is not None
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        if process.wait(60) != 0:
            raise SystemExit(log.read_text())


def ms_at(share: float, seconds: list[float]) -> float:
    """The milliseconds within which this share of the requests was answered."""
    return float(np.quantile(seconds, share)) * 1000


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swaps", type=int, default=100)
    given = parser.parse_args()
    parts = min(PARTS, given.swaps)
    STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="serve-", dir=STATE) as temporary:
        folder = Path(temporary)
        exporter = Exporter(folder)
        exporter.prepare(given.swaps + 1)
        exporter.publish()
        with server(folder) as (port, pid):
            load = Load(port)
            swapping: list[tuple[float, float]] = []
            quiet: list[tuple[float, float]] = []
            with load.running():
                time.sleep(SETTLE_S)
                began, others_s = time.monotonic(), other_work_s(os.getpid(), pid)
                for part in range(parts):
                    swaps = given.swaps * (part + 1) // parts - given.swaps * part // parts
                    spans = {}
                    for kind in (("quiet", "swapping"), ("swapping", "quiet"))[part % 2]:
                        since = time.monotonic()
                        for _ in range(swaps if kind == "swapping" else -(-swaps // 2)):
                            if kind == "swapping":
                                exporter.publish()
                            time.sleep(max(0.0, SWAP_EVERY_S - (time.monotonic() - since) % SWAP_EVERY_S))
                        spans[kind] = (since, time.monotonic())
                        time.sleep(SWAP_EVERY_S)  # what the last swap began is neither's
                    quiet.append(spans["quiet"])
                    swapping.append(spans["swapping"])
                took_s = time.monotonic() - began
                others_s = other_work_s(os.getpid(), pid) - others_s
            ratios = [
                ms_at(0.99, load.between([a])) / ms_at(0.99, load.between([b]))
                for a, b in zip(swapping, quiet, strict=True)
            ]
    if load.failed:
        sys.stderr.write("\n".join(load.failed[:10]) + "\n")
    if len(load.versions) < given.swaps * 0.9:
        raise SystemExit(f"only {len(load.versions)} versions answered, of {given.swaps}")
    busy, calm = load.between(swapping), load.between(quiet)
    report(
        {"failed": len(load.failed), "swap_p99_ratio": ms_at(0.99, busy) / ms_at(0.99, calm)},
        {
            "requests": len(load.seconds),
            "versions": len(load.versions),
            "p99_ms": ms_at(0.99, calm),
            "swap_p99_ms": ms_at(0.99, busy),
            "p50_ms": ms_at(0.5, calm),
            "swap_p50_ms": ms_at(0.5, busy),
            "swap_p99_ratio_median_of_parts": statistics.median(ratios),
            "others_cores": others_s / took_s,
        },
    )


main()
