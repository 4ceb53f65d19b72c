"""Draws digits and writes them to a topic: each shifted, turned, slanted, thick or thin, and noisy in its own way.

    python examples/digits/produce.py --count 100000

A record is 401 bytes: 20 rows of 20 grey values, then the digit.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Iterator

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, UnknownTopicOrPartitionError

SIZE = 20
CHUNK = 500
# Five by seven, a row a line.
SHAPES = """
.###. ..#.. .###. ##### ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# ...#. ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ..#.. .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ...#. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# .#... #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..
"""
ROWS, COLUMNS = 7, 5


def shapes() -> np.ndarray:
    """Return the ten digits as numbers from 0 to 1, with an empty border: [10, 9, 7]."""
    drawn = np.array([[list(shape) for shape in line.split()] for line in SHAPES.split("\n") if line]) == "#"
    return np.pad(drawn.transpose(1, 0, 2).astype(np.float32), ((0, 0), (1, 1), (1, 1)))


def drawings(seed: int) -> Iterator[list[bytes]]:
    """Give chunks of records without end, the same for the same seed."""
    random = np.random.default_rng(seed)
    known = shapes()
    while True:
        digits = random.integers(0, 10, CHUNK).astype(np.uint8)
        ink = _seen(known[digits], *_looks(random))
        contrast = random.uniform(120, 230, (CHUNK, 1, 1))
        noise = random.normal(0, 18, (CHUNK, SIZE, SIZE))
        images = np.clip(20 + contrast * ink + noise, 0, 255).astype(np.uint8)
        yield [image.tobytes() + digit.tobytes() for image, digit in zip(images, digits, strict=True)]


def _looks(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return for each image which place of the shape each of its pixels shows: rows and columns, [n, SIZE, SIZE]."""
    turn, slant = random.normal(0, 0.12, CHUNK), random.normal(0, 0.15, CHUNK)
    height, width = random.uniform(12, 16, CHUNK), random.uniform(8, 12, CHUNK)
    down, right = random.uniform(-2, 2, (2, CHUNK))
    row, column = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    row = row[None] - down[:, None, None]
    column = column[None] - right[:, None, None]
    cos, sin = np.cos(turn)[:, None, None], np.sin(turn)[:, None, None]
    turned_row, turned_column = cos * row - sin * column, sin * row + cos * column
    rows = turned_row * (ROWS / height)[:, None, None] + (ROWS + 1) / 2
    columns = (turned_column + slant[:, None, None] * turned_row) * (COLUMNS / width)[:, None, None] + (COLUMNS + 1) / 2
    return rows, columns


def _seen(shape: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the ink at those places, interpolated between the four cells around each; none outside."""
    rows, columns = np.clip(rows, 0, ROWS + 0.999), np.clip(columns, 0, COLUMNS + 0.999)
    top, left = rows.astype(int), columns.astype(int)
    below, beside = rows - top, columns - left
    each = np.arange(len(shape))[:, None, None]
    upper = shape[each, top, left] * (1 - beside) + shape[each, top, left + 1] * beside
    lower = shape[each, top + 1, left] * (1 - beside) + shape[each, top + 1, left + 1] * beside
    ink: np.ndarray = upper * (1 - below) + lower * below
    return ink


async def produce(bootstrap: str, topic: str, seed: int, count: int | None) -> int:
    """Write `count` records, or without end; return how many were written."""
    written = 0
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20)
    try:
        await producer.start()
        if topic not in (await producer.client.fetch_all_metadata()).topics():
            raise UnknownTopicOrPartitionError  # `send` would wait 40 s for it
        for chunk in drawings(seed):
            wanted = chunk if count is None else chunk[: count - written]
            await asyncio.gather(*[await producer.send(topic, value) for value in wanted])
            written += len(wanted)
            if written == count:
                break
    finally:
        await producer.stop()
    return written


def main() -> None:
    """Read the options and write."""
    parser = argparse.ArgumentParser(description="Write drawn digits to a topic.")
    bootstrap = os.environ.get("MILLRACE_KAFKA__BOOTSTRAP_SERVERS", "localhost:9092")
    parser.add_argument("--bootstrap", default=bootstrap, help="a broker, host:port")
    parser.add_argument("--topic", default="digits", help="the topic to write to; it must be there")
    parser.add_argument("--count", type=int, help="how many records; without it, until Ctrl-C")
    parser.add_argument("--seed", type=int, default=0, help="draws other digits by the same rule")
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would log is the line below
    try:
        written = asyncio.run(produce(options.bootstrap, options.topic, options.seed, options.count))
    except KeyboardInterrupt:
        return
    except KafkaConnectionError:
        sys.exit(
            f"no Kafka answers at {options.bootstrap}; `millrace local broker` starts one, --bootstrap names another"
        )
    except UnknownTopicOrPartitionError:
        where = f"--bootstrap-servers {options.bootstrap} --topic {options.topic}"
        create = f"`millrace local produce {where} --create --partitions 4 /dev/null` creates it"
        sys.exit(f"topic {options.topic} is not at {options.bootstrap}; {create}")
    except KafkaError as error:
        sys.exit(f"{options.bootstrap}, topic {options.topic}: {str(error) or type(error).__name__}")
    sys.stderr.write(f"wrote {written:,} records to {options.topic}\n")


if __name__ == "__main__":
    main()
