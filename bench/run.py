"""Runs the benchmark and writes `build/bench.json`.

    python bench/run.py [--quick | --soak] [--bootstrap HOST:PORT] [--rounds 3] [--cases product-json,naive-json]
    python bench/run.py --rounds 3 --before FOLDER --cases product-raw,before-raw    an earlier tree beside this one
    python bench/run.py --again --cases flood,siege          these cases of the service once more, into what is there

Every case runs in a fresh process, all of them on the same two topics with the same model, batch and steps a call. A
round runs each case once; each round begins with another one, so that none always comes first. Ratios are taken inside
a round, from runs minutes apart on the same machine, and the figure is their median over the rounds: a machine that is
slow today is slow for both sides. The cases of the service (`cases/`) follow, once each; one that fails spoils only
itself, and the exit code. Without --bootstrap a local broker is started, and its data removed at the end.

The file holds every run as its script printed it, rates and costs by case, and `figures`, flat; `details` beside them.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import listing
import validity
from quiet import adopt_orphans, others_s

BENCH = Path(__file__).parent
ROOT = BENCH.parent
sys.path.insert(0, str(ROOT))

BUILD = ROOT / "build"
CASE_AT_MOST_S = 900
UNCLOCKED_AT_ONCE = 2
"""How many cases without a figure by the clock run beside each other."""
PACKAGES = ("aiokafka", "keras", "numpy", "pyarrow", "tensorflow")

SHAPED = ("balanced",)
"""The product's case on JSON once more, each with a setting of what is learnt: bench/configs/higgs_json_NAME.yaml."""

Run = Mapping[str, Any]
Round = Mapping[str, Run]
"""By case, what its script printed."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done. Topics hold more than is timed: `tail` fills the product's queues at the end too."""

    rounds: int
    batch: int = 1024
    batches_per_call: int = 16
    json_records: int
    raw_records: int
    product_warm_up: int
    tail: int
    naive_records: int
    naive_warm_up: int = 8_192
    parts_records: int
    decode_raw_records: int


FULL = Plan(
    rounds=3,
    json_records=1_200_000,
    raw_records=2_500_000,
    product_warm_up=300_000,
    tail=1_000_000,
    naive_records=24_576,
    parts_records=1_500_000,
    decode_raw_records=30_000_000,
)
QUICK = Plan(
    rounds=1,
    json_records=300_000,
    raw_records=600_000,
    product_warm_up=100_000,
    tail=300_000,
    naive_records=16_384,
    parts_records=300_000,
    decode_raw_records=5_000_000,
)


@dataclass(frozen=True)
class Case:
    """A script and what it is told."""

    name: str
    script: str
    options: Mapping[str, Any]
    root: Path = field(default=ROOT, kw_only=True)
    """The tree whose code runs."""

    def command(self) -> list[str]:
        """The process to run."""
        told = [part for name, value in self.options.items() for part in (f"--{name}", str(value))]
        return [sys.executable, str(self.root / "bench" / self.script), *told]


def topic_of(form: str) -> str:
    """The topic of a format."""
    return f"bench-{form}"


def cases_of(plan: Plan, bootstrap: str, before: Path | None = None) -> list[Case]:
    """All cases, in the order of the first round; with the product's cases of an earlier tree beside ours."""
    shape = {"batch": plan.batch, "batches-per-call": plan.batches_per_call}
    cases = [Case("train", "parts/train.py", {"records": plan.parts_records, **shape})]
    for form, records in (("json", plan.json_records), ("raw", plan.raw_records)):
        place = {"bootstrap": bootstrap, "topic": topic_of(form)}
        product = {"records": records, "warm-up": plan.product_warm_up, **shape}
        naive = {"records": plan.naive_records, "warm-up": plan.naive_warm_up, **shape}
        decoded = plan.parts_records if form == "json" else plan.decode_raw_records
        if before is not None:
            cases.append(Case(f"before-{form}", "product.py", {**place, "format": form, **product}, root=before))
        cases += [
            Case(f"product-{form}", "product.py", {**place, "format": form, **product}),
            Case(f"naive-{form}", "naive.py", {**place, "format": form, **naive}),
            Case(f"getmany-{form}", "parts/getmany.py", {**place, "records": plan.parts_records}),
            Case(f"decode-{form}", "parts/decode.py", {**place, "format": form, "records": decoded}),
        ]
    shaped = {**shape, "bootstrap": bootstrap, "topic": topic_of("json"), "format": "json"}
    shaped |= {"records": plan.json_records, "warm-up": plan.product_warm_up}
    cases += [Case(f"product-{name}", "product.py", {**shaped, "config": f"higgs_json_{name}"}) for name in SHAPED]
    return cases


def rate(run: Run) -> float:
    """Records a second."""
    return float(run["records"] / run["wall_s"])


def cost(run: Run) -> float:
    """CPU seconds a record."""
    return float(run["cpu_s"] / run["records"])


def times_naive(form: str) -> Callable[[Round], float]:
    """How many times as fast as the naive pipeline."""
    return lambda runs: rate(runs[f"product-{form}"]) / rate(runs[f"naive-{form}"])


def times_parts(form: str) -> Callable[[Round], float]:
    """CPU end to end over the CPU of fetching, decoding and training alone."""
    parts = (f"getmany-{form}", f"decode-{form}", "train")
    return lambda runs: cost(runs[f"product-{form}"]) / sum(cost(runs[part]) for part in parts)


def times_before(form: str) -> Callable[[Round], float]:
    """How many times as fast as the earlier tree."""
    return lambda runs: rate(runs[f"product-{form}"]) / rate(runs[f"before-{form}"])


def of_plain(name: str) -> Callable[[Round], float]:
    """Share of the rate without the setting."""
    return lambda runs: rate(runs[f"product-{name}"]) / rate(runs["product-json"])


FIGURES: Mapping[str, Callable[[Round], float]] = {
    "json_over_naive": times_naive("json"),
    "raw_over_naive": times_naive("raw"),
    "json_cpu_over_parts": times_parts("json"),
    "raw_cpu_over_parts": times_parts("raw"),
    "json_over_before": times_before("json"),
    "raw_over_before": times_before("raw"),
    "balance_of_plain": of_plain("balanced"),
}


def figures_by_round(rounds: list[Round]) -> dict[str, list[float]]:
    """Every figure whose cases were run, a value a round."""
    found: dict[str, list[float]] = {}
    for name, figure in FIGURES.items() if rounds else ():
        try:
            found[name] = [figure(runs) for runs in rounds]
        except KeyError:  # some of its cases were left out by --cases
            continue
    return found


@contextmanager
def broker(bootstrap: str | None, kafka: str | None = None) -> Iterator[str]:
    """The broker that was named, or one of our own for as long as this lasts, of a version of Kafka."""
    if bootstrap is not None:
        yield bootstrap
        return
    from millrace.app.tools.local_broker import LocalBroker
    from millrace.app.tools.local_broker.jars import KAFKA_VERSION

    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="broker-", dir=BUILD / "bench", ignore_cleanup_errors=True) as folder,
        LocalBroker(Path(folder), version=kafka or KAFKA_VERSION) as local,
    ):
        yield local.bootstrap_servers


def fill(plan: Plan, bootstrap: str) -> None:
    """Write the records of both formats to topics of our own."""
    for form, records in (("json", plan.json_records), ("raw", plan.raw_records)):
        count = plan.product_warm_up + records + plan.tail
        say(f"{topic_of(form)}: writing {count:,} records")
        told = {"bootstrap": bootstrap, "topic": topic_of(form), "format": form, "records": count}
        run(Case(f"produce-{form}", "produce.py", told))


def run(case: Case) -> Run:
    """Run a case in a process of its own; what it printed last."""
    # One thread of BLAS: those of an earlier tree may spin, which would flatter ours beside it.
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OPENBLAS_NUM_THREADS": "1"}
    if case.root != ROOT:
        quiet["PYTHONPATH"] = str(case.root)
    done = subprocess.run(
        case.command(), capture_output=True, text=True, timeout=CASE_AT_MOST_S, env=quiet, cwd=case.root, check=False
    )
    if done.returncode != 0 or not done.stdout.strip():
        raise SystemExit(f"{case.name} failed (exit code {done.returncode}):\n{done.stderr[-3000:]}")
    printed: Run = json.loads(done.stdout.splitlines()[-1])
    return printed


def run_round(cases: list[Case], first: int, at_once: int) -> Round:
    """Each case once, beginning with another one each time."""
    order = cases[first % len(cases) :] + cases[: first % len(cases)]

    def once(case: Case) -> Run:
        began, others = time.monotonic(), others_s()
        result = run(case)
        taken, took = beside(others, began), time.monotonic() - began
        say(f"  {case.name:13} {rate(result):>12,.0f} records/s {cost(result) * 1e6:>9.3f} µs CPU ({took:.0f} s)")
        return {**result, "load_average": os.getloadavg()[0], "others_cores": taken}

    with ThreadPoolExecutor(at_once) as pool:
        return {case.name: result for case, result in zip(order, pool.map(once, order), strict=True)}


def beside(others: float | None, began: float) -> float | None:
    """Return the cores that others took since `began`, when they had taken `others` seconds."""
    now = others_s()
    return None if others is None or now is None else (now - others) / (time.monotonic() - began)


def stages(plan: Plan, bootstrap: str) -> dict[str, dict[str, float]]:
    """CPU microseconds a record by stage, by format: the product once more, with a clock at each stage."""
    found = {}
    for case in cases_of(plan, bootstrap):
        if case.name in {"product-json", "product-raw"}:
            result = run(replace(case, options={**case.options, "stages": 1}))
            form = case.name.removeprefix("product-")
            found[form] = {stage: 1e6 * spent / result["records"] for stage, spent in result["cpu_by_stage"].items()}
            found[form] = {stage: round(spent, 3) for stage, spent in found[form].items()}
            say(f"  stages-{form}: {', '.join(f'{stage} {spent}' for stage, spent in found[form].items())} µs")
    return found


def run_service_cases(
    cases: Sequence[listing.ServiceCase], lengths: listing.Lengths, rates: Mapping[str, float], bootstrap: str
) -> dict[str, list[Run]]:
    """Each once, on topics that are filled before; by case."""
    for topic in listing.stored(lengths, rates).values():
        if any(topic.topic in case.options.values() for case in cases):
            say(f"{topic.topic}: writing {topic.records:,} records")
            run(Case(f"fill-{topic.form}", "cases/stored.py", topic.options(bootstrap)))

    def once(case: listing.ServiceCase) -> Run:
        began, load, others = time.monotonic(), os.getloadavg()[0], others_s()
        try:
            result = {**run(Case(case.name, f"cases/{case.script}", case.options)), "load_average": load}
            result["others_cores"] = beside(others, began)
        except (SystemExit, subprocess.TimeoutExpired) as error:
            say(str(error))
            return {"figures": {}, "details": {}, "error": str(error)}
        shown = ", ".join(f"{name} {value}" for name, value in result["figures"].items())
        say(f"  {case.name:16} {shown} ({time.monotonic() - began:.0f} s)")
        return result

    found = dict[str, list[Run]]()
    for unclocked, at_once in ((False, lengths.at_once), (True, max(UNCLOCKED_AT_ONCE, lengths.at_once))):
        alike = [case for case in cases if case.unclocked is unclocked]
        with ThreadPoolExecutor(at_once) as pool:
            found |= {case.name: [result] for case, result in zip(alike, pool.map(once, alike), strict=True)}
    return found


def machine() -> dict[str, Any]:
    """Where it ran, and with what."""
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    return {
        "commit": commit.stdout.strip() or None,
        "cpu": models[0] if models else platform.processor(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": {name: version(name) for name in PACKAGES},
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def report(
    where: Mapping[str, Any], plan: Plan, rounds: list[Round], services: Iterable[Run], only: Sequence[str] | None
) -> dict[str, Any]:
    """All that the rounds measured; `only` are the cases that were chosen, None for all."""
    by_round = figures_by_round(rounds)
    every = [*(each for runs in rounds for each in runs.values()), *services]
    costs = {name: statistics.median(cost(runs[name]) for runs in rounds) for name in (rounds[0] if rounds else ())}
    return {
        "as_of": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": where,
        "plan": asdict(plan),
        "figures": {name: round(statistics.median(values), 3) for name, values in by_round.items()},
        "only": only,
        "validity": validity.verdict(by_round, [each.get("others_cores") for each in every]),
        "figures_by_round": {name: [round(value, 3) for value in values] for name, values in by_round.items()},
        "cases": {
            name: {
                "records_per_s": round(statistics.median(rate(runs[name]) for runs in rounds)),
                "cpu_us_per_record": round(costs[name] * 1e6, 4),
                "runs": [runs[name] for runs in rounds],
            }
            for name in (rounds[0] if rounds else ())
        },
    }


def say(text: str) -> None:
    """Tell whoever waits."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the rounds, write the report, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round: does it run, and roughly how fast")
    parser.add_argument("--bootstrap", help="a broker to use; it gets the topics bench-json and bench-raw")
    parser.add_argument("--rounds", type=int, help="how often each case runs")
    parser.add_argument("--soak", action="store_true", help="the long forms of cases")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="an earlier tree: its product runs beside ours")
    parser.add_argument("--cases", help="only these, separated by commas")
    parser.add_argument("--again", action="store_true", help="put the service's cases into what --out holds already")
    parser.add_argument("--out", type=Path, default=BUILD / "bench.json")
    given = parser.parse_args()
    plan, where = QUICK if given.quick else FULL, machine()
    lengths = listing.QUICK if given.quick else listing.SOAK if given.soak else listing.FULL
    before = None if given.before is None else given.before.resolve()
    wanted = None if given.cases is None else set(given.cases.split(","))
    adopt_orphans()
    with broker(given.bootstrap) as bootstrap:
        cases = [case for case in cases_of(plan, bootstrap, before) if wanted is None or case.name in wanted]
        services = [
            case
            for case in listing.cases_of(lengths, bootstrap, before)
            if (case.name not in lengths.left_out if wanted is None else case.name in wanted)
        ]
        clocked = wanted is None or "stages" in wanted
        if cases or clocked:
            fill(plan, bootstrap)
        rounds = []
        count = (given.rounds or plan.rounds) if cases else 0
        for number in range(count):
            say(f"round {number + 1} of {count}")
            rounds.append(run_round(cases, number, lengths.at_once))
        by_stage = stages(plan, bootstrap) if clocked else {}
        served = run_service_cases(services, lengths, full_speed(rounds), bootstrap)
    once = [each for runs in served.values() for each in runs if "error" not in each]
    result = report(where, plan, rounds, once, None if wanted is None else sorted(wanted))
    result["figures"] |= listing.gathered(services, served, "figures")
    result["details"] = listing.gathered(services, served, "details")
    result |= {"stages": by_stage, "service_cases": served, "lengths": asdict(lengths)}
    if given.again and given.out.exists():
        result = taken_in(json.loads(given.out.read_text()), result)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)
    print(f"everything: {given.out}")
    if result["validity"]["valid"] is False and not given.quick:
        raise SystemExit(f"the run is not to be believed: {result['validity']['why']}; run it again on a quiet machine")
    if failed := [name for name, runs in served.items() if any("error" in result for result in runs)]:
        raise SystemExit(f"these cases failed: {', '.join(failed)}")


def taken_in(before: dict[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """The former report with the service's cases that were run again, each with its own date and commit."""
    served = {**before["service_cases"], **later["service_cases"]}
    when = {"as_of": later["as_of"], "commit": later["machine"]["commit"]}
    again = {**before.get("again", {}), **dict.fromkeys(later["service_cases"], when)}
    cases = listing.cases_of(listing.FULL, "", ROOT)
    return {
        **before,
        "figures": before["figures"] | listing.gathered(cases, served, "figures"),
        "details": before["details"] | listing.gathered(cases, served, "details"),
        "service_cases": served,
        "stages": later["stages"] or before.get("stages", {}),
        "again": again,
    }


def full_speed(rounds: list[Round]) -> dict[str, float]:
    """The product's records a second by format, where the rounds measured them."""
    forms = [form for form in ("json", "raw") if rounds and f"product-{form}" in rounds[0]]
    return {form: max(rate(runs[f"product-{form}"]) for runs in rounds) for form in forms}


def show(result: Mapping[str, Any]) -> None:
    """The figures, and between which values those that every round gives were."""
    for name, value in result["figures"].items():
        by_round = result["figures_by_round"].get(name)
        spread = f"   (from {min(by_round):.2f} to {max(by_round):.2f} in {len(by_round)} rounds)" if by_round else ""
        print(f"{name:24} {value:10.2f}{spread}")


if __name__ == "__main__":
    main()
