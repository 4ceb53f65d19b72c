"""What it costs the whole service that one JSON record in a hundred is bad in one of some twenty ways.

The records are those of `poisoned.py`. Here they come from Kafka, and bad ones go back to it as dead letters. A clean
topic and a poisoned one are learnt in turns, each by a service of its own; the ratios are of records a second, and of
records a CPU second.
"""

import argparse
import asyncio
import statistics
import sys
import time
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from aiokafka import AIOKafkaProducer
from produce import create
from rig import Hosted, hosted, report

from tests.faults.harness.forms import FORMS, PoisonedStream
from tests.faults.harness.records import ExpectedPosition

SHARES = {"clean": 0.0, "poisoned": 0.01}
DISTINCT, BATCH_BYTES, AT_MOST_S = 65_536, 128 * 1024, 300.0
FIRST, LAST = 0.3, 0.9
"""Which part of a topic is timed: behind the start, and before its end shows."""


async def fill(bootstrap: str, topic: str, share: float, records: int) -> None:
    """Write so many records; after some ten thousand they repeat themselves."""
    stream, random = PoisonedStream(FORMS["json"], share), Random(7)
    values = [stream.draw(ExpectedPosition(0, at), random)[0] for at in range(DISTINCT)]
    await create(bootstrap, topic, 1)
    now, left = int(time.time() * 1000), iter(values[at % DISTINCT] for at in range(records))
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=BATCH_BYTES) as producer:
        while chunk := list(islice(left, 1000)):
            batch = producer.create_batch()
            for value in chunk:
                assert batch.append(key=None, value=value, timestamp=now) is not None
            batch.close()
            await (await producer.send_batch(batch, topic, partition=0))


class Mark(NamedTuple):
    """The service at one moment."""

    settled: int
    """Records that are learnt or set aside."""
    wall_s: float
    cpu_s: float


def rates(bootstrap: str, topic: str, letters: str, records: int) -> tuple[float, float]:
    """Return the records that a service learns or sets aside a second, and those of a CPU second."""
    places = {
        "kafka.bootstrap_servers": bootstrap,
        "kafka.topics": topic,
        "kafka.group": f"{topic}-{time.time_ns()}",
        "records.dead_letters.topic": letters,
    }
    with hosted("poisoned_json", places) as host:
        first, last = (mark(host, round(share * records)) for share in (FIRST, LAST))
    done = last.settled - first.settled
    return done / (last.wall_s - first.wall_s), done / (last.cpu_s - first.cpu_s)


def mark(host: Hosted, records: int) -> Mark:
    """Wait until so many records are settled."""

    def settled() -> int:
        return sum(host.service.ledger.positions().values())

    host.wait_for(lambda: settled() >= records, AT_MOST_S, f"{records:,} records settled")
    return Mark(settled(), time.monotonic(), time.process_time())


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--records", type=int, default=2_000_000, help="of each topic")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    name = f"bench-{time.time_ns()}"
    asyncio.run(create(given.bootstrap, f"{name}-letters", 1))
    for kind, share in SHARES.items():
        asyncio.run(fill(given.bootstrap, f"{name}-{kind}", share, given.records))
    turns = [
        {kind: rates(given.bootstrap, f"{name}-{kind}", f"{name}-letters", given.records) for kind in SHARES}
        for _ in range(given.rounds)
    ]
    by_clock, by_cpu = (
        round(statistics.median(turn["poisoned"][at] / turn["clean"][at] for turn in turns), 3) for at in (0, 1)
    )
    report(
        {"poisoned_stream_of_clean": by_clock},
        {"poisoned_stream_cpu_of_clean": by_cpu, "clean_records_per_s": [round(turn["clean"][0]) for turn in turns]},
    )


if __name__ == "__main__":
    main()
