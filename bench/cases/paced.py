"""Writes the benchmark's records at a steady rate, each with the time at which it was written (CreateTime), linger 0.

    python bench/cases/paced.py --bootstrap 127.0.0.1:9092 --topic bench-paced --format raw --rate 1000 --seconds 60

Slow streams go record by record, evenly spaced. Fast ones go in whole batches, one tick of 20 ms after another, the
partitions in turn. Prints one line of JSON at the end: records, the rate, and by how much it was late at the worst.
"""

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import produce
from aiokafka import AIOKafkaProducer

FAST = 5_000
"""Records a second from which they go in batches."""
TICK_S = 0.02
BATCH_BYTES = 128 * 1024


def values(form: str) -> Iterator[bytes]:
    """Records without end; the same ones again after a slice."""
    return itertools.cycle(next(produce.records(1, produce.SLICE, form)))


async def one_by_one(producer: AIOKafkaProducer, given: argparse.Namespace) -> tuple[int, float]:
    """Each at its own time."""
    endless, count, worst = values(given.format), round(given.rate * given.seconds), 0.0
    began, sent = time.perf_counter(), set()
    for number in range(count):
        late = await due(began + number / given.rate)
        worst = max(worst, late)
        now = int(time.time() * 1000)
        sending = await producer.send(given.topic, next(endless), partition=number % given.partitions, timestamp_ms=now)
        sent.add(sending)
        sending.add_done_callback(sent.discard)
    await asyncio.gather(*sent)
    return count, worst


async def in_batches(producer: AIOKafkaProducer, given: argparse.Namespace) -> tuple[int, float]:
    """A tick's worth at a time."""
    endless, total, written, worst, turn = values(given.format), round(given.rate * given.seconds), 0, 0.0, 0
    began, value = time.perf_counter(), next(endless)
    while written < total:
        late = await due(began + written / given.rate + TICK_S)
        worst = max(worst, late)
        upto = min(total, round((time.perf_counter() - began) * given.rate))
        while written < upto:
            now, batch = int(time.time() * 1000), producer.create_batch()
            while written < upto and batch.append(key=None, value=value, timestamp=now) is not None:
                written, value = written + 1, next(endless)
            batch.close()
            await producer.send_batch(batch, given.topic, partition=turn % given.partitions)
            turn += 1
    return written, worst


async def due(at: float) -> float:
    """Wait until then; by how much it is too late."""
    if (left := at - time.perf_counter()) > 0:
        await asyncio.sleep(left)
    return time.perf_counter() - at


async def write(given: argparse.Namespace) -> dict[str, float]:
    """Create the topic, write, tell."""
    await produce.create(given.bootstrap, given.topic, given.partitions)
    async with AIOKafkaProducer(
        bootstrap_servers=given.bootstrap, linger_ms=0, max_batch_size=BATCH_BYTES, acks=1
    ) as producer:
        await producer.partitions_for(given.topic)
        began = time.perf_counter()
        count, worst = await (in_batches if given.rate >= FAST else one_by_one)(producer, given)
        took = time.perf_counter() - began
    return {"records": count, "rate": round(count / took, 1), "worst_late_ms": round(worst * 1000, 1)}


def main() -> None:
    """Read the options, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--format", choices=["json", "raw"], default="raw")
    parser.add_argument("--rate", type=float, required=True, help="records a second")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--partitions", type=int, default=4)
    print(json.dumps(asyncio.run(write(parser.parse_args()))))


if __name__ == "__main__":
    main()
