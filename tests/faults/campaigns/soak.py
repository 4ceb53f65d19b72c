"""The soak: one service for half an hour, while everything around it goes wrong at random.

    python -m tests.faults.campaigns.soak --minutes 30

Brokers are killed, stopped and frozen, the network is slow, resets and falls silent, poison comes in bursts, steps
raise, somebody rewinds, saves and reads the API all the time. At the end all that was written must be learnt, once, and
memory, descriptors and threads must not have grown over the last two thirds. The figures go to `soak` in
build/chaos.json, beside what is there; it ends with 1 where a promise is broken.
"""

import argparse
import http.client
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from millrace.consumers.errors import MillraceError
from millrace.consumers.reasons import Reason
from tests.faults.campaigns.machine import ROOT, machine
from tests.faults.harness.account import assert_learnt_once
from tests.faults.harness.broker_disturbances import BrokerKilled, BrokerPaused, BrokerStopped
from tests.faults.harness.disturbances import Disturbance
from tests.faults.harness.network_disturbances import HalfOpenNetwork, ResettingNetwork, SlowNetwork
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.spikes import QUIET, Spiked
from tests.faults.harness.station import Station
from tests.faults.harness.topics import Topic
from tests.faults.harness.vitals import Vitals

PARTITIONS = 4
_RECORDS_PER_S = 800.0
_POISON = Mixture(share=0.002, kinds=QUIET)
_BURST = 200
_SAMPLE_S = 1.0
_LOOKS = ("/status", "/lag", "/throughput", "/checkpoints", "/livez", "/readyz")
_LONG_ENOUGH_S = 600.0
"""What TensorFlow and the allocator take in their first minutes says nothing of later ones."""
_MOST_MB_PER_MIN, _MOST_DESCRIPTORS_PER_MIN, _MOST_THREADS_PER_MIN = 1.0, 0.5, 0.2


@dataclass(slots=True, kw_only=True)
class Figures:
    """What the soak comes to."""

    seed: int
    machine: dict[str, Any]
    minutes: float = 0.0
    records: int = 0
    learnt_once: bool = False
    """By the witness in the weights and by the ids inside the records."""
    balanced: bool = False
    faults: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    server_errors: int = 0
    exit_code: int | None = None
    memory_mb_per_min: float | None = None
    memory_mb: float | None = None
    descriptors_per_min: float | None = None
    threads_per_min: float | None = None
    broken: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        """Whether everything held."""
        return not self.broken

    def summary(self) -> dict[str, Any]:
        """Return the figures as the report holds them."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {**values, "faults": dict(self.faults), "kept": self.kept}


class Soak:
    """One service, and all that is done to it."""

    def __init__(self, station: Station, run: Run, topic: Topic, stream: Spiked, figures: Figures) -> None:
        self._station, self._run, self._topic, self._stream = station, run, topic, stream
        self._random = Random(figures.seed)
        self._samples: list[tuple[float, Vitals]] = []
        self._acts = self._listed()
        self._over_at = 0.0
        self.figures = figures

    def last(self, minutes: float) -> None:
        """Do one thing after another for this long; then mend everything."""
        began = time.monotonic()
        self._over_at = began + minutes * 60
        deal = self._deal()
        while time.monotonic() < self._over_at:
            name = next(deal)
            self._acts[name]()
            self.figures.faults[name] += 1
            self._say(f"{(time.monotonic() - began) / 60:.1f} min: {name}")
            self._watch(self._random.uniform(2, 8))
        self._station.make_whole()
        self.figures.minutes = round((time.monotonic() - began) / 60, 1)

    def reckon(self) -> None:
        """Measure what it has learnt, how it ends, and whether anything has grown."""
        figures = self.figures
        self._topic.still()
        statement = assert_learnt_once(self._run, self._topic)
        figures.learnt_once = True
        figures.balanced = all(account.balanced for account in statement.ledger.values())
        figures.records = self._topic.records
        self._run.terminate()
        figures.exit_code = self._run.exit_code()
        self._measure()
        figures.broken += list(self._complaints())

    def _deal(self) -> Iterator[str]:
        """Yield every act in random order, again and again, so that none is left out for long."""
        names = list(self._acts)
        while True:
            self._random.shuffle(names)
            for name in names:
                self._station.make_whole()
                yield name

    def _listed(self) -> dict[str, Callable[[], None]]:
        broker, proxy = self._station.broker, self._station.proxy
        return {
            "broker killed": lambda: self._without_broker(BrokerKilled(broker)),
            "broker stopped": lambda: self._without_broker(BrokerStopped(broker)),
            "broker frozen": lambda: self._without_broker(BrokerPaused(broker)),
            "network slow": lambda: self._for_a_while(SlowNetwork(proxy)),
            "network resets": lambda: self._for_a_while(ResettingNetwork(proxy, self._random.randrange(2**30))),
            "network half open": lambda: self._for_a_while(HalfOpenNetwork(proxy)),
            "poison burst": self._burst,
            "step raises": lambda: self._stream.spike(Reason.STEP_RAISED),
            "rewind": self._rewind,
            "save": lambda: self._order("/checkpoints?wait=60s", {"note": "soak"}, HTTPStatus.CREATED),
        }

    def _without_broker(self, disturbance: Disturbance) -> None:
        """Stop the writer while the broker is away, because it is not under test."""
        self._topic.still()
        self._for_a_while(disturbance)
        self._topic.flow(_RECORDS_PER_S)

    def _for_a_while(self, disturbance: Disturbance) -> None:
        disturbance.begin()
        try:
            self._watch(self._random.uniform(3, 10))
        finally:
            disturbance.heal()
        assert disturbance.hits, f"{disturbance} has hit nothing"

    def _burst(self) -> None:
        kinds = _POISON.kinds
        for _ in range(_BURST):
            self._stream.spike(self._random.choice(kinds))

    def _rewind(self) -> None:
        self._run.wait_for(self._run.ready, "it took orders")
        to = self._random.choice(Shelf(self._run.project.folder).numbers()[1:] or [0])
        self._order("/rewind?wait=60s", {"to": to, "reason": "soak"}, HTTPStatus.CREATED, HTTPStatus.NOT_FOUND)

    def _order(self, path: str, body: object, *expected: HTTPStatus) -> None:
        status, answer = self._run.ask("POST", path, body)
        assert status in {*expected, HTTPStatus.OK, HTTPStatus.ACCEPTED, HTTPStatus.CONFLICT}, answer

    def _watch(self, seconds: float) -> None:
        """Read the API and the process's vitals, as a dashboard does."""
        ends_at = min(time.monotonic() + seconds, self._over_at)
        while time.monotonic() < ends_at:
            assert self._run.alive, self._run.tail()
            self._samples.append((time.monotonic(), Vitals.of(self._run.pid)))
            with suppress(OSError, http.client.HTTPException):
                status, _ = self._run.ask("GET", self._random.choice(_LOOKS))
                self.figures.requests += 1
                self.figures.server_errors += status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != 503
            time.sleep(_SAMPLE_S)

    def _measure(self) -> None:
        """Compute the slopes over the last two thirds, by least squares."""
        times = np.array([at for at, _ in self._samples])
        late = times >= times[0] + (times[-1] - times[0]) / 3
        minutes = (times[late] - times[0]) / 60

        def slope(values: list[float]) -> float:
            return round(float(np.polyfit(minutes, np.array(values)[late], 1)[0]), 3)

        vitals = [one for _, one in self._samples]
        self.figures.memory_mb = round(vitals[-1].anonymous_bytes / 1e6, 1)
        self.figures.memory_mb_per_min = slope([one.anonymous_bytes / 1e6 for one in vitals])
        self.figures.descriptors_per_min = slope([float(one.descriptors) for one in vitals])
        self.figures.threads_per_min = slope([float(one.threads) for one in vitals])

    def _complaints(self) -> Iterator[str]:
        figures = self.figures
        if figures.exit_code != 0:
            yield f"it ended with {figures.exit_code}"
        if not figures.balanced:
            yield "a partition's account does not add up"
        if never := sorted(name for name in self._acts if not figures.faults[name]):
            yield f"it was too short to prove anything of: {', '.join(never)}"
        if figures.server_errors:
            yield f"{figures.server_errors} of {figures.requests} requests were answered with an error of ours"
        if figures.minutes * 60 < _LONG_ENOUGH_S:
            return
        limits = {
            "memory_mb_per_min": _MOST_MB_PER_MIN,
            "descriptors_per_min": _MOST_DESCRIPTORS_PER_MIN,
            "threads_per_min": _MOST_THREADS_PER_MIN,
        }
        for name, most in limits.items():
            if getattr(figures, name) > most:
                yield f"{name} is {getattr(figures, name)}, and must be at most {most}"

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command


def soak(folder: Path, *, minutes: float, seed: int) -> Figures:
    """Run it on a broker of its own."""
    figures, stream = Figures(seed=seed, machine=machine()), Spiked(_POISON)
    with (
        Station(folder / "broker") as station,
        Topic(station.straight, f"soak-{seed}", PARTITIONS, stream, seed) as topic,
    ):
        topic.flow(_RECORDS_PER_S)
        project = Project(
            folder / "project",
            topic,
            kafka={"bootstrap_servers": [station.proxied]},
            training={"replicas": 2, "shuffle": 1024},
            checkpoints={"every": "5s"},
        )
        with Run(project, cold=True) as run:
            run.wait_for_first_call()
            one = Soak(station, run, topic, stream, figures)
            try:
                one.last(minutes)
                one.reckon()
            except (AssertionError, MillraceError) as error:
                figures.broken.append(f"{error}")
    return figures


def merge(path: Path, figures: Figures) -> None:
    """Add it to the report, beside what is there."""
    report = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    run = {"as_of": now, "form": "soak", "seed": figures.seed, "machine": figures.machine}
    runs = {**report.get("runs", {}), "soak": run}
    path.write_text(json.dumps({**report, "soak": figures.summary(), "runs": runs}, indent=1))


def main() -> None:
    """Read the options, soak, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws what goes wrong")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "chaos.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-soak-") as folder:
        figures = soak(Path(folder), minutes=given.minutes, seed=given.seed)
    merge(given.out, figures)
    print(json.dumps(figures.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not figures.kept))


if __name__ == "__main__":
    main()
