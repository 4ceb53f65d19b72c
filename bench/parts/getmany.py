"""FROZEN REFERENCE: what fetching alone costs. Do not optimise it, and share no code with the product.

aiokafka's `getmany` in chunks of 4,000 records by `assign`, every record looked at once for its size and dropped. The
collector is frozen and off, as a careful user of aiokafka would have it; the rest are aiokafka's defaults.

Timed: wall clock and CPU of the whole process from the `getmany` that reaches `--warm-up` records to the one that
reaches `--records` more. Not timed: imports, connecting, the warm-up. The topic must hold more than is timed.
Prints one line of JSON: records, wall_s, cpu_s.
"""

import argparse
import asyncio
import gc
import json
import time

from aiokafka import AIOKafkaConsumer, TopicPartition

CHUNK = 4_000
TIMEOUT_MS = 10_000


async def assigned(bootstrap: str, topic: str) -> AIOKafkaConsumer:
    """A consumer at the beginning of all partitions."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=None)
    await consumer.start()
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
    consumer.unsubscribe()
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    return consumer


async def measure(bootstrap: str, topic: str, records: int, warm_up: int) -> dict[str, float]:
    """Fetch and count."""
    consumer = await assigned(bootstrap, topic)
    gc.collect()
    gc.freeze()
    gc.disable()
    seen, size = 0, 0
    first, began, cpu = 0, 0.0, 0.0
    while seen < warm_up + records or not first:
        polled = await consumer.getmany(timeout_ms=TIMEOUT_MS, max_records=CHUNK)
        if not polled:
            raise SystemExit(f"{topic} holds {seen} records, {warm_up + records} are needed")
        for chunk in polled.values():
            seen += len(chunk)
            size += sum(len(record.value) for record in chunk)
        if not first and seen >= warm_up:
            first, began, cpu = seen, time.perf_counter(), time.process_time()
    result = {
        "records": seen - first,
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "value_bytes": size / seen,
    }
    await consumer.stop()
    return result


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--warm-up", type=int, default=100_000)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.bootstrap, given.topic, given.records, given.warm_up))))


if __name__ == "__main__":
    main()
