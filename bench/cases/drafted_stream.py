"""A stream as `millrace init` would have it learnt: how often that was right about records before it learnt them.

Writes the records to a topic, drafts config and model from it, and learns the topic in order, up to its end. Prints the
share that it guessed right, of all and along the stream, the CPU of the whole process a record, and the draft's pace.
Nothing is changed but that the training is deterministic, with this seed, and what `--settings` says.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import rig
from aiokafka import AIOKafkaProducer

from millrace.app.service.service import Running, RunOptions
from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.kafka.positions import Now
from millrace.training.telemetry.live_metrics import LiveMetrics, Sums

AT_MOST_S = 1800.0
WINDOW = 500
"""Of so many records each is a point of the curve."""


async def send(values: list[bytes], bootstrap: str, topic: str) -> None:
    """Write them in order, to one partition."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await asyncio.gather(*[await producer.send(topic, value, partition=0) for value in values])


def right_of(live: Any) -> tuple[int, float]:
    """Return how many records were guessed so far, and how many of them right."""
    named = next((name for name in live.cumulative if "accuracy" in name), None)
    return (live.cumulative_records, live.cumulative[named] * live.cumulative_records) if named else (0, 0.0)


def follow() -> list[tuple[int, float]]:
    """Have the trainer look after each call, and return where it puts what it sees."""
    add, along = LiveMetrics.add, [(0, 0.0)]

    def followed(live: LiveMetrics, sums: Sums) -> None:
        add(live, sums)
        along.append(right_of(live.look()))

    setattr(LiveMetrics, "add", followed)  # noqa: B010 - mypy takes no other way
    return along


def curve(along: list[tuple[int, float]]) -> list[float]:
    """Return the share that was right of each window, from looks that are a call apart."""
    records, right = np.array(along).T
    at = np.arange(0, records[-1] + 1, WINDOW)
    found: list[float] = (np.diff(np.interp(at, records, right)) / WINDOW).round(4).tolist()
    return found


def main() -> None:
    """Fill the topic, draft, learn, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=Path, required=True, help="a JSON object a line, the label as y")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--settings", type=json.loads, default={}, help="a JSON object of what is set by hand")
    given = parser.parse_args()
    values = given.records.read_bytes().splitlines()
    create_topic(given.bootstrap, given.topic, 1)
    asyncio.run(send(values, given.bootstrap, given.topic))
    along = follow()
    rig.STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="draft-", dir=rig.STATE) as folder:
        told = ("--topic", given.topic, "--bootstrap-servers", given.bootstrap, "--label", "y", "--out", folder)
        drafted = [str(Path(sys.executable).with_name("millrace")), "init", *told, "--json"]
        subprocess.run(drafted, check=True, capture_output=True, timeout=rig.START_S)
        settings: dict[str, Any] = {
            "training.deterministic": "true",
            "training.seed": given.seed,
            "training.max_wait": "null",
            "training.replicas": 1,
            **given.settings,
        }
        with rig.hosted(f"{folder}/millrace", settings, RunOptions(until=Now())) as host:
            began, service = None, host.service
            while not host.ended.wait(rig.LOOK_S):
                if began is None and service.board.latest is not None:
                    began = time.process_time()
            assert isinstance(service.running, Running)
            scored, right = right_of(service.running.live.look())
            training = service.settings.training
            pace = training.model_dump(mode="json", include={"batch_size", "passes", "memory", "members"})
    if abs(scored - len(values)) >= training.numbers.batch_size:
        raise SystemExit(f"it has scored {scored} records of {len(values)}")
    cpu_s = time.process_time() - (began or 0.0)
    rig.report(
        {"accuracy": right / scored},
        {
            "records": len(values),
            "cpu_us_per_record": cpu_s / len(values) * 1e6,
            "pace": pace,
            "curve": curve(along),
        },
    )


if __name__ == "__main__":
    main()
