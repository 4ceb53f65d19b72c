"""How much is got out of each record of a drifting stream, against River's adaptive random forest.

    python bench/streams.py [--quick] [--bootstrap HOST:PORT] [--at-once 2] [--out build/bench.json]

Three of River's streams with abrupt drifts, four concepts of 10,000 records each, are written to topics with one
partition and learnt from there, test-then-train: by the product with several numbers of passes and learning rates, in
batches of 32, and by the forest, record by record, in the same order. Everything that takes part is seeded and in
strict order, so the accuracies do not depend on the machine; the CPU a record does.

Needs River's environment, which `make bench-streams` builds. Adds `streams` and its figures to the report.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from aiokafka import AIOKafkaProducer
from compare import PEERS, PeerCase
from produce import create
from run import BUILD, Case, broker, machine, run, say

STREAMS = ("agrawal", "random_rbf", "led")
FOREST = "forest"
RIVER = next(peer for peer in PEERS if peer.name == "river")


@dataclass(frozen=True, kw_only=True)
class Side:
    """The product, learning so."""

    passes: int
    rate: float

    @property
    def name(self) -> str:
        """In the report."""
        return f"passes {self.passes}, rate {self.rate:g}"


ONE, FOUR = Side(passes=1, rate=0.001), Side(passes=4, rate=0.001)
"""Keras' default rate; nothing but the passes differs."""
ADVISED = Side(passes=4, rate=0.003)
"""What docs/model.md advises for a slow stream."""
SIDES = (ONE, Side(passes=1, rate=0.003), FOUR, ADVISED)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done. A window is what one call of the product takes: 25 batches of 32."""

    records: int = 40_000
    concept: int = 10_000
    window: int = 800
    streams: Sequence[str] = STREAMS
    sides: Sequence[Side] = SIDES


FULL = Plan()
QUICK = Plan(records=1_600, concept=800, streams=("led",), sides=(ADVISED,))


def cases_of(plan: Plan, stream: str, bootstrap: str) -> list[Case]:
    """All that learn the stream, by name."""
    where = {"bootstrap": bootstrap, "topic": topic_of(stream), "records": plan.records, "window": plan.window}
    cases: list[Case] = [PeerCase(FOREST, "peers/river/forest.py", where, river())]
    for side in plan.sides:
        options = {**where, "stream": stream, "passes": side.passes, "rate": side.rate}
        cases.append(Case(side.name, "cases/drifting_stream.py", options))
    return cases


def topic_of(stream: str) -> str:
    """Its topic, as in the stream's config."""
    return f"bench-{stream.replace('_', '-')}"


def river() -> str:
    """River's interpreter."""
    return str(RIVER.environment / "bin" / "python")


def fill(plan: Plan, stream: str, bootstrap: str) -> None:
    """Have River write the stream, and put it into its topic."""
    lines = BUILD / "bench" / f"{stream}.jsonl"
    lines.parent.mkdir(parents=True, exist_ok=True)
    options = {"stream": stream, "records": plan.records, "concept": plan.concept, "out": lines}
    run(PeerCase(f"write-{stream}", "peers/river/drifting_stream.py", options, river()))
    asyncio.run(send(lines.read_bytes().splitlines(), bootstrap, topic_of(stream)))
    lines.unlink()


async def send(values: Sequence[bytes], bootstrap: str, topic: str) -> None:
    """Write them in order, to one partition."""
    await create(bootstrap, topic, 1)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        sent = [await producer.send(topic, value, partition=0) for value in values]
        await asyncio.gather(*sent)


def measure(plan: Plan, bootstrap: str, at_once: int) -> dict[str, dict[str, Any]]:
    """By stream and who learnt it: accuracy, its curve, CPU a record."""
    for stream in plan.streams:
        fill(plan, stream, bootstrap)

    def one(place: tuple[str, Case]) -> dict[str, Any]:
        stream, case = place
        printed = run(case)
        result = {**printed.get("figures", {}), **printed.get("details", printed)}
        accuracy, cpu_us = result["accuracy"], result["cpu_us_per_record"]
        say(f"  {stream:12} {case.name:22} {accuracy:.1%}   {cpu_us:8,.0f} µs CPU a record")
        return result

    places = [(stream, case) for stream in plan.streams for case in cases_of(plan, stream, bootstrap)]
    # The forests take longest, so they begin.
    places.sort(key=lambda place: place[1].name != FOREST)
    with ThreadPoolExecutor(at_once) as pool:
        results = list(pool.map(one, places))
    names = [case.name for case in cases_of(plan, plan.streams[0], bootstrap)]
    found = {(stream, case.name): result for (stream, case), result in zip(places, results, strict=True)}
    return {stream: {name: found[stream, name] for name in names} for stream in plan.streams}


def mean_of(learnt: Mapping[str, Mapping[str, Any]], name: str) -> float:
    """The mean accuracy over the streams, in percent."""
    return 100 * fmean(results[name]["accuracy"] for results in learnt.values())


def figures_of(learnt: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The figures whose sides have run, in points: percent of the records."""
    names = next(iter(learnt.values())).keys()
    found = {}
    if ONE.name in names:
        found["passes_4_over_1_points"] = round(mean_of(learnt, FOUR.name) - mean_of(learnt, ONE.name), 2)
    found["ahead_of_forest_points"] = round(mean_of(learnt, ADVISED.name) - mean_of(learnt, FOREST), 2)
    return found


def report(plan: Plan, learnt: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """All that was measured."""
    return {
        "as_of": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "river": RIVER.version,
        "plan": asdict(plan),
        "mean_percent": {name: round(mean_of(learnt, name), 2) for name in next(iter(learnt.values()))},
        "learnt": learnt,
    }


def main() -> None:
    """Fill the topics, have them learnt, add to the report, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short stream: does it run")
    parser.add_argument("--bootstrap", help="a broker to use; it gets a topic for each stream")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="how many learn beside each other")
    parser.add_argument(
        "--out", type=Path, help="the report that is added to; default: build/bench.json, none if quick"
    )
    given = parser.parse_args()
    if not RIVER.ready:
        raise SystemExit(f"{RIVER.environment} is not there; `make bench-streams` builds it")
    plan = QUICK if given.quick else FULL
    with broker(given.bootstrap) as bootstrap:
        learnt = measure(plan, bootstrap, given.at_once)
    figures = figures_of(learnt)
    out = given.out or (None if given.quick else BUILD / "bench.json")
    if out is not None:
        whole = json.loads(out.read_text()) if out.exists() else {}
        streams = report(plan, learnt)
        out.parent.mkdir(parents=True, exist_ok=True)
        added = {**whole, "figures": {**whole.get("figures", {}), **figures}, "streams": streams}
        out.write_text(json.dumps(added, indent=1) + "\n")
        print(f"everything: {out}")
    for name, value in figures.items():
        print(f"{name:24} {value:10.2f}")


if __name__ == "__main__":
    main()
