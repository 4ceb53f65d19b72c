"""A campaign on a group: its workers are killed again and again while records keep coming, then learn the rest.

The workers that are not killed begin again by themselves; those that have ended are started again, as a kubelet does.
While no chief runs, the campaign looks at what is on disk: everything must verify, and the next chief must resume from
the newest checkpoint. At the end it compares the weights' own witness with what was written. Runs on the caller's
thread; a process that still runs when the context ends is killed.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Self

from millrace.app.tools.prove.campaign import Expected, Figures, take_in
from millrace.app.tools.prove.checkpoint_reader import Shelf, Statement
from millrace.app.tools.prove.kills import SAVE_POINTS, GroupKill
from millrace.app.tools.prove.trainer_process import Run, TrainerFolder, UnprovenError, WaitedError, wait_until

CHIEF = 0
_MISTAKE = 2
"""A worker's exit code where the config or the model is wrong: no new start mends that."""
_STOP_S = 90.0
_LEARNT_ALL_S = 20.0
"""How long the others may take to end when the chief has learnt all."""


class _Member(Run):
    """The process of one worker; whoever waits for it starts others again that have ended meanwhile."""

    def __init__(
        self, home: TrainerFolder, *arguments: str, failpoints: str = "", meanwhile: Callable[[Run], None]
    ) -> None:
        self._meanwhile = meanwhile
        super().__init__(home, *arguments, failpoints=failpoints)

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition. WaitedError where the process ends before."""

        def holds() -> object:
            self._meanwhile(self)
            return condition()

        super().wait_for(holds, what)

    def _has_ended(self) -> bool:
        self._meanwhile(self)
        return super()._has_ended()


class GroupCampaign:
    """Kills of one group's workers, one after the other."""

    def __init__(self, homes: Sequence[TrainerFolder], shelf: Shelf, figures: Figures) -> None:
        """Prepare it; the first home is the chief's, to whose checkpoints the shelf belongs."""
        self.figures = figures
        self._homes, self._shelf = homes, shelf
        self._runs: dict[int, _Member] = {}
        self._durable: int | None = None
        """From what the present chief has to resume; None for the first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        for run in self._runs.values():
            run.kill()

    def wage(self, kills: Iterable[GroupKill], on_strike: Callable[[GroupKill], None]) -> None:
        """Kill by the plan."""
        self._start_missing()
        for kill in kills:
            self.strike(kill)
            on_strike(kill)

    def strike(self, kill: GroupKill) -> None:
        """Start whoever is missing, and kill."""
        first = kill.members[0]
        if kill.of_successor:
            self._start(first, failpoints=kill.method.failpoints)
        self._start_missing()
        kill.method.bring_about(self._runs[first], self._shelf)
        for member in kill.members:
            self._runs[member].kill()
        self.figures.kills += len(kill.members)
        self.figures.points[kill.point or type(kill.method).__name__] += len(kill.members)
        for member in kill.members:
            self._look_at(member)
        if CHIEF in kill.members:
            # Verify every checkpoint while no chief writes.
            contents = self._shelf.contents()
            self.figures.kills_in_save += bool(contents.torn or kill.point in SAVE_POINTS)
            self.figures.valid_rejected += len(contents.bad)
            self._durable = self._shelf.newest_number()

    def drain(self, expected: Expected) -> Statement:
        """Let the group learn the rest, and compare what it knows with what was written."""
        self._start_missing()
        self._runs[CHIEF].wait_for_first_call()  # so that all take a signal
        for run in self._runs.values():
            run.terminate()
        self._end(_STOP_S)
        for member in self._runs:
            self._look_at(member)
        self._durable = self._shelf.newest_number()
        until = ("--until", "now")
        self._start_missing(*until)
        wait_until(lambda: self._has_learnt_all(*until), "the group learnt the rest")
        self._end(_LEARNT_ALL_S)
        self._look_at(CHIEF)
        newest = self._shelf.newest()
        if newest is None:
            raise UnprovenError("a group that ended well has left no checkpoint")
        self.figures.valid_rejected += len(self._shelf.contents().bad)
        take_in(self.figures, newest, expected, most_waiting=0)
        return newest

    def _start(self, member: int, *arguments: str, failpoints: str = "") -> None:
        self._runs[member] = _Member(
            self._homes[member],
            *arguments,
            failpoints=failpoints,
            meanwhile=self._keep_running,
        )

    def _start_missing(self, *arguments: str) -> None:
        """Start each worker of which no process runs."""
        for member in range(len(self._homes)):
            run = self._runs.get(member)
            if run is None or not run.alive:
                self._start(member, *arguments)

    def _keep_running(self, waited_for: Run) -> None:
        """Start again whoever has ended by itself, but for the process that is waited for."""
        for member, run in list(self._runs.items()):
            run.has_called()  # notes when
            if run is not waited_for and not run.alive:
                self._start_again(member)

    def _start_again(self, member: int, *arguments: str) -> None:
        """Start a worker whose process has ended by itself; UnprovenError where that mends nothing."""
        run = self._runs[member]
        if run.ended_with == _MISTAKE:
            raise UnprovenError(f"worker {member} ended with {_MISTAKE}:\n{run.tail()}")
        if member == CHIEF:
            self._durable = None  # it may have published more before its end
        self._start(member, *arguments)

    def _end(self, within_s: float) -> None:
        """Wait until all have ended; kill whoever has not."""
        with suppress(WaitedError):
            wait_until(lambda: not any(run.alive for run in self._runs.values()), "all ended", within_s)
        for run in self._runs.values():
            run.kill()

    def _has_learnt_all(self, *arguments: str) -> bool:
        """Return whether the chief has ended well; start again whoever has ended otherwise."""
        for member, run in list(self._runs.items()):
            run.has_called()
            if run.ended_with not in {None, 0}:
                self._start_again(member, *arguments)
        return self._runs[CHIEF].ended_with == 0

    def _look_at(self, member: int) -> None:
        """Count from where a chief has resumed, and how soon a worker learnt that took another's place."""
        run = self._runs[member]
        if run.first_call_s is not None:
            self.figures.rto_s.append(round(run.first_call_s, 2))
        if member == CHIEF and self._durable is not None and (began_at := run.went_on_from()) is not None:
            self.figures.valid_rejected += began_at != self._durable
            self.figures.restored_newest += began_at == self._durable
