"""Runs the peers beside the product, and adds what came out to `build/bench.json`.

    python bench/compare.py [--quick] [--bootstrap HOST:PORT] [--rounds 3] [--peers river,scikit_learn]

A peer is a folder of `bench/peers/`: `measure.py` trains on the benchmark's JSON topic as the peer's own documentation
would have it, in the environment that `make bench-peers` builds from `requirements.lock`. One whose environment is not
there is left out, and named. As in `bench/run.py` every case runs in a fresh process, a round runs each once, and each
round begins with another one; `over_<peer>` is how many times as fast the product is, records a second over records a
second inside a round, the median over the rounds. Slow peers are timed over fewer records.

All read the same topic of the same broker. It is one of Kafka 3.9, because tensorflow-io cannot read from Kafka 4.
"""

import argparse
import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from run import BENCH, BUILD, Case, Round, broker, cost, machine, rate, run, run_round, say, topic_of

KAFKA = "3.9.1"
PRODUCT = "product-json"


@dataclass(frozen=True)
class Peer:
    """A peer, and over how many records it is timed: ten seconds of work or so."""

    name: str
    package: str
    records: int

    @property
    def folder(self) -> Path:
        """Where its script and its lock are."""
        return BENCH / "peers" / self.name

    @property
    def environment(self) -> Path:
        """Where `make bench-peers` installs it."""
        return BUILD / "peers" / self.name

    @property
    def ready(self) -> bool:
        """Whether it is installed."""
        return (self.environment / ".ready").exists()

    @property
    def version(self) -> str:
        """As locked."""
        locked = re.search(rf"^{self.package}==(\S+)", (self.folder / "requirements.lock").read_text(), re.MULTILINE)
        assert locked is not None
        return locked.group(1)


PEERS = (
    Peer("tensorflow_io", "tensorflow-io", 200_000),
    Peer("river", "river", 150_000),
    Peer("vowpal_wabbit", "vowpalwabbit", 150_000),
    Peer("scikit_learn", "scikit-learn", 300_000),
    Peer("quix_streams", "quixstreams", 400_000),
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done. The accuracy is that of the last `judged` records of a peer's warm-up."""

    rounds: int
    at_most_s: float
    warm_up: int = 65_536
    judged: int = 16_384
    product_records: int
    product_warm_up: int
    tail: int


FULL = Plan(rounds=3, at_most_s=20.0, product_records=1_500_000, product_warm_up=500_000, tail=1_000_000)
QUICK = Plan(rounds=1, at_most_s=5.0, product_records=300_000, product_warm_up=100_000, tail=300_000)


@dataclass(frozen=True)
class PeerCase(Case):
    """A script that runs in an environment of its own."""

    python: str

    def command(self) -> list[str]:
        """The process to run."""
        return [self.python, *super().command()[1:]]


def cases_of(plan: Plan, peers: list[Peer], bootstrap: str) -> list[Case]:
    """The product and its peers, in the order of the first round."""
    place = {"bootstrap": bootstrap, "topic": topic_of("json")}
    stretch = {"judged-from": plan.warm_up - plan.judged, "judged-to": plan.warm_up}
    amount = {"records": plan.product_records, "warm-up": plan.product_warm_up}
    cases = [Case(PRODUCT, "product.py", {**place, "format": "json", **amount, **stretch})]
    limits = {"warm-up": plan.warm_up, "judged": plan.judged, "at-most-s": plan.at_most_s}
    for peer in peers:
        options = {**place, "records": peer.records, **limits}
        python = str(peer.environment / "bin" / "python")
        cases.append(PeerCase(peer.name, f"peers/{peer.name}/measure.py", options, python))
    return cases


def figures_by_round(rounds: list[Round]) -> dict[str, list[float]]:
    """How many times as fast as each peer, a value a round."""
    peers = [name for name in rounds[0] if name != PRODUCT]
    return {f"over_{peer}": [rate(runs[PRODUCT]) / rate(runs[peer]) for runs in rounds] for peer in peers}


def summary(name: str, rounds: list[Round]) -> dict[str, Any]:
    """A case over all rounds."""
    runs = [each[name] for each in rounds]
    peer = next((peer for peer in PEERS if peer.name == name), None)
    return {
        "package": f"{peer.package} {peer.version}" if peer is not None else None,
        "records_per_s": round(statistics.median(map(rate, runs))),
        "cpu_us_per_record": round(statistics.median(map(cost, runs)) * 1e6, 4),
        "accuracy": round(statistics.median(each["accuracy"] for each in runs), 4),
        "note": runs[0].get("note"),
        "runs": runs,
    }


def report(plan: Plan, absent: list[str], rounds: list[Round]) -> dict[str, Any]:
    """All that was measured, but for the figures."""
    return {
        "as_of": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "kafka": KAFKA,
        "plan": asdict(plan),
        "absent": absent,
        "cases": {name: summary(name, rounds) for name in rounds[0]},
    }


def add_to(whole: Mapping[str, Any], by_round: Mapping[str, list[float]], details: Mapping[str, Any]) -> dict[str, Any]:
    """A report with this run's peers in place of those of an earlier one."""

    def without_peers(key: str) -> dict[str, Any]:
        return {name: value for name, value in whole.get(key, {}).items() if not name.startswith("over_")}

    medians = {name: round(statistics.median(values), 3) for name, values in by_round.items()}
    rounded = {name: [round(value, 3) for value in values] for name, values in by_round.items()}
    return {
        **whole,
        "figures": {**without_peers("figures"), **medians},
        "figures_by_round": {**without_peers("figures_by_round"), **rounded},
        "peers": details,
    }


def measure(plan: Plan, peers: list[Peer], given: argparse.Namespace) -> list[Round]:
    """Fill the topic, run the rounds."""
    count = plan.product_warm_up + plan.product_records + plan.tail
    with broker(given.bootstrap, KAFKA) as bootstrap:
        topic = {"bootstrap": bootstrap, "topic": topic_of("json"), "format": "json", "records": count}
        say(f"{topic_of('json')}: writing {count:,} records")
        run(Case("produce-json", "produce.py", topic))
        rounds = []
        for number in range(given.rounds or plan.rounds):
            say(f"round {number + 1} of {given.rounds or plan.rounds}")
            rounds.append(run_round(cases_of(plan, peers, bootstrap), number, at_once=1))
    return rounds


def main() -> None:
    """Run the rounds, add to the report, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round: does it run, and roughly how fast")
    parser.add_argument("--bootstrap", help="a broker of Kafka 3 to use; it gets the topic bench-json")
    parser.add_argument("--rounds", type=int, help="how often each case runs")
    parser.add_argument("--peers", help="only these, separated by commas")
    parser.add_argument("--out", type=Path, default=BUILD / "bench.json", help="the report that is added to")
    given = parser.parse_args()
    plan = QUICK if given.quick else FULL
    wanted = [peer for peer in PEERS if given.peers is None or peer.name in given.peers.split(",")]
    peers = [peer for peer in wanted if peer.ready]
    absent = [peer.name for peer in wanted if not peer.ready]
    if absent:
        say(f"left out, for want of an environment: {', '.join(absent)}; `make bench-peers` builds them")
    if not peers:
        return
    rounds = measure(plan, peers, given)
    by_round = figures_by_round(rounds)
    whole = json.loads(given.out.read_text()) if given.out.exists() else {}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(add_to(whole, by_round, report(plan, absent, rounds)), indent=1) + "\n")
    for name, values in by_round.items():
        middle = statistics.median(values)
        print(f"{name:22} {middle:8.2f}   (from {min(values):.2f} to {max(values):.2f} in {len(values)} rounds)")
    print(f"everything: {given.out}")


if __name__ == "__main__":
    main()
