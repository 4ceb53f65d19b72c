"""Starts a group for a config on this machine, keeps its workers running as a kubelet would, and ends them in order.

Runs on the main thread, since Linux kills a worker when the thread that started it ends.
"""

import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from millrace.app.settings import Settings, load
from millrace.app.settings.environment import with_own
from millrace.app.tools.child_process import SupervisedProcess, millrace_command, worker_environment
from millrace.app.tools.local_broker.broker import HOST, free_port, is_free
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.positions import parse_until
from millrace.training.group.membership import Membership

_CLOSING_S = 10.0
"""How long a process may take to end beside stop.grace."""

_PORTS_TRIED = 100
_SCALE, _LISTEN, _PROBES, _LOG_FORM = (
    "MILLRACE_SCALE__",
    "MILLRACE_API__LISTEN",
    "MILLRACE_API__PROBES",
    "MILLRACE_LOGS__FORMAT",
)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_WELL_S = 60.0
"""A worker that has run for so long is started again after the first pause."""

FORCED = 1
"""The exit code where a worker had to be killed."""
MISTAKE = 2
"""A worker's exit code where the config or the model is wrong: no new start mends that."""
_LOOK_EVERY_S = 0.1
_LEARNT_ALL_S = 10.0
"""How long a worker that has learnt all waits for the chief's end, before it counts as drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One worker's."""

    name: str
    """`chief` or `worker 1`."""
    page: str
    """The address of its page; with port 0 the worker's log names the port."""
    variables: Mapping[str, str]
    """The settings that differ from those of the config, as variables of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole group."""

    places: tuple[Place, ...]
    """By the workers' numbers, the chief first."""
    grace_s: float
    """How long a worker may take to end after SIGTERM."""


def plan_of(config: Path, workers: int, *, in_terminal: bool, free: Callable[[int], bool] = is_free) -> Plan:
    """Return the places of so many workers of this config; ConfigError where the config does not suit a group."""
    addresses = [f"{HOST}:{free_port()}" for _ in range(workers)]
    common = {f"{_SCALE}WORKERS": str(workers), f"{_SCALE}ADDRESSES": ",".join(addresses)}
    settings = load(config, with_own(common)).settings
    if in_terminal and settings.logs.format == "auto":
        common[_LOG_FORM] = "text"  # a worker writes to a file, and would take JSON
    places, port = [], settings.api.port
    for index in range(workers):
        variables = {**common, f"{_SCALE}INDEX": str(index)}
        if index:
            port = _next_free(port, lambda port: f"{HOST}:{port}" not in addresses and free(port))
            variables |= {_LISTEN: _with_port(settings, port), _PROBES: "null"}
        name = Membership(index=index, addresses=addresses, timeout_s=settings.scale.timeout).name
        page = f"{settings.api.scheme}://{_with_port(settings, port)}/"
        places.append(Place(name=name.removeprefix("the "), page=page, variables=variables))
    return Plan(places=tuple(places), grace_s=settings.stop.grace)


def _next_free(port: int, free: Callable[[int], bool]) -> int:
    """Return the first free port after this one; 0, which takes any, has none after it."""
    if port == 0:
        return 0
    for candidate in range(port + 1, min(port + 1 + _PORTS_TRIED, 2**16)):
        if free(candidate):
            return candidate
    raise ConfigError(f"none of the {_PORTS_TRIED} ports after {port} is free; write another port in api.listen")


def _with_port(settings: Settings, port: int) -> str:
    return f"{settings.api.listen.rpartition(':')[0]}:{port}"


class Worker:
    """One worker, on the thread that runs the group. `command` is a whole command line."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, write: Callable[[str], None]
    ) -> None:
        self.name = name
        self._command, self._environment, self._log, self._write = command, environment, log, write
        self._read = 0
        self._process: SupervisedProcess | None = None
        self._began = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._start_at: float | None = None

    @property
    def pid(self) -> int:
        """The id of its newest process."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of its newest process; None while it runs."""
        return None if self._process is None else self._process.exit_code

    @property
    def runs(self) -> bool:
        """Whether a process of it runs."""
        return self._process is not None and self._process.alive

    def start(self) -> None:
        """Start a process of it."""
        self._process = SupervisedProcess(self._command, self._log, environment=self._environment)
        self._began, self._start_at = time.monotonic(), None

    def start_again(self, least_pause_s: float = 0.0) -> bool:
        """Start it again once its pause, of `least_pause_s` at least, is over; return whether it was started.

        Call it again and again while it has ended. Each pause is twice as long as the one before.
        """
        now = time.monotonic()
        if self._start_at is None:
            if now - self._began > _WELL_S:
                self._pause_s = _FIRST_PAUSE_S
            pause_s = max(self._pause_s, least_pause_s)
            self._start_at, self._pause_s = now + pause_s, min(_LONGEST_PAUSE_S, 2 * self._pause_s)
            self._write(f"{self.name} ended with {self.exit_code}; it starts again after {pause_s:g} s")
        if now < self._start_at:
            return False
        self.start()
        return True

    def pass_on(self) -> None:
        """Write the lines of its log that are new, its name before each; one that is not complete yet waits."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            raw = log.read()
        complete = len(raw) if self.exit_code is not None else raw.rfind(b"\n") + 1
        self._read += complete
        for line in raw[:complete].decode(errors="replace").splitlines():
            self._write(f"{self.name:<8} | {line}")

    def terminate(self) -> None:
        """Send SIGTERM, if it runs."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL, if it runs, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()


class StopSignals:
    """Counts SIGINT and SIGTERM: the first asks for the end in order, the second forces it."""

    def __init__(self) -> None:
        self.taken = 0

    def install(self) -> None:
        """Take both signals from now on. On the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self.taken += 1


def run_group(
    workers: Sequence[Worker],
    signals: StopSignals,
    *,
    ends: bool,
    grace_s: float,
    started: Callable[[Worker], None],
) -> int:
    """Run the workers, the chief first in line, until a signal or their end; return the exit code.

    `ends` is whether the group ends by itself, once it has learnt all that it was to learn. `started` is called with
    each worker that was started, also again.
    """
    try:
        for worker in workers:
            worker.start()
            started(worker)
        while not signals.taken:
            time.sleep(_LOOK_EVERY_S)
            for worker in workers:
                worker.pass_on()
            if (code := _ended(workers, ends=ends)) is not None:
                return code
            for worker in workers:
                pause_s = _LEARNT_ALL_S if ends and worker.exit_code == 0 else 0.0
                if worker.exit_code is not None and worker.start_again(pause_s):
                    started(worker)
        return _stop(workers, signals, grace_s)
    finally:
        _stop(workers, signals, grace_s)


def _ended(workers: Sequence[Worker], *, ends: bool) -> int | None:
    """Return the group's exit code where a worker has ended in a way that ends the group; else None."""
    if any(worker.exit_code == MISTAKE for worker in workers):
        return MISTAKE
    return 0 if ends and workers[0].exit_code == 0 else None


def _stop(workers: Sequence[Worker], signals: StopSignals, grace_s: float) -> int:
    """End all that run, by SIGTERM, and by SIGKILL after the grace or a second signal; return the chief's exit code."""
    for worker in workers:
        worker.terminate()
    ends_at = time.monotonic() + grace_s
    while any(worker.runs for worker in workers):
        if time.monotonic() > ends_at or signals.taken > 1:
            for worker in workers:
                worker.kill()
        time.sleep(_LOOK_EVERY_S)
        for worker in workers:
            worker.pass_on()
    code = workers[0].exit_code
    return FORCED if code is None or code < 0 else code


def run_locally(
    config: Path,
    workers: int,
    until: str | None,
    *,
    paused: bool = False,
    in_terminal: bool,
    started: Callable[[Place, int], None],
    write: Callable[[str], None],
) -> int:
    """Run so many workers of a config until a signal, or until they have learnt up to `until`; return the exit code.

    With `paused` they begin to learn when the chief is told to resume.
    `started` is called with the place and the process id of each worker that was started, also again; `write` with
    each line of their logs.
    """
    if until is not None:
        parse_until(until)  # so that a mistake is one line, and not one of each worker
    plan = plan_of(config, workers, in_terminal=in_terminal)
    more = [*([] if until is None else ["--until", until]), *(["--paused"] if paused else [])]
    command = millrace_command(["run", "-c", str(config), *more])
    signals = StopSignals()
    signals.install()
    with tempfile.TemporaryDirectory(prefix="millrace-group-") as logs:
        group = {
            Worker(
                place.name, command, worker_environment(place.variables), Path(logs) / f"{place.name}.log", write
            ): place
            for place in plan.places
        }
        return run_group(
            list(group),
            signals,
            ends=until is not None,
            grace_s=plan.grace_s + _CLOSING_S,
            started=lambda worker: started(group[worker], worker.pid),
        )
