"""Writes clicks that can be learnt: some ads and some hours are preferred, and expensive offers are clicked less.

    python examples/clicks/produce.py --count 1000000

The rule is the same on every run; `--seed` only draws other visits by it.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Iterator

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, UnknownTopicOrPartitionError

RULE_SEED = 20_260_101
ADS = 500
CHUNK = 1000


def click_rule() -> tuple[np.ndarray, np.ndarray]:
    """Return the preference for each ad and each hour, in log odds: the rule that all records follow."""
    rule = np.random.default_rng(RULE_SEED)
    hours = 0.8 * np.sin((np.arange(24) - 13) * np.pi / 12)
    return rule.normal(0.0, 1.5, ADS), hours


def visits(seed: int) -> Iterator[list[bytes]]:
    """Give chunks of records without end, the same for the same seed."""
    random = np.random.default_rng(seed)
    liked_ads, liked_hours = click_rule()
    while True:
        ads = (ADS * random.power(0.5, CHUNK)).astype(int)  # a few ads are seen often, most of them seldom
        hours = random.integers(0, 24, CHUNK)
        prices = np.round(random.lognormal(2.0, 0.8, CHUNK), 2)
        odds = 1.5 + liked_ads[ads] + liked_hours[hours] - 0.8 * np.log1p(prices)
        clicked = random.random(CHUNK) < 1 / (1 + np.exp(-odds))
        rows = zip(prices.tolist(), ads.tolist(), hours.tolist(), clicked.tolist(), strict=True)
        yield [
            json.dumps({"price": price, "ad": f"ad-{ad}", "hour": hour, "clicked": float(click)}).encode()
            for price, ad, hour, click in rows
        ]


async def produce(bootstrap: str, topic: str, chunks: Iterator[list[bytes]], options: argparse.Namespace) -> int:
    """Write `count` records, or without end, at most `rate` per second; return how many were written."""
    written, began = 0, time.monotonic()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20)
    try:
        await producer.start()
        if topic not in (await producer.client.fetch_all_metadata()).topics():
            raise UnknownTopicOrPartitionError  # `send` would wait 40 s for it
        for chunk in chunks:
            wanted = chunk if options.count is None else chunk[: options.count - written]
            acknowledgements = [await producer.send(topic, value) for value in wanted]
            await asyncio.gather(*acknowledgements)
            written += len(wanted)
            if written == options.count:
                break
            if options.rate is not None:
                await asyncio.sleep(max(0.0, began + written / options.rate - time.monotonic()))
    finally:
        await producer.stop()
    return written


def main() -> None:
    """Read the options and write."""
    parser = argparse.ArgumentParser(description="Write clicks that can be learnt to a topic.")
    bootstrap = os.environ.get("MILLRACE_KAFKA__BOOTSTRAP_SERVERS", "localhost:9092")
    parser.add_argument("--bootstrap", default=bootstrap, help="a broker, host:port")
    parser.add_argument("--topic", default="clicks", help="the topic to write to; it must be there")
    parser.add_argument("--count", type=int, help="how many records; without it, until Ctrl-C")
    parser.add_argument("--rate", type=float, help="records a second at most")
    parser.add_argument("--seed", type=int, default=0, help="draws other records by the same rule")
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would log is the line below
    try:
        written = asyncio.run(produce(options.bootstrap, options.topic, visits(options.seed), options))
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
