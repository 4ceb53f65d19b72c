"""The score on arrival: what it costs where labels come later and the stream is steady.

Two trainers learn the same two topics at the same time, while these are written at a steady rate; one of them predicts
a record of a hundred when it comes. Compared is the CPU that each took in the same seconds.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import deque
from pathlib import Path

import numpy as np
from aiokafka import AIOKafkaProducer
from rig import ROOT, STATE, report

sys.path.insert(0, str(Path(__file__).parents[1]))

import produce

SHARE, CLICKED = 0.01, 0.03
PARTITIONS, A_TICK_S, LATE_TICKS = 4, 0.1, 20
WARM_UP_S = 30.0
RUN = "from millrace.app.cli import main; main()"


class Trainer:
    """A process that learns."""

    def __init__(self, folder: Path, bootstrap: str, topics: tuple[str, str], share: float) -> None:
        folder.mkdir()
        given = {
            "name": "arriving",
            "kafka": {"bootstrap_servers": [bootstrap], "topics": [topics[0]]},
            "records": {"features": {"x": {"dtype": "float32", "shape": [28]}}, "label": {}},
            "labels": {
                "topics": [topics[1]],
                "join": {"record": "impression"},
                "label": {"y": {"dtype": "float32", "absent": 0.0}},
                "within": "5s",
                "early": "1s",
                "score_on_arrival": share,
            },
            "model": {"build": str(ROOT / "bench" / "models" / "mlp.py") + ":build_model"},
            "checkpoints": {"path": str(folder / "checkpoints")},
            "api": {"listen": "127.0.0.1:0"},
        }
        config = folder / "millrace.yaml"
        config.write_text(json.dumps(given))
        with (folder / "log").open("w") as log:
            words = [sys.executable, "-c", RUN, "run", "-c", str(config)]
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        self._log = folder / "log"

    def cpu_s(self) -> float:
        """Return the CPU's seconds that it has taken so far."""
        if self._process.poll() is not None:
            raise SystemExit(f"a trainer has ended:\n{self._log.read_text()[-3000:]}")
        numbers = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


async def stream(bootstrap: str, topics: tuple[str, str], rate: int, until: float) -> None:
    """Write records at a steady rate, and clicks for some of them two seconds later."""
    random, each = np.random.default_rng(7), round(rate * A_TICK_S / PARTITIONS)
    values = [value[1:] for some in produce.records(0, 50_000, "json") for value in some]
    clicks, number, due = deque[list[bytes]](), 0, time.monotonic()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=2**20) as producer:
        while (due := due + A_TICK_S) < until:
            keys = list[bytes]()
            for partition in range(PARTITIONS):
                batch, now = producer.create_batch(), round(time.time() * 1000)
                for _ in range(each):
                    key, number = b"%d" % number, number + 1
                    value = b'{"impression":"' + key + b'",' + values[number % len(values)]
                    batch.append(key=None, value=value, timestamp=now)
                    if random.random() < CLICKED:
                        keys.append(key)
                await producer.send_batch(batch, topics[0], partition=partition)
            clicks.append(keys)
            if len(clicks) > LATE_TICKS:
                for key in clicks.popleft():
                    await producer.send(topics[1], b'{"impression":"' + key + b'","y":1}')
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def measured(given: argparse.Namespace, folder: Path) -> list[tuple[float, float]]:
    """Return the CPU's seconds of each of several spans: without a score on arrival, and with it."""
    name = f"bench-arriving-{uuid.uuid4().hex[:8]}"
    topics = name, f"{name}-clicks"
    for topic in topics:
        await produce.create(given.bootstrap, topic, PARTITIONS)
    until = time.monotonic() + WARM_UP_S + given.rounds * given.seconds + A_TICK_S
    writing = asyncio.create_task(stream(given.bootstrap, topics, given.rate, until))
    trainers = [Trainer(folder / str(share), given.bootstrap, topics, share) for share in (0.0, SHARE)]
    try:
        await asyncio.sleep(WARM_UP_S)
        found, before = list[tuple[float, float]](), [one.cpu_s() for one in trainers]
        for _ in range(given.rounds):
            await asyncio.sleep(given.seconds)
            now = [one.cpu_s() for one in trainers]
            found.append((now[0] - before[0], now[1] - before[1]))
            before = now
        await writing
        return found
    finally:
        for one in trainers:
            one.end()


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rate", type=int, default=10_000, help="records a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="arriving-", dir=STATE) as folder:
        found = asyncio.run(measured(given, Path(folder)))
    records = given.rate * given.seconds
    report(
        {"arrival_score_cpu": round(statistics.median(scored / plain for plain, scored in found), 3)},
        {"cpu_us_a_record": [[round(one / records * 1e6, 2) for one in each] for each in found]},
    )


if __name__ == "__main__":
    main()
