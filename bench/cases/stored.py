"""Fills a topic with so many records soon: one slice of the benchmark's records, batch by batch, again and again.

For cases that run a minute at full speed, where `produce.py` would take as long as they do. Prints one line of JSON.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import produce
from aiokafka import AIOKafkaProducer

BATCH_BYTES = 128 * 1024


def batches(producer: AIOKafkaProducer, form: str) -> list[Any]:
    """A slice of records as closed batches."""
    closed, now, at = [], int(time.time() * 1000), 0
    slice_ = next(produce.records(0, produce.SLICE, form))
    while at < len(slice_):
        batch = producer.create_batch()
        while at < len(slice_) and batch.append(key=None, value=slice_[at], timestamp=now) is not None:
            at += 1
        batch.close()
        closed.append(batch)
    return closed


async def fill(given: argparse.Namespace) -> int:
    """Write whole batches until there are enough records."""
    await produce.create(given.bootstrap, given.topic, given.partitions)
    on_their_way: deque[asyncio.Future[object]] = deque()
    async with AIOKafkaProducer(bootstrap_servers=given.bootstrap, max_batch_size=BATCH_BYTES, acks=1) as producer:
        closed, written, turn = batches(producer, given.format), 0, 0
        while written < given.records:
            batch = closed[turn % len(closed)]
            on_their_way.append(await producer.send_batch(batch, given.topic, partition=turn % given.partitions))
            written, turn = written + batch.record_count(), turn + 1
            if len(on_their_way) > produce.IN_FLIGHT:
                await on_their_way.popleft()
        await asyncio.gather(*on_their_way)
    return written


def main() -> None:
    """Read the options, fill, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--format", choices=["json", "raw"], default="raw")
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--partitions", type=int, default=4)
    given = parser.parse_args()
    began = time.perf_counter()
    written = asyncio.run(fill(given))
    print(json.dumps({"topic": given.topic, "records": written, "wall_s": round(time.perf_counter() - began, 3)}))


if __name__ == "__main__":
    main()
