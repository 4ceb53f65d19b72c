"""What `millrace init` drafts, on streams of the literature, against the adaptive random forest of MOA.

    python bench/drafts.py [--quick] [--seeds 3] [--bootstrap HOST:PORT] [--at-once 2] [--out build/bench.json]

Each stream has 12,000 records at most. It is written to a topic, config and model are drafted from it, and it is learnt
test-then-train, as a user would have it; the forest, ten trees, gets the same records one by one. Both are seeded, so
the accuracies do not depend on the machine. Streams, seeds of the model and of the streams go together.

Needs River's environment, which writes the streams and which `make bench-drafts` builds. Adds `drafts` to the report.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from compare import PeerCase
from run import BUILD, Case, broker, machine, run, say
from streams import RIVER, river

STREAMS = (
    *("agr", "agr_g", "led", "hyper", "rbf_d", "rbf_a", "tree_g", "sine", "sea", "mixed", "chess"),
    *("bananas", "segments", "phishing"),
)
RECORDS, QUICK_RECORDS = 12_000, 1_200
DRAFT, MOA = "draft", "moa"
DRIFTS = ("agr", "led", "rbf_a", "sine", "sea", "mixed")
"""Streams that change at once: there the draft without its members, and without its memory too, is seen beside it."""
WITHOUT: Mapping[str, Mapping[str, Any]] = {
    "memory": {"training.members": "null", "training.memory": 300},
    "passes": {"training.members": "null"},
}


def measure(
    streams: Sequence[str], seeds: Sequence[int], records: int, bootstrap: str, at_once: int
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """By stream and learner, what each seed gave."""

    def one(place: tuple[str, int]) -> dict[str, dict[str, Any]]:
        stream, seed = place
        lines = BUILD / "bench" / f"{stream}-{seed}.jsonl"
        lines.parent.mkdir(parents=True, exist_ok=True)
        told = {"stream": stream, "records": records, "seed": seed, "out": lines}
        run(PeerCase(f"write-{stream}", "peers/river/literature.py", told, river()))
        topic = {"bootstrap": bootstrap, "topic": f"draft-{stream.replace('_', '-')}-{seed}"}
        cases = {
            DRAFT: Case(DRAFT, "cases/drafted_stream.py", {**topic, "records": lines, "seed": seed}),
            MOA: Case(MOA, "cases/moa_forest.py", {"records": lines}),
        }
        if stream in DRIFTS and seed == seeds[0]:
            for name, settings in WITHOUT.items():
                own = {**topic, "topic": f"{topic['topic']}-{name}", "settings": json.dumps(settings)}
                cases[name] = Case(name, "cases/drafted_stream.py", {**own, "records": lines, "seed": seed})
        found = {name: {**(printed := run(case))["figures"], **printed["details"]} for name, case in cases.items()}
        lines.unlink()
        said = ", ".join(f"{name} {100 * one['accuracy']:.1f}" for name, one in found.items())
        say(f"  {stream:10} {seed}: {said}")
        return found

    places = [(stream, seed) for stream in streams for seed in seeds]
    with ThreadPoolExecutor(at_once) as pool:
        results = dict(zip(places, pool.map(one, places), strict=True))
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for (stream, _), by_learner in results.items():
        for name, one_seed in by_learner.items():
            found.setdefault(stream, {}).setdefault(name, []).append(one_seed)
    return found


def percent(results: Sequence[Mapping[str, Any]]) -> float:
    """The mean accuracy of the seeds."""
    return 100 * fmean(one["accuracy"] for one in results)


def main() -> None:
    """Have all streams learnt, add to the report, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short streams: does it run")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--bootstrap", help="a broker to use; it gets a topic for each stream and seed")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="how many streams beside each other")
    parser.add_argument(
        "--out", type=Path, help="the report that is added to; default: build/bench.json, none if quick"
    )
    given = parser.parse_args()
    if not RIVER.ready:
        raise SystemExit(f"{RIVER.environment} is not there; `make bench-drafts` builds it")
    streams, records = (("sine", "bananas"), QUICK_RECORDS) if given.quick else (STREAMS, RECORDS)
    seeds = range(1, 1 + (1 if given.quick else given.seeds))
    with broker(given.bootstrap) as bootstrap:
        learnt = measure(streams, seeds, records, bootstrap, given.at_once)
    ahead = {stream: percent(by[DRAFT]) - percent(by[MOA]) for stream, by in learnt.items()}
    figures = {
        "over_moa_arf_points": round(fmean(ahead.values()), 2),
        "streams_ahead_of_moa": sum(points > 0 for points in ahead.values()),
    }
    out = given.out or (None if given.quick else BUILD / "bench.json")
    if out is not None:
        whole = json.loads(out.read_text()) if out.exists() else {}
        drafts = {
            "as_of": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "seeds": len(seeds),
            "learnt": learnt,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        added = {**whole, "figures": {**whole.get("figures", {}), **figures}, "drafts": drafts}
        out.write_text(json.dumps(added, indent=1) + "\n")
        print(f"everything: {out}")
    for stream, points in ahead.items():
        print(f"{stream:24} {percent(learnt[stream][DRAFT]):10.2f} {points:+10.2f}")
    for name, value in figures.items():
        print(f"{name:24} {value:10.2f}")


if __name__ == "__main__":
    main()
