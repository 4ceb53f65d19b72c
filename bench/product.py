"""The product's case: the service in this process, as `millrace run` runs it, measured between two calls.

Timed, as the naive pipeline is: wall clock and CPU of the whole process, TensorFlow's threads included, from the return
of the call that reaches `--warm-up` records to the return of the one that reaches `--records` more. In between
everything counts: fetching, hand-off, decoding, blocks, training, live metrics, ledger, saves that are due. Not timed:
imports, connecting, building, the proof, tracing, the warm-up, and the ordered stop. The topic must hold more than is
timed, so that the queues are as full at the end as at the beginning: `ahead` says by how many records the fetching was
ahead of the learning, and `fetch_lag` how many the topic had left, at the two ends.
Prints one line of JSON: records, wall_s, cpu_s, the accuracy of the records from `--judged-from` to `--judged-to`, each
judged before it was learnt, and what the service says about itself. With `--stages 1` also the CPU of each stage.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

from stages import StageClock, by_stage

from millrace.app.service.logs import configure
from millrace.app.service.service import Running, RunOptions, Service
from millrace.app.settings import Loaded, load
from millrace.training.telemetry.live_metrics import LiveSnapshot
from millrace.training.telemetry.meter import Meter

CONFIGS = Path(__file__).parent / "configs"
AT_MOST_S = 600.0


@dataclass(frozen=True)
class Mark:
    """The process at the return of a call."""

    learnt: int
    wall_s: float
    cpu_s: float
    fetched: int
    lag: int
    threads: Mapping[int, int]
    stages: Mapping[tuple[int, str], int]


class Marks(Meter):
    """The service's meter, which also takes two marks. Runs on the trainer's thread."""

    def __init__(self, at: tuple[int, int], judged: tuple[int, int], clock: StageClock | None) -> None:
        super().__init__(time.monotonic)
        self._clock_of_stages = clock
        self.service: Service | None = None
        self.marks: list[Mark] = []
        self.done = threading.Event()
        self.looks: list[LiveSnapshot] = []
        self._at = at
        self._judged = judged
        self._seen = 0

    def called(self, seconds: float, learnt: int, *others: Any) -> None:
        """A call returned."""
        super().called(seconds, learnt, *others)
        self._seen += learnt
        if len(self.looks) < 2 and self._seen >= self._judged[len(self.looks)]:
            assert self.service is not None
            assert isinstance(self.service.running, Running)
            self.looks.append(self.service.running.live.look())
        if len(self.marks) < 2 and self._seen >= self._at[len(self.marks)]:
            self.marks.append(self._mark())
            if len(self.marks) == 2:
                self.done.set()

    def _mark(self) -> Mark:
        assert self.service is not None
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        source = self.service.source.statistics()
        stages = {} if self._clock_of_stages is None else self._clock_of_stages.look()
        return Mark(self._seen, wall_s, cpu_s, source.records, source.lag_records, thread_times(), stages)


def thread_times() -> dict[int, int]:
    """CPU nanoseconds of every thread of this process so far, by its id; nothing where there is no /proc."""
    times = {}
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            times[int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return times


def cpu_by_thread(first: Mark, last: Mark) -> dict[str, float]:
    """CPU seconds between two marks, by the threads' names as Python has them; those of libraries together."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: Counter[str] = Counter()
    for thread, spent in last.threads.items():
        found[names.get(thread, "libraries")] += spent - first.threads.get(thread, 0)
    return {name: round(spent / 1e9, 3) for name, spent in found.most_common() if spent > 1e6}


def cpu_by_stage(first: Mark, last: Mark) -> dict[str, float]:
    """CPU seconds between two marks, by stage."""
    threads = {thread: spent - first.threads.get(thread, 0) for thread, spent in last.threads.items()}
    stages = {at: spent - first.stages.get(at, 0) for at, spent in last.stages.items()}
    return by_stage(stages, threads, {thread.native_id or 0: thread.name for thread in threading.enumerate()})


def accuracy(first: LiveSnapshot, last: LiveSnapshot) -> dict[str, float]:
    """The live accuracy of what was learnt between two looks: each record's by the weights from before it."""
    right = [look.cumulative["accuracy"] * look.cumulative_records for look in (first, last)]
    judged = last.cumulative_records - first.cumulative_records
    return {"accuracy": (right[1] - right[0]) / judged, "judged": judged}


def settings(given: argparse.Namespace, checkpoints: str) -> Loaded:
    """The config with this run's places over it."""
    places = {
        "MILLRACE_KAFKA__BOOTSTRAP_SERVERS": given.bootstrap,
        "MILLRACE_KAFKA__TOPICS": given.topic,
        "MILLRACE_CHECKPOINTS__PATH": checkpoints,
        "MILLRACE_TRAINING__BATCH_SIZE": str(given.batch),
        "MILLRACE_TRAINING__BATCHES_PER_CALL": str(given.batches_per_call),
    }
    return load(CONFIGS / f"{given.config or f'higgs_{given.format}'}.yaml", {**os.environ, **places})


def measure(given: argparse.Namespace, checkpoints: str) -> dict[str, Any]:
    """Start the service, wait for both marks, stop it."""
    loaded = settings(given, checkpoints)
    configure(name=loaded.settings.name, form="text", level="warning")
    clock = StageClock() if given.stages else None
    if clock is not None:
        clock.install()
    marks = Marks((given.warm_up, given.warm_up + given.records), (given.judged_from, given.judged_to), clock)
    service = Service(loaded, RunOptions(), on_end=marks.done.set)
    service.meter, marks.service = marks, service
    service.start()
    in_time = marks.done.wait(AT_MOST_S)
    said = marks.snapshot()
    threads = cpu_by_thread(*marks.marks) if len(marks.marks) == 2 else {}
    stages = cpu_by_stage(*marks.marks) if clock is not None and len(marks.marks) == 2 else {}
    service.stop()
    service.join(60.0)
    if service.error is not None:
        raise service.error
    if not in_time or len(marks.marks) < 2:
        raise SystemExit(f"{said.learnt} records were learnt in {AT_MOST_S:g} s; does {given.topic} hold enough?")
    first, last = marks.marks
    return {
        "records": last.learnt - first.learnt,
        "wall_s": last.wall_s - first.wall_s,
        "cpu_s": last.cpu_s - first.cpu_s,
        **(accuracy(*marks.looks) if len(marks.looks) == 2 else {}),
        "ahead": [mark.fetched - mark.learnt for mark in (first, last)],
        "fetch_lag": [first.lag, last.lag],
        "waiting": dict(said.waiting),
        "cpu_by_thread": threads,
        "cpu_by_stage": stages,
        "balanced": service.ledger.statistics().balanced,
    }


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--format", choices=["json", "raw"], required=True)
    parser.add_argument("--config", help="a config of bench/configs; else the format's own")
    parser.add_argument("--records", type=int, default=1_500_000)
    parser.add_argument("--warm-up", type=int, default=300_000)
    parser.add_argument("--judged-from", type=int, default=49_152)
    parser.add_argument("--judged-to", type=int, default=65_536)
    parser.add_argument("--batches-per-call", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--stages", type=int, default=0, help="1: also say what each stage costs, by wrapping it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as checkpoints:
        print(json.dumps(measure(given, checkpoints)))


if __name__ == "__main__":
    main()
