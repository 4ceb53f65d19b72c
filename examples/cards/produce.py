"""Writes payments by cards, some of which are stolen: a thief pays eight times, fast, and at any merchant.

    python examples/cards/produce.py --rate 500
    python examples/cards/produce.py --ask http://localhost:8501    asks a server before each fiftieth payment

The amounts are the same as of honest payments, so one payment alone tells next to nothing. The key of a record is its
card, so the payments of a card are in one partition, in their sequence.
"""

import argparse
import asyncio
import contextlib
import heapq
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, UnknownTopicOrPartitionError

CARDS, MERCHANTS = 20_000, 300
USUAL = 3
"""How many merchants a card is used at."""
STOLEN, TIMES = 0.005, 8
"""The share of honest payments behind which a card is stolen, and how often a thief pays."""
SOONEST_S, LATEST_S = 0.5, 3.0
"""Between two payments of a thief; an honest card rests for most of a minute."""


def payments(seed: int, rate: float, began_s: float) -> Iterator[tuple[bytes, bytes]]:
    """Give keys and records without end; the same for the same seed, but for the time."""
    random = np.random.default_rng(seed)
    usual = random.integers(0, MERCHANTS, (CARDS, USUAL))
    thieves = list[tuple[float, int, int]]()
    """When each pays next, by which card, and how often still."""
    number = 0
    while True:
        now = number / rate
        stolen = bool(thieves) and thieves[0][0] <= now
        if stolen:
            _, card, times = heapq.heappop(thieves)
            merchant = int(random.integers(MERCHANTS))
        else:
            card = int(random.integers(CARDS))
            merchant = int(usual[card, random.integers(USUAL)])
            times = TIMES + 1 if random.random() < STOLEN else 0
        if times > 1:
            heapq.heappush(thieves, (now + random.uniform(SOONEST_S, LATEST_S), card, times - 1))
        record: dict[str, Any] = {
            "card": f"card-{card}",
            "amount": round(float(random.lognormal(3.0, 0.8)), 2),
            "merchant": f"shop-{merchant}",
            "at": round((began_s + now) * 1000),
            "fraud": float(stolen),
        }
        number += 1
        yield record["card"].encode(), json.dumps(record).encode()


def theft(card: str) -> Iterator[tuple[bytes, bytes]]:
    """Give some payments of a thief, the last of them a second ago."""
    for number in range(TIMES // 2):
        at = round((time.time() - TIMES // 2 + number) * 1000)
        record = {"card": card, "amount": 35.0, "merchant": f"shop-{11 + 67 * number}", "at": at, "fraud": 1.0}
        yield card.encode(), json.dumps(record).encode()


def ask(server: str, value: bytes) -> None:
    """Ask a server what it says of a payment, whose label it is not told."""
    record = {name: one for name, one in json.loads(value).items() if name != "fraud"}
    body = json.dumps({"records": [record]}).encode()
    with contextlib.suppress(OSError), urlopen(f"{server}/v1/models/cards:predict", body, timeout=5) as answer:
        answer.read()


async def produce(bootstrap: str, options: argparse.Namespace) -> int:
    """Write `count` payments, or without end; return how many were written."""
    written, began = 0, time.monotonic()
    stream = theft(options.steal) if options.steal else payments(options.seed, options.rate, time.time())
    count = TIMES // 2 if options.steal else options.count
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20)
    try:
        await producer.start()
        if options.topic not in (await producer.client.fetch_all_metadata()).topics():
            raise UnknownTopicOrPartitionError  # `send` would wait 40 s for it
        while count is None or written < count:
            due = int((time.monotonic() - began) * options.rate) + 1 - written
            due = due if count is None else min(due, count - written)
            for number, (key, value) in enumerate((next(stream) for _ in range(due)), written):
                if options.ask and number % 50 == 0:
                    await asyncio.to_thread(ask, options.ask, value)
                await producer.send(options.topic, value, key)
            written += due
            await asyncio.sleep(0.02)
    finally:
        await producer.stop()
    return written


def main() -> None:
    """Read the options and write."""
    parser = argparse.ArgumentParser(description="Write payments by cards, some of them stolen, to a topic.")
    bootstrap = os.environ.get("MILLRACE_KAFKA__BOOTSTRAP_SERVERS", "localhost:9092")
    parser.add_argument("--bootstrap", default=bootstrap, help="a broker, host:port")
    parser.add_argument("--topic", default="cards", help="the topic to write to; it must be there")
    parser.add_argument("--count", type=int, help="how many payments; without it, until Ctrl-C")
    parser.add_argument("--rate", type=float, default=500.0, help="payments a second")
    parser.add_argument(
        "--steal", metavar="CARD", help="only let a thief pay by this card, four times within four seconds"
    )
    parser.add_argument("--ask", metavar="URL", help="ask this server before each fiftieth payment")
    parser.add_argument("--seed", type=int, default=0, help="draws other payments by the same rule")
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would log is the line below
    try:
        written = asyncio.run(produce(options.bootstrap, options))
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
        sys.exit(f"{options.bootstrap}: {str(error) or type(error).__name__}")
    sys.stderr.write(f"wrote {written:,} payments to {options.topic}\n")


if __name__ == "__main__":
    main()
