"""How much faster two workers of a tf.data service are than one, each on a core of its own, with an expensive map.

Two services of real processes: one with a worker on the first core, one with two workers on the first and the second.
Each prepares the same TFRecord files by a `preprocess` that costs a third of a second or more for 1,024 rows. The files
are many and small, as a worker that has no file left waits for the other one: at the end of an epoch for half a second
at most. This process only takes the blocks and counts every row, on either core; `consumer_cores` says what that costs,
and on a machine of two cores the two workers bear it.

The services take turns, some rounds; the ratio is taken inside a round, and the median is the figure. `cpu_kept` is the
rows of a worker's CPU second, of two over one: near 1 while the rates' ratio is low, it says that others took the cores
meanwhile, as `others_cores` does.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from pretrain import made, write_examples
from rig import ROOT, STATE, cpu_s, other_work_s, report, settings_of

from millrace.app.tools.pretrain.inputs import InputOptions, reader_of, served, training_blocks
from millrace.app.tools.pretrain.shard_sources import ShardSource, from_files
from millrace.pipelines.files.service_dataset import ServiceJob
from millrace.pipelines.files.visits import Refusals, Visits

SHARD_ROWS, TURNS = 512, 6_000
START_S = 120.0
COMMAND = (sys.executable, "-c", "from millrace.app.cli import main; main()", "data-service")


def preprocess(features: Any, label: Any, weight: Any) -> Any:
    """Take long: a row through many small layers."""
    mix = tf.random.stateless_normal([28, 28], [1, 2]) / 28.0
    x = tf.while_loop(lambda i, _: i < TURNS, lambda i, x: (i + 1, tf.tanh(x @ mix)), (0, features["x"]))[1]
    return {**features, "x": x}, label, weight


@contextmanager
def server(core: int | None, log: Path, *arguments: str) -> Iterator[tuple[str, int]]:
    """A dispatcher or a worker, on one core: where it serves, and its process."""
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
        yield found[1], process.pid
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Epoch:
    """What an epoch took, from its begin to its end."""

    rows: int
    seconds: float
    workers_s: float
    """CPU seconds of all workers."""
    consumer_s: float
    others_s: float
    """CPU seconds of everything else on this machine."""


class Served:
    """A service and what it prepares."""

    def __init__(self, stack: ExitStack, folder: Path, cores: list[int], source: ShardSource) -> None:
        name = f"{folder}/{len(cores)}"
        self.address, dispatcher = stack.enter_context(server(None, Path(f"{name}-d"), "dispatcher", "--port", "0"))
        self.workers = [
            stack.enter_context(server(core, Path(f"{name}-w{core}"), "worker", "--dispatcher", self.address))[1]
            for core in cores
        ]
        self.all = (os.getpid(), dispatcher, *self.workers)
        self.settings, self.source = settings_of("higgs_json", {}).settings, source

    def epoch(self, source: ShardSource) -> Epoch:
        """Take an epoch: all of its rows, or it fails."""
        refusals, visits = Refusals(), Visits(source.shards)
        local = reader_of(source, self.settings, refusals)
        reader = served(local, source, self.settings, ServiceJob(address=self.address), preprocess, refusals)
        blocks = training_blocks(reader, source, self.settings, InputOptions(shuffle=0), None)
        began, others_s = time.monotonic(), other_work_s(*self.all)
        workers_s, consumer_s = sum(map(cpu_s, self.workers)), cpu_s(os.getpid())
        for rows in blocks.epoch(0):
            offsets, shards = rows.offsets.numpy(), rows.partitions.numpy()
            visits.add(shards[offsets >= 0], offsets[offsets >= 0])
        epoch = Epoch(
            rows=source.rows,
            seconds=time.monotonic() - began,
            workers_s=sum(map(cpu_s, self.workers)) - workers_s,
            consumer_s=cpu_s(os.getpid()) - consumer_s,
            others_s=other_work_s(*self.all) - others_s,
        )
        visited = visits.ended(refusals.of)
        if not visited.all:
            raise SystemExit(str(visited))
        return epoch


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two workers need two cores")
    STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-service-", dir=STATE) as temporary, ExitStack() as stack:
        folder = Path(temporary)
        x, y = made(given.rows)
        source = from_files(write_examples(folder / "files", x, y, max(4, given.rows // SHARD_ROWS)))
        services = [Served(stack, folder, cores[:1], source), Served(stack, folder, cores, source)]
        for each in services:  # the first epoch of a worker builds what it keeps
            each.epoch(replace(source, shards=source.shards[:4]))
        rounds: list[tuple[Epoch, Epoch]] = []
        for number in range(given.rounds):
            found = {place: services[place].epoch(source) for place in ((0, 1), (1, 0))[number % 2]}
            rounds.append((found[0], found[1]))
    every = [epoch for both in rounds for epoch in both]
    report(
        {"two_over_one": median(one.seconds / two.seconds for one, two in rounds)},
        {
            "one_rows_per_s": round(median(one.rows / one.seconds for one, _ in rounds)),
            "two_rows_per_s": round(median(two.rows / two.seconds for _, two in rounds)),
            "cpu_kept": median(one.workers_s / two.workers_s for one, two in rounds),
            "consumer_cores": median(two.consumer_s / two.seconds for _, two in rounds),
            "others_cores": median(epoch.others_s / epoch.seconds for epoch in every),
        },
    )


def median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 3)


if __name__ == "__main__":
    main()
