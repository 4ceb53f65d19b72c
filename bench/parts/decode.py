"""FROZEN REFERENCE: what decoding alone costs. Do not optimise it, and share no code with the product.

The topic's first records, held in memory in chunks of 4,096, are decoded again and again on one thread: the values
joined and read by `pyarrow.json` with a schema, or joined and read by `np.frombuffer`, into a float32 array [n, 28] of
features and one [n] of labels.

Timed: wall clock and CPU of the whole process, over whole chunks, after a warm-up of one pass over the chunks. Not
timed: imports and fetching. Prints one line of JSON: records, wall_s, cpu_s.
"""

import argparse
import asyncio
import gc
import itertools
import json
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.json
from aiokafka import AIOKafkaConsumer, TopicPartition

CHUNK = 4_096
CHUNKS = 24
FEATURES = 28
TIMEOUT_MS = 10_000

Decoded = tuple[np.ndarray, np.ndarray]

PARSE = pyarrow.json.ParseOptions(
    explicit_schema=pa.schema([("x", pa.list_(pa.float32())), ("y", pa.float32())]),
    unexpected_field_behavior="ignore",
)
READ = pyarrow.json.ReadOptions(use_threads=False, block_size=64 << 20)


def decode_json(values: list[bytes]) -> Decoded:
    """By pyarrow, over newline-joined values."""
    table = pyarrow.json.read_json(pa.py_buffer(b"\n".join(values)), read_options=READ, parse_options=PARSE)
    x = table.column("x").combine_chunks().values.to_numpy(zero_copy_only=False).reshape(-1, FEATURES)
    return x, table.column("y").to_numpy()


def decode_raw(values: list[bytes]) -> Decoded:
    """By numpy, over joined values."""
    table = np.frombuffer(b"".join(values), "<f4").reshape(-1, FEATURES + 1)
    return np.ascontiguousarray(table[:, :FEATURES]), np.ascontiguousarray(table[:, FEATURES])


async def fetch(bootstrap: str, topic: str) -> list[list[bytes]]:
    """The first chunks of the topic's values."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=None)
    await consumer.start()
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
    consumer.unsubscribe()
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    values: list[bytes] = []
    while len(values) < CHUNK * CHUNKS:
        polled = await consumer.getmany(timeout_ms=TIMEOUT_MS, max_records=CHUNK)
        if not polled:
            raise SystemExit(f"{topic} holds {len(values)} records, {CHUNK * CHUNKS} are needed")
        values.extend(record.value for chunk in polled.values() for record in chunk)
    await consumer.stop()
    return [values[at : at + CHUNK] for at in range(0, CHUNK * CHUNKS, CHUNK)]


def measure(chunks: list[list[bytes]], decode: Callable[[list[bytes]], Decoded], records: int) -> dict[str, float]:
    """Decode chunk after chunk until there are enough."""
    gc.collect()
    gc.freeze()
    for values in chunks:
        x, y = decode(values)
        if x.shape != (len(values), FEATURES) or y.shape != (len(values),):
            raise SystemExit(f"{len(values)} records decoded to {x.shape} and {y.shape}")
    seen, endless = 0, itertools.cycle(chunks)
    began, cpu = time.perf_counter(), time.process_time()
    while seen < records:
        x, _ = decode(next(endless))
        seen += len(x)
    return {"records": seen, "wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--format", choices=["json", "raw"], required=True)
    parser.add_argument("--records", type=int, default=1_000_000)
    given = parser.parse_args()
    chunks = asyncio.run(fetch(given.bootstrap, given.topic))
    print(json.dumps(measure(chunks, decode_json if given.format == "json" else decode_raw, given.records)))


if __name__ == "__main__":
    main()
