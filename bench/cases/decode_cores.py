"""What decoding JSON in two processes would gain over two threads, each pinned to a core, at the very best.

The same chunks of 4,096 records are decoded by two threads of one process, as the product does, and by two processes
that share nothing and hand nothing over, so what shared memory would cost is not in it. In turns; the figure is the
median of the ratios of rates by the clock. With one core there is nothing to compare.
"""

import argparse
import multiprocessing as mp
import os
import statistics
import threading
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
from rig import report

from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import Decoder, make_decoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.decode import decode_chunk

WIDTH, CHUNK, PARTITION = 28, 4096, Partition("bench", 0)
SCHEMA = Schema(
    features=(Field(name="x", source="x", dtype="float32", shape=(WIDTH,)),),
    labels=(Field(name="y", source="y", dtype="float32"),),
)


def chunk() -> Chunk:
    """Make a chunk up, of the benchmark's records."""
    rows = np.random.default_rng(7).normal(size=(CHUNK, WIDTH))
    values = [b'{"x":[%s],"y":1}' % ",".join(f"{each:.6f}" for each in row).encode() for row in rows]
    return Chunk(
        partition=PARTITION,
        incarnation=1,
        start=0,
        end=CHUNK,
        offsets=np.arange(CHUNK),
        timestamps=np.arange(CHUNK),
        keys=[None] * CHUNK,
        values=values,
        headers=[()] * CHUNK,
        nbytes=sum(map(len, values)),
        fetched_at=0.0,
    )


def decode_on(core: int, times: int, chunk: Chunk, decoder: Decoder, starts: Any, ends: Any) -> None:
    """Decode a chunk again and again on one core, between two meetings with the others."""
    os.sched_setaffinity(threading.get_native_id(), {core})
    decode_chunk(chunk, decoder)
    starts.wait()
    for _ in range(times):
        decode_chunk(chunk, decoder)
    ends.wait()


def in_process(core: int, times: int, starts: Barrier, ends: Barrier) -> None:
    """Do it in a process of its own."""
    decode_on(core, times, chunk(), make_decoder("json", SCHEMA), starts, ends)


def seconds(starts: Any, ends: Any, workers: Sequence[Any]) -> float:
    """Start the workers; return how long they decoded."""
    for worker in workers:
        worker.start()
    starts.wait()
    began = time.perf_counter()
    ends.wait()
    took = time.perf_counter() - began
    for worker in workers:
        worker.join()
    return took


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunks", type=int, default=100, help="for each core, in each round")
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        report({}, {"cores": len(cores)})
        return
    spawn, records, decoder = mp.get_context("spawn"), chunk(), make_decoder("json", SCHEMA)
    ratios, rates = list[float](), dict[str, list[float]](threads=[], processes=[])
    for _ in range(given.rounds):
        starts, ends = threading.Barrier(3), threading.Barrier(3)
        shared = (given.chunks, records, decoder, starts, ends)
        by_threads = seconds(starts, ends, [threading.Thread(target=decode_on, args=(at, *shared)) for at in cores])
        begin, end = spawn.Barrier(3), spawn.Barrier(3)
        own = (given.chunks, begin, end)
        by_processes = seconds(begin, end, [spawn.Process(target=in_process, args=(at, *own)) for at in cores])
        ratios.append(by_threads / by_processes)
        rates["threads"].append(2 * given.chunks * CHUNK / by_threads)
        rates["processes"].append(2 * given.chunks * CHUNK / by_processes)
    report(
        {},
        {
            "processes_over_threads": round(statistics.median(ratios), 3),
            "records_per_s": {how: round(statistics.median(found)) for how, found in rates.items()},
        },
    )


if __name__ == "__main__":
    main()
