"""What the cases share: the service and its HTTP side in this process as `millrace run` has them, watched from within.

A case hosts the service, sets it to work, and reads what its meter noted at every call. Whoever loads it (producers,
probes, a flood) does so from a process of its own. Every wait is bounded; a case that cannot measure fails.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[2]))

from millrace.app.api.server import ApiServer
from millrace.app.service.logs import configure
from millrace.app.service.service import RunOptions, Service
from millrace.app.settings import Loaded, load
from millrace.training.telemetry.meter import Meter

CASES = Path(__file__).parent
ROOT = CASES.parents[1]
CONFIGS = ROOT / "bench" / "configs"
STATE = ROOT / "build" / "bench"
"""On the disk of the project: the one of /tmp may be memory."""
START_S = 120.0
STOP_S = 60.0
LOOK_S = 0.05

Figures = Mapping[str, float | None]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calls:
    """Some calls, in order; one number of each in each column."""

    at: Floats
    """When it returned, on the monotonic clock."""
    took_s: Floats
    learnt: Floats
    freshness_s: Floats
    """From the timestamp of its oldest record to its return; NaN where it had none."""

    def __len__(self) -> int:
        return len(self.at)

    def rate(self) -> float:
        """Records a second from the first return to the last."""
        return float(self.learnt[1:].sum() / (self.at[-1] - self.at[0]))

    def freshness_ms(self) -> dict[str, float]:
        """How old records were when they were learnt: the oldest of each call, so an upper bound."""
        ages = self.freshness_s[~np.isnan(self.freshness_s)]
        return {name: ms(percentile(ages, share)) for name, share in (("p50", 50), ("p99", 99), ("max", 100))}


class Notes(Meter):
    """The service's meter, which also notes each call and each save. Written on the trainer's thread."""

    def __init__(self) -> None:
        super().__init__(time.monotonic)
        self._noted, self._stalls = array("d"), array("d")
        self.waited_s = 0.0
        """For blocks, so far."""

    def waited(self, seconds: float) -> None:
        super().waited(seconds)
        self.waited_s += seconds

    def called(self, seconds: float, learnt: int, batches: int, freshness_s: float | None, *more: Any) -> None:
        super().called(seconds, learnt, batches, freshness_s, *more)
        age = math.nan if freshness_s is None else freshness_s
        self._noted.extend((time.monotonic(), seconds, learnt, age))

    def saved(self, seconds: float) -> None:
        super().saved(seconds)
        self._stalls.extend((time.monotonic(), seconds))

    def calls(self, since: float = -math.inf, until: float = math.inf) -> Calls:
        """The calls that returned in that time."""
        table = np.array(self._noted).reshape(-1, 4)
        table = table[(table[:, 0] >= since) & (table[:, 0] < until)]
        return Calls(table[:, 0], table[:, 1], table[:, 2], table[:, 3])

    def saves(self) -> Floats:
        """When each copy of the state was complete, and how long it held the trainer up: [n, 2]."""
        return np.array(self._stalls).reshape(-1, 2)


@dataclass
class Hosted:
    """A service at work in this process."""

    service: Service
    notes: Notes
    url: str
    ended: threading.Event
    probes_url: str | None = None
    """Where probes are answered on a listener of their own, if they are."""
    before_fetching_mb: float = 0.0
    """Anonymous memory when everything was built and nothing was fetched yet."""

    def watch_start(self) -> None:
        """Sample the memory until the first incarnation begins; in a thread."""
        while not self.ended.is_set() and not self.service.ledger.incarnation:
            self.before_fetching_mb = anonymous_mb()
            time.sleep(LOOK_S / 5)

    def wait_for(self, condition: Callable[[], Any], at_most_s: float, what: str) -> None:
        """Wait until it holds; an error when it does not in time, or when the service has ended before."""
        until = time.monotonic() + at_most_s
        while not condition():
            if self.ended.is_set():
                raise self.service.error or SystemExit(f"the service ended before {what}")
            if time.monotonic() > until:
                raise SystemExit(f"after {at_most_s:g} s: not yet {what}")
            time.sleep(LOOK_S)

    def wait_until_at_work(self) -> None:
        """Until it fetches."""
        self.wait_for(lambda: self.service.board.latest is not None, START_S, "at work")

    def wait_for_calls(self, count: int = 1, at_most_s: float = START_S) -> None:
        """Until so many calls have returned."""
        self.wait_for(lambda: self.notes.snapshot().calls >= count, at_most_s, f"{count} calls")

    def run_for(self, seconds: float, each_second: Callable[[], None] = lambda: None) -> None:
        """Let it work on, looking each second."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.ended.wait(min(1.0, left)):
                raise self.service.error or SystemExit("the service ended while it was measured")
            each_second()

    def lag(self) -> int:
        """Offsets that are not learnt yet, as Kafka said a second ago."""
        ends = self.service.source.statistics().lag.partitions
        positions = self.service.ledger.positions()
        return sum(max(0, (ends[p].end or position) - position) for p, position in positions.items() if p in ends)

    def loop_lags_ms(self) -> dict[str, float]:
        """Both loops' lag, the 99th percentile of the last half minute, as /throughput has it."""
        lags: dict[str, float] = get(f"{self.url}/throughput")["loop_lag_ms"]
        return lags


class Memory:
    """The anonymous memory of this process, sampled again and again."""

    def __init__(self, host: Hosted) -> None:
        self._host = host
        self._samples: list[tuple[float, float]] = []

    def __len__(self) -> int:
        return len(self._samples)

    def look(self) -> None:
        """Take a sample."""
        self._samples.append((time.monotonic(), anonymous_mb()))

    def slope_mb_per_min(self, last: float = 0.8) -> float:
        """The growth over the last so much of the time, by least squares."""
        table = np.array(self._samples)
        table = table[table[:, 0] >= table[-1, 0] - last * (table[-1, 0] - table[0, 0])]
        return round(float(np.polyfit(table[:, 0] - table[0, 0], table[:, 1], 1)[0] * 60), 2)

    def facts(self) -> dict[str, float]:
        """At both ends and at the worst; and what came on top after the first fetch, as a share of the one bound.

        More than the bound is no figure, but a leak: it ends the case.
        """
        values = [mb for _, mb in self._samples]
        before, limit = self._host.before_fetching_mb, self._host.service.settings.memory.limit / 1e6
        facts = {"before_fetching": before, "first": values[0], "last": values[-1], "peak": max(values), "limit": limit}
        rounded = {f"memory_{name}_mb": round(mb, 1) for name, mb in facts.items()}
        of_bound = round((max(values) - before) / limit, 3)
        if of_bound > 1:
            raise SystemExit(f"what is held came to {of_bound} of memory.limit, which is to bound it: {rounded}")
        return {**rounded, "memory_of_bound": of_bound}


@contextlib.contextmanager
def hosted(
    config: str, settings: Mapping[str, Any], options: RunOptions | None = None, notes: Notes | None = None
) -> Iterator[Hosted]:
    """A service with these settings over the config's, and checkpoints of its own, for as long as this lasts."""
    STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="case-", dir=STATE) as checkpoints:
        loaded = settings_of(config, {"checkpoints.path": checkpoints, "api.listen": "127.0.0.1:0", **settings})
        configure(name=loaded.settings.name, form="text", level="warning")
        notes, ended = notes or Notes(), threading.Event()
        service = Service(loaded, options or RunOptions(), on_end=ended.set)
        service.meter = notes
        server = ApiServer(service, loaded.settings.api)
        server.bind()
        answering = threading.Thread(target=server.serve, name="http", daemon=True)
        service.start()
        answering.start()
        own = None if server.probes_port is None else f"http://127.0.0.1:{server.probes_port}"
        host = Hosted(service, notes, f"http://127.0.0.1:{server.port}", ended, own)
        threading.Thread(target=host.watch_start, name="watch-start", daemon=True).start()
        try:
            yield host
        finally:
            service.stop()
            stopped = service.join(STOP_S)
            server.stop()
            answering.join(STOP_S)
        if service.error is not None or not stopped:
            raise service.error or SystemExit(f"the service did not end within {STOP_S:g} s")


def settings_of(config: str, settings: Mapping[str, Any]) -> Loaded:
    """A config of the benchmark with these settings over it, by dotted key."""
    return load(CONFIGS / f"{config}.yaml", {**os.environ, **as_environment(settings)})


def as_environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings by dotted key as the environment names them."""
    return {f"MILLRACE_{key.replace('.', '__').upper()}": str(value) for key, value in settings.items()}


def place(bootstrap: str, topic: str) -> dict[str, str]:
    """Where a case's records are."""
    return {"kafka.bootstrap_servers": bootstrap, "kafka.topics": topic}


@contextlib.contextmanager
def beside(script: str, **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """A script of the cases in a process of its own, which is gone when this ends."""
    told = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    process = subprocess.Popen([sys.executable, str(CASES / script), *told], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(STOP_S)
        assert process.stdout is not None
        process.stdout.close()


def said_by(process: "subprocess.Popen[str]", at_most_s: float) -> dict[str, Any]:
    """The line of JSON that a script prints at its end."""
    printed, _ = process.communicate(timeout=at_most_s)
    if process.returncode != 0 or not printed.strip():
        raise SystemExit(f"{process.args!r} failed with exit code {process.returncode}")
    answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return answer


def get(url: str) -> Any:
    """An answer of the HTTP side."""
    import urllib.request

    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def anonymous_mb() -> float:
    """Memory of this process that is no file's, in MB (10^6 bytes)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024 / 1e6


def cpu_s(process: int) -> float:
    """The CPU seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def other_work_s(*processes: int) -> float:
    """The CPU seconds of all cores so far, without these processes; what the machine's host took counts too."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK") - sum(map(cpu_s, processes))


def percentile(values: Floats, share: float) -> float:
    """By nearest rank from above, so that few values do not flatter."""
    return float(np.percentile(values, share, method="higher")) if len(values) else math.nan


def ms(seconds: float) -> float:
    """To a tenth of a millisecond."""
    return round(seconds * 1000, 1)


def report(figures: Figures, details: Mapping[str, Any]) -> None:
    """The case's result, as the harness reads it."""
    print(json.dumps({"figures": figures, "details": details}))
