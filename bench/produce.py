"""Fills a topic with the benchmark's records: 28 float32 features `x` and a label `y`, the same for the same seed.

    python bench/produce.py --bootstrap 127.0.0.1:9092 --topic bench-json --records 1000000 --format json

json is an object of 265 bytes, `{"x":[0.125730,-0.13210,…],"y":1}`, every number eight characters wide; raw is the same
numbers as 29 little-endian float32, features first. Everything but the handing over to the client is done on whole
arrays; records go out in whole batches, uncompressed, the partitions in turn, batch after batch.
"""

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

FEATURES = 28
SLICE = 50_000
"""Records made at once."""
RULE_SEED = 20_260_101
"""Every seed draws other records by the same rule, so that there is something to learn."""
IN_FLIGHT = 16
"""Batches on their way to the broker."""
WIDTH = 8
"""Characters of a number: 0.125730, or -0.13210."""


def records(seed: int, count: int, form: str) -> Iterator[list[bytes]]:
    """Slices of records, as bytes."""
    random = np.random.default_rng(seed)
    rule = np.random.default_rng(RULE_SEED).normal(0.0, 0.6, (2, FEATURES))
    encode = encode_json if form == "json" else encode_raw
    for begin in range(0, count, SLICE):
        x = written(random.normal(0.0, 1.0, (SLICE, FEATURES)))
        odds = x @ rule[0] + (x**2 - 1.0) @ (rule[1] / 3)
        y = random.random(SLICE) < 1.0 / (1.0 + np.exp(-odds))
        size = min(SLICE, count - begin)
        yield encode(x[:size], y[:size])


def written(x: Floats) -> Floats:
    """The values as JSON's eight characters hold them, so that both formats carry the same ones."""
    decimals = np.where(x < 0, 1e5, 1e6)
    return np.trunc(np.clip(x, -9.9, 9.9) * decimals) / decimals


def encode_raw(x: Floats, y: npt.NDArray[np.bool_]) -> list[bytes]:
    """Features, then the label, as little-endian float32."""
    table = np.column_stack([x, y]).astype("<f4")
    return _cut(table.view(np.uint8).reshape(len(x), -1))


def encode_json(x: Floats, y: npt.NDArray[np.bool_]) -> list[bytes]:
    """One object a record; all records are equally long, so they are the rows of one array of characters."""
    count = len(x)
    numbers = _numbers(x)
    commas = np.full((count, FEATURES, 1), ord(","), np.uint8)
    listed = np.concatenate([numbers, commas], axis=2).reshape(count, -1)[:, :-1]
    label = (y.astype(np.uint8) + ord("0"))[:, np.newaxis]
    return _cut(np.hstack([_text('{"x":[', count), listed, _text('],"y":', count), label, _text("}", count)]))


def _numbers(x: Floats) -> Bytes:
    """Numbers as eight characters each: [records, features, WIDTH]."""
    negative = x < 0
    digits = np.rint(np.abs(x) * 1e6).astype(np.int64)
    places = [(digits // 10**place % 10 + ord("0")).astype(np.uint8) for place in range(6, -1, -1)]
    point = np.full(x.shape, ord("."), np.uint8)
    minus = np.full(x.shape, ord("-"), np.uint8)
    plain = np.stack([places[0], point, *places[1:]], axis=-1)
    signed = np.stack([minus, places[0], point, *places[1:-1]], axis=-1)
    return np.where(negative[..., np.newaxis], signed, plain)


def _text(text: str, count: int) -> Bytes:
    return np.broadcast_to(np.frombuffer(text.encode(), np.uint8), (count, len(text)))


def _cut(table: Bytes) -> list[bytes]:
    """The rows of a table of bytes."""
    width, whole = table.shape[1], np.ascontiguousarray(table).tobytes()
    return [whole[at : at + width] for at in range(0, len(whole), width)]


async def create(bootstrap: str, topic: str, partitions: int) -> None:
    """Create the topic; one that exists is written to as it is."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1)])
    except TopicAlreadyExistsError:
        pass
    finally:
        await admin.close()


async def fill(options: argparse.Namespace) -> int:
    """Write all records; how many partitions there are."""
    await create(options.bootstrap, options.topic, options.partitions)
    on_their_way: deque[asyncio.Future[object]] = deque()
    producer = AIOKafkaProducer(
        bootstrap_servers=options.bootstrap, max_batch_size=options.batch_bytes, compression_type=None, acks=1
    )
    async with producer:
        partitions = sorted(await producer.partitions_for(options.topic))
        turn = 0
        for values in records(options.seed, options.records, options.format):
            now, at = int(time.time() * 1000), 0
            while at < len(values):
                batch = producer.create_batch()
                while at < len(values) and batch.append(key=None, value=values[at], timestamp=now) is not None:
                    at += 1
                batch.close()
                partition = partitions[turn % len(partitions)]
                on_their_way.append(await producer.send_batch(batch, options.topic, partition=partition))
                turn += 1
                if len(on_their_way) > IN_FLIGHT:
                    await on_their_way.popleft()
        await asyncio.gather(*on_their_way)
    return len(partitions)


def main() -> None:
    """Read the options, write, and say as JSON what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--format", choices=["json", "raw"], default="json")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-bytes", type=int, default=128 * 1024)
    options = parser.parse_args()
    began = time.perf_counter()
    partitions = asyncio.run(fill(options))
    wall_s = round(time.perf_counter() - began, 3)
    print(json.dumps({"topic": options.topic, "records": options.records, "partitions": partitions, "wall_s": wall_s}))


if __name__ == "__main__":
    main()
