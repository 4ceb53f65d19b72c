"""A trial of a group: its workers learn the topic's records together on this machine, each in a process of its own.

Runs on the caller's thread, which starts the processes, reads what they print and kills them at the end: nothing of
them is kept, as in a trial by one process. A worker that fails ends the trial with its error.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from millrace.app.settings import Settings
from millrace.app.tools.bench.measure import Interval, Limits, Trial
from millrace.app.tools.child_process import SupervisedProcess, module_command, worker_environment
from millrace.app.tools.local_group import Place, plan_of
from millrace.consumers.errors import MillraceError

_LOOK_EVERY_S = 0.05
_MODULE = "millrace.app.tools.bench.trial"


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
        for told in self._told(last=code is not None):
            match told:
                case {"calls": calls, "learnt": learnt}:
                    self.calls, self.learnt = calls, learnt
                case {"limits": limits}:
                    self.limits = Limits(**limits)
                case {"error": text, "exit_code": exit_code}:
                    self.error = TrialError(text, exit_code)
        if self.error is not None:
            raise self.error
        if code not in {None, 0}:
            raise TrialError(f"a worker of the trial ended: {self._process.last_words(log_stays=False)}", 1)

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def _told(self, *, last: bool) -> Iterator[Any]:
        """Yield the new objects among what it has printed, the model's prints left out; half a line waits."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            raw = log.read()
        complete = len(raw) if last else raw.rfind(b"\n") + 1
        self._read += complete
        for line in raw[:complete].decode(errors="replace").splitlines():
            told = None
            if line.startswith("{"):
                with suppress(ValueError):  # a model may print a dict
                    told = json.loads(line)
            if told is not None:
                yield told


def bench_group(config: Path, settings: Settings, workers: int, seconds: float) -> Trial:
    """Run the trial. Raises what a start would raise, and MillraceError where there are too few records."""
    plan, interval = plan_of(config, workers, in_terminal=False), Interval(seconds)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder, ExitStack() as ending:
        group = list[_TrialWorker]()
        for place in plan.places:
            group.append(_TrialWorker(place, config, Path(folder)))
            ending.callback(group[-1].kill)  # nothing of it is needed
        chief = group[0]
        while not _complete(group, interval) and not chief.ended_well:
            time.sleep(_LOOK_EVERY_S)
        _complete(group, interval)
    arriving = [member.limits.arriving_per_s for member in group if member.limits.arriving_per_s is not None]
    limits = replace(chief.limits, arriving_per_s=sum(arriving) if arriving else None)
    return interval.trial(settings.name, settings.kafka.topics, limits, workers)


def _complete(group: Sequence[_TrialWorker], interval: Interval) -> bool:
    for member in group:
        member.look()
    return interval.see(time.monotonic(), group[0].calls, sum(member.learnt for member in group))
