"""Writes impressions to one topic, and to another, up to twenty seconds later, which of them were clicked.

    python examples/impressions/produce.py --rate 200

The rule is that of `examples/clicks`: the same ads and hours are preferred. A few clicks come twice, some too late.
"""

import argparse
import asyncio
import heapq
import json
import logging
import os
import runpy
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, UnknownTopicOrPartitionError

VISITS = runpy.run_path(str(Path(__file__).parents[1] / "clicks" / "produce.py"))["visits"]
IMPRESSIONS, CLICKS = "impressions", "ad-clicks"
CLICKED_WITHIN_S = 20.0


class Visit(NamedTuple):
    """An impression, and when it is clicked."""

    impression: bytes
    clicks: list[tuple[float, bytes]]
    """After how many seconds, and the record."""


def impressions(seed: int) -> Iterator[Visit]:
    """Give visits without end, the same for the same seed but for their ids."""
    random = np.random.default_rng(seed)
    for chunk in VISITS(seed):
        for value in chunk:
            record, clicks = json.loads(value), list[tuple[float, bytes]]()
            record["impression_id"] = key = uuid.uuid4().hex
            if record.pop("clicked"):
                click = json.dumps({"impression_id": key, "clicked": 1.0}).encode()
                after_s = float(random.exponential(CLICKED_WITHIN_S / 4))
                clicks = [(after_s, click), *([(after_s + 0.5, click)] if random.random() < 0.02 else [])]
            yield Visit(json.dumps(record).encode(), clicks)


async def produce(bootstrap: str, options: argparse.Namespace) -> tuple[int, int]:
    """Write `count` impressions, or without end, and their clicks when they come; return how many of both."""
    written, clicked, began = 0, 0, time.monotonic()
    waiting = list[tuple[float, int, bytes]]()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20)
    try:
        await producer.start()
        known = (await producer.client.fetch_all_metadata()).topics()
        for topic in (IMPRESSIONS, CLICKS):
            if topic not in known:
                raise UnknownTopicOrPartitionError(topic)  # `send` would wait 40 s for it
        stream = impressions(options.seed)
        while waiting or options.count is None or written < options.count:
            now = time.monotonic()
            due = int((now - began) * options.rate) + 1 - written
            due = due if options.count is None else min(due, options.count - written)
            for visit in (next(stream) for _ in range(due)):
                await producer.send(IMPRESSIONS, visit.impression)
                written += 1
                for after_s, click in visit.clicks:
                    heapq.heappush(waiting, (now + after_s, written, click))
            while waiting and waiting[0][0] <= now:
                await producer.send(CLICKS, heapq.heappop(waiting)[2])
                clicked += 1
            await asyncio.sleep(0.02)
    finally:
        await producer.stop()
    return written, clicked


def main() -> None:
    """Read the options and write."""
    parser = argparse.ArgumentParser(description="Write impressions, and which of them were clicked, to two topics.")
    bootstrap = os.environ.get("MILLRACE_KAFKA__BOOTSTRAP_SERVERS", "localhost:9092")
    parser.add_argument("--bootstrap", default=bootstrap, help="a broker, host:port")
    parser.add_argument("--count", type=int, help="how many impressions; without it, until Ctrl-C")
    parser.add_argument("--rate", type=float, default=200.0, help="impressions a second")
    parser.add_argument("--seed", type=int, default=0, help="draws other impressions by the same rule")
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would log is the line below
    try:
        written, clicked = asyncio.run(produce(options.bootstrap, options))
    except KeyboardInterrupt:
        return
    except KafkaConnectionError:
        sys.exit(
            f"no Kafka answers at {options.bootstrap}; `millrace local broker` starts one, --bootstrap names another"
        )
    except UnknownTopicOrPartitionError as missing:
        where = f"--bootstrap-servers {options.bootstrap} --topic {missing}"
        create = f"`millrace local produce {where} --create --partitions 4 /dev/null` creates it"
        sys.exit(f"topic {missing} is not at {options.bootstrap}; {create}")
    except KafkaError as error:
        sys.exit(f"{options.bootstrap}: {str(error) or type(error).__name__}")
    sys.stderr.write(f"wrote {written:,} records to {IMPRESSIONS} and {clicked:,} to {CLICKS}\n")


if __name__ == "__main__":
    main()
