"""The observer: what one snapshot cannot know, because it takes two: rates of others, and since when.

Owns a minute of samples and the beginnings of problems. It lives on the HTTP side's loop, which looks once a second and
at each request; nothing here waits or locks. What is older than a minute is forgotten. It ends with the loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from millrace.app.monitoring.lag import CaughtUp, LearntLag, caught_up, learnt_lag
from millrace.app.monitoring.models import Trouble
from millrace.app.monitoring.problems import CommitFailure, problems_of, refusals_of
from millrace.app.monitoring.snapshot import Snapshot
from millrace.consumers.loop_thread import LoopLag
from millrace.training.telemetry.group_report import MemberReport

log = logging.getLogger(__name__)
LOOK_EVERY_S = 1.0
_KEPT_S = 60.0
_LATELY_S = 10.0
_CAUGHT_UP_BELOW_S, _BEHIND_FROM_S = 1.0, 5.0
"""With less lag than the first, learning keeps up; from the second on it does not. In between it is as it was."""
_UNANSWERED_LASTS_S = 30.0
"""How long a commit without an answer stays a problem: it is tried again every few seconds."""
_REFUSALS_LAST_S = 600.0
"""How long a refused commit stays a problem: every save commits, so one that recurs is seen again before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPace:
    """How fast one worker of a group was over the last minute."""

    records_per_s: float
    waiting: float
    """The share of the time in which it waited for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A snapshot, and what the minute before it adds."""

    snapshot: Snapshot
    lag: LearntLag
    problems: tuple[Trouble, ...]
    arriving_per_s: float | None
    """Written to the topic over the last minute; None while not known."""
    arriving_lately_per_s: float | None
    """The same over the last ten seconds."""
    starved: float | None
    """Share of the time in which the input pipeline itself waited for records; None while not known."""
    keeps_up: bool
    """Whether records are learnt as fast as they come. It stays so until the lag is clearly more than a moment."""
    paces: tuple[MemberPace, ...]
    """How fast each worker of the group was over the last minute, by its number; none if not known."""
    loop_lag_p99_s: float
    """How late the HTTP side's loop was for its timers over the last half minute."""


@dataclass(frozen=True, slots=True)
class _LastLook:
    clock: float
    ends: int | None
    """The sum over the partitions."""
    partitions: int
    incarnation: int
    waiting_records_s: float | None
    members: tuple[MemberReport, ...]


@dataclass(slots=True)
class _LastRise:
    """When a counter grew last."""

    count: int = 0
    at: float = float("-inf")

    def look(self, count: int, clock: float) -> None:
        if count > self.count:
            self.count, self.at = count, clock

    def within(self, seconds: float, clock: float) -> bool:
        return clock - self.at < seconds


class Observer:
    """Compares snapshots over a minute."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take
        self._samples: deque[_LastLook] = deque()
        self._since: dict[str, float] = {}
        self._caught_up = CaughtUp()
        self._keeps_up = False
        self._refusals = {CommitFailure.REFUSED: _LastRise(), CommitFailure.UNANSWERED: _LastRise()}
        self._loop_lag = LoopLag()

    async def watch(self, on_look: Callable[[Observation], None] = lambda _observation: None) -> None:
        """Look once a second until cancelled, and pass each observation on."""
        self._loop_lag.watch(asyncio.get_running_loop())
        while True:
            try:
                on_look(self.look())
            except Exception:
                log.exception("a look at the service failed; the next one is due in %g s", LOOK_EVERY_S)
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> Observation:
        """Take a snapshot, and compare it with those before."""
        snapshot = self._take()
        lags = snapshot.source.lag.partitions
        ends = [lag.end for lag in lags.values() if lag.end is not None]
        sample = _LastLook(
            clock=snapshot.clock,
            ends=sum(ends) if ends and len(ends) == len(lags) else None,
            partitions=len(lags),
            incarnation=snapshot.ledger.incarnation,
            waiting_records_s=snapshot.stream.feed.waiting_records_s if snapshot.fetching_began else None,
            members=() if snapshot.group is None else snapshot.group.members,
        )
        if self._samples and self._samples[-1].incarnation != sample.incarnation:
            self._caught_up = CaughtUp()  # a rewind: what was caught up with is ahead again
        if not self._samples or sample.clock - self._samples[-1].clock >= LOOK_EVERY_S / 2:
            self._samples.append(sample)
        while self._samples[0].clock < sample.clock - _KEPT_S:
            self._samples.popleft()
        lag = learnt_lag(snapshot, self._caught_up)
        self._caught_up = caught_up(snapshot, self._caught_up)
        self._keeps_up = _keeps_up(snapshot, lag, before=self._keeps_up)
        # What is wrong, and since when. Refused commits count for a while.
        for kind, rise in self._refusals.items():
            rise.look(sum(refusals_of(snapshot, kind).values()), snapshot.clock)
        lately = None
        # While Kafka is away no commit is answered, which is a problem of its own.
        if snapshot.source.connected and self._refusals[CommitFailure.UNANSWERED].within(
            _UNANSWERED_LASTS_S, snapshot.clock
        ):
            lately = CommitFailure.UNANSWERED
        if self._refusals[CommitFailure.REFUSED].within(_REFUSALS_LAST_S, snapshot.clock):
            lately = CommitFailure.REFUSED
        found = list(problems_of(snapshot, refused_lately=lately))
        self._since = {problem.kind: self._since.get(problem.kind, snapshot.at) for problem in found}
        problems = [Trouble(problem=p.kind, what=p.what, since=self._since[p.kind], fix=p.fix) for p in found]
        return Observation(
            snapshot=snapshot,
            lag=lag,
            problems=tuple(problems),
            arriving_per_s=self._arriving(sample, _KEPT_S),
            arriving_lately_per_s=self._arriving(sample, _LATELY_S),
            starved=self._starved(sample),
            keeps_up=self._keeps_up,
            paces=self._paces(sample),
            loop_lag_p99_s=self._loop_lag.p99_s(),
        )

    def _arriving(self, now: _LastLook, over_s: float) -> float | None:
        recent = (s for s in self._samples if s.clock >= now.clock - over_s)
        then = next((s for s in recent if s.partitions == now.partitions and s.ends is not None), None)
        if then is None or then.ends is None or now.ends is None or now.clock <= then.clock:
            return None
        return max(0, now.ends - then.ends) / (now.clock - then.clock)

    def _starved(self, now: _LastLook) -> float | None:
        then = next(
            (s for s in self._samples if s.incarnation == now.incarnation and s.waiting_records_s is not None), None
        )
        if then is None or then.waiting_records_s is None or now.waiting_records_s is None or now.clock <= then.clock:
            return None
        return min(1.0, max(0.0, now.waiting_records_s - then.waiting_records_s) / (now.clock - then.clock))

    def _paces(self, now: _LastLook) -> tuple[MemberPace, ...]:
        then = next((sample for sample in self._samples if sample.members), None)
        if then is None or now.clock <= then.clock:
            return ()
        seconds = now.clock - then.clock
        return tuple(
            MemberPace(
                records_per_s=max(0, newer.learnt - older.learnt) / seconds,
                waiting=min(1.0, max(0.0, newer.waited_s - older.waited_s) / seconds),
            )
            for newer, older in zip(now.members, then.members, strict=True)
        )


def _keeps_up(snapshot: Snapshot, lag: LearntLag, *, before: bool) -> bool:
    """Return whether learning keeps up, with two bounds, so that it does not change with every block."""
    if lag.records == 0:
        return True
    if lag.seconds is None or not snapshot.source.connected:
        return False
    return lag.seconds < (_BEHIND_FROM_S if before else _CAUGHT_UP_BELOW_S)
