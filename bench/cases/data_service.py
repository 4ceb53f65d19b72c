"""How much faster two workers of a tf.data service are than one, each on a core of its own, with an expensive map.

Two services of real processes: one with a worker on the first core, one with two workers on the first and the second.
Each prepares the same TFRecord files by a `preprocess` that costs a third of a second or more for 1,024 rows; this
process only takes the blocks and counts every row. The services take turns, some rounds; the ratio is taken inside a
round, and the median is the figure.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from pretrain import made, write_examples
from rig import ROOT, STATE, report, settings_of

from app.tools.pretrain.inputs import InputOptions, reader_of, served, training_blocks
from app.tools.pretrain.shard_sources import ShardSource, from_files
from pipelines.service_dataset import ServiceJob
from pipelines.visits import Refusals, Visits

SHARDS, TURNS = 32, 4_000
START_S = 120.0
COMMAND = (sys.executable, "-c", "from app.cli import main; main()", "data-service")


def preprocess(features: Any, label: Any, weight: Any) -> Any:
    """Take long: a row through many small layers."""
    mix = tf.random.stateless_normal([28, 28], [1, 2]) / 28.0
    x = tf.while_loop(lambda i, _: i < TURNS, lambda i, x: (i + 1, tf.tanh(x @ mix)), (0, features["x"]))[1]
    return {**features, "x": x}, label, weight


@contextmanager
def server(core: int | None, log: Path, *arguments: str) -> Iterator[str]:
    """A dispatcher or a worker, on one core; where it serves."""
    with log.open("wb") as file:
        process = subprocess.Popen((*COMMAND, *arguments), stderr=file, cwd=ROOT)
    if core is not None:  # before it has a thread beside its first one; those to come are bound too
        os.sched_setaffinity(process.pid, {core})
    try:
        deadline = time.monotonic() + START_S
        while (found := re.search(r"serves on (?:grpc://)?(localhost:\d+)", log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(log.read_text())
            time.sleep(0.05)
        yield found[1]
    finally:
        process.kill()
        process.wait()


class Served:
    """A service and what it prepares."""

    def __init__(self, stack: ExitStack, folder: Path, cores: list[int], source: ShardSource) -> None:
        name = f"{folder}/{len(cores)}"
        self.address = stack.enter_context(server(None, Path(f"{name}-d"), "dispatcher", "--port", "0"))
        for core in cores:
            log = Path(f"{name}-w{core}")
            stack.enter_context(server(core, log, "worker", "--dispatcher", self.address))
        self.settings, self.source = settings_of("higgs_json", {}).settings, source

    def rate(self) -> float:
        """Rows a second of an epoch, from its begin to its end; all of them, or it fails."""
        refusals, visits = Refusals(), Visits(self.source.shards)
        local = reader_of(self.source, self.settings, refusals)
        service = ServiceJob(address=self.address)
        reader = served(local, self.source, self.settings, service, preprocess, refusals)
        blocks = training_blocks(reader, self.source, self.settings, InputOptions(shuffle=0), None)
        began = time.monotonic()
        for rows in blocks.epoch(0):
            offsets, shards = rows.offsets.numpy(), rows.partitions.numpy()
            visits.add(shards[offsets >= 0], offsets[offsets >= 0])
        seconds = time.monotonic() - began
        visited = visits.ended(refusals.rows())
        if not visited.all:
            raise SystemExit(str(visited))
        return self.source.rows / seconds


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two workers need two cores")
    STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-service-", dir=STATE) as temporary, ExitStack() as stack:
        folder = Path(temporary)
        x, y = made(given.rows)
        source = from_files(write_examples(folder / "files", x, y, SHARDS))
        one, two = Served(stack, folder, cores[:1], source), Served(stack, folder, cores, source)
        few = source.part(slice(0, 4))
        for each in (one, two):  # the first epoch of a worker builds what it keeps
            each.source = few
            each.rate()
            each.source = source
        rates: dict[str, list[float]] = {"one": [], "two": []}
        for number in range(given.rounds):
            for name, each in ((("one", one), ("two", two)), (("two", two), ("one", one)))[number % 2]:
                rates[name].append(each.rate())
    ratios = [b / a for a, b in zip(rates["one"], rates["two"], strict=True)]
    report(
        {"two_over_one": round(statistics.median(ratios), 3)},
        {f"{name}_rows_per_s": round(statistics.median(found)) for name, found in rates.items()},
    )


if __name__ == "__main__":
    main()
