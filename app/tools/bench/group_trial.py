"""A trial of a group: its workers learn the topic's records together on this machine, each in a process of its own.

Runs on the caller's thread, which starts the processes, reads what they print and kills them at the end: nothing of
them is kept, as in a trial by one process. A worker that fails ends the trial with its error.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from millrace.app.settings import Settings
from millrace.app.tools.bench.measure import Interval, Limits, Trial
from millrace.app.tools.child_process.python_program import module_command, worker_environment
from millrace.app.tools.child_process.supervisor import SupervisedProcess
from millrace.app.tools.local_group.places import Place, plan_of
from millrace.consumers.errors import MillraceError

_LOOK_EVERY_S = 0.05
_MODULE = "millrace.app.tools.bench.member"


class TrialError(MillraceError):
    """A worker of a trial could not start or go on."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class _TrialWorker:
    """One worker's process, and what it has said."""

    def __init__(self, place: Place, config: Path, folder: Path) -> None:
        self.calls = self.learnt = 0
        self.limits = Limits(waiting={}, advice="")
        self.error: TrialError | None = None
        self._log = folder / f"{place.name}.log"
        self._read = 0
        self._process = SupervisedProcess(
            module_command(_MODULE, [str(config), str(folder / "checkpoints")]),
            self._log,
            environment=worker_environment(place.variables),
        )

    @property
    def ended_well(self) -> bool:
        """Whether it has learnt all."""
        return self._process.exit_code == 0

    def look(self) -> None:
        """Take in what it has said since; raise what has ended it."""
        code = self._process.exit_code  # before the rest is read, which an ended process has written
        for line in self._lines(last=code is not None):
            self._take_in(json.loads(line))
        if self.error is not None:
            raise self.error
        if code not in {None, 0}:
            raise TrialError(f"a worker of the trial ended: {self._process.last_words()}", 1)

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def _take_in(self, said: dict[str, Any]) -> None:
        match said:
            case {"calls": calls, "learnt": learnt}:
                self.calls, self.learnt = calls, learnt
            case {"limits": limits}:
                self.limits = Limits(**limits)
            case {"error": text, "exit_code": code}:
                self.error = TrialError(text, code)

    def _lines(self, *, last: bool) -> Iterator[str]:
        """Yield the new objects among what it has printed; a line that is not complete yet waits."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            raw = log.read()
        complete = len(raw) if last else raw.rfind(b"\n") + 1
        self._read += complete
        yield from (line for line in raw[:complete].decode(errors="replace").splitlines() if line.startswith("{"))


def bench_group(config: Path, settings: Settings, workers: int, seconds: float) -> Trial:
    """Run the trial. Raises what a start would raise, and MillraceError where there are too few records."""
    plan, interval = plan_of(config, workers, in_terminal=False), Interval(seconds)
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder,
        _started(plan.places, config, folder) as group,
    ):
        chief = group[0]
        while not _complete(group, interval) and not chief.ended_well:
            time.sleep(_LOOK_EVERY_S)
        _complete(group, interval)
    arriving = [member.limits.arriving_per_s for member in group if member.limits.arriving_per_s is not None]
    limits = Limits(
        arriving_per_s=sum(arriving) if arriving else None,
        bound_by=chief.limits.bound_by,
        waiting=chief.limits.waiting,
        advice=chief.limits.advice,
    )
    return interval.trial(settings.name, settings.kafka.topics, limits, workers)


@contextmanager
def _started(places: Sequence[Place], config: Path, folder: str) -> Iterator[list[_TrialWorker]]:
    """Start the workers; kill them at the end, as nothing of them is needed."""
    with ExitStack() as ending:
        members = []
        for place in places:
            member = _TrialWorker(place, config, Path(folder))
            ending.callback(member.kill)
            members.append(member)
        yield members


def _complete(group: Sequence[_TrialWorker], interval: Interval) -> bool:
    for member in group:
        member.look()
    return interval.see(time.monotonic(), group[0].calls, sum(member.learnt for member in group))
