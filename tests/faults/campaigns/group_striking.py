"""Carries the strikes of a deck out on a group of real processes, and counts what came of them."""

import http.client
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from random import Random
from typing import Any

from millrace.app.tools.prove.campaign import spread
from millrace.consumers.reasons import Reason
from tests.faults.campaigns.group_strikes import PLACES, Kind, Opening, Role, Strike
from tests.faults.harness.group import GroupOfProcesses
from tests.faults.harness.process import Run
from tests.faults.harness.records import infinite
from tests.faults.harness.spikes import Spiked
from tests.faults.harness.topics import Topic

_PROGRESS = 400
"""Offsets that are settled anew between two strikes."""
_STOPPED_S, _BRIEFLY_S = 15.0, 3.0
"""Longer than the others take to give up a member that stands still, and shorter."""
_COMING_BACK_S = 8.0
"""About as long as a member takes from its start to its first call."""
_REACHED_WITHIN_S = 400.0
"""A member that has not come to its failpoint by then will not."""
_BACK = 5
"""How many checkpoints a rewind goes back, where there are as many: what is learnt again takes time."""
KEPT = 12
"""More checkpoints than a rewind goes back, so that its target is not removed meanwhile."""
_SKIPPED = 20
"""Offsets that a rewind skips."""
_OFTEN = ("call.", "save.", "commit.", "group.before_share", "group.after_share")
"""Points that a member passes again and again."""
_AGAIN = "beginning again"
OnStrike = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Figures:
    """The results of a campaign."""

    seed: int
    kills: int = 0
    stops: int = 0
    given_up: int = 0
    """Of them, how many were long, and made the others begin again."""
    waited_out: int = 0
    """Of them, how many were brief, and made nobody begin again."""
    drains: int = 0
    rewinds: int = 0
    two_at_once: int = 0
    points: Counter[str] = field(default_factory=Counter)
    """How many died at each failpoint, by who died there."""
    unreached: list[str] = field(default_factory=list)
    """Failpoints that were armed, and to which nobody came."""
    victims: Counter[str] = field(default_factory=Counter)
    records: int = 0
    lost: int = 0
    learnt_twice: int = 0
    checkpoints: int = 0
    """How many were found on disk whose weights, witness and ledger agree."""
    restart_s: list[float] = field(default_factory=list)
    """By strike: seconds from its end until so much more was learnt and durable as is waited for."""
    skipped: dict[int, set[int]] = field(default_factory=dict)
    """By partition, what rewinds have skipped: learnt by nobody, and neither lost."""
    seconds: float = 0.0

    @property
    def missed(self) -> list[str]:
        """The failpoints of a group's members at which nobody died."""
        return [place for place in PLACES if not self.points[place]]

    @property
    def kept(self) -> bool:
        """Whether everything held, and every fault that was prepared came about."""
        return not (self.lost or self.learnt_twice or self.unreached)

    def summary(self) -> dict[str, Any]:
        """Return the results for a program, and for people."""
        counted = {
            "points": dict(self.points),
            "missed": self.missed,
            "victims": dict(self.victims),
            "skipped": sum(map(len, self.skipped.values())),
            "seconds": round(self.seconds, 1),
        }
        return {**asdict(self), **counted, "restart_s": spread(self.restart_s), "kept": self.kept}


class Striking:
    """Strikes on one group."""

    def __init__(
        self,
        group: GroupOfProcesses,
        topic: Topic,
        stream: Spiked,
        random: Random,
        figures: Figures,
        on_strike: OnStrike,
    ) -> None:
        self._group, self._topic, self._stream = group, topic, stream
        self._random, self._figures, self._on_strike = random, figures, on_strike
        self._armed: list[tuple[Run, Strike]] = []
        """Processes that may still die at a failpoint."""

    def strike_all(self, strikes: Iterable[Strike], within_s: float = math.inf) -> None:
        """Carry the strikes out, one after the other, and begin none after so long; the group learns in between."""
        learns, began = False, time.monotonic()
        for strike in strikes:
            if time.monotonic() - began > within_s:
                return
            if strike.kind is Kind.POINT and strike.opening is Opening.NONE:
                self._at_point(strike)
                continue
            if not learns:
                self._learns()
                learns = True
            self._carry_out(strike)
            struck = time.monotonic()
            self._learns()
            self._figures.restart_s.append(round(time.monotonic() - struck, 2))
            self._count_late_deaths()

    def _carry_out(self, strike: Strike) -> None:
        match strike.kind:
            case Kind.KILL:
                self._kill(*self._drawn(strike.role))
            case Kind.KILL_TWO:
                self._figures.two_at_once += 1
                self._kill(*self._random.sample(range(len(self._group.runs)), 2))
            case Kind.KILL_COMING_BACK:
                self._kill_coming_back(strike)
            case Kind.REWIND:
                self._rewind()
                self._kill(*self._drawn(strike.role))
            case Kind.STOP | Kind.STOP_BRIEFLY:
                self._stop(strike)
            case Kind.POINT:
                self._at_point(strike)

    def _drawn(self, role: Role) -> Sequence[int]:
        workers = range(1, len(self._group.runs))
        match role:
            case Role.CHIEF:
                return (0,)
            case Role.WORKER:
                return (self._random.choice(workers),)
            case Role.ALL:
                return (0, *workers)

    def _learns(self) -> None:
        """Wait until the group learns from now on: whoever is dead is started again for that."""
        group, before = self._group, self._group.settled()
        group.wait_until(lambda: group.settled() >= before + _PROGRESS, "the group learns")
        time.sleep(self._random.uniform(0.0, 1.5))

    def _kill(self, *members: int) -> None:
        for member in members:
            self._group.member(member).kill()
        self._died(members)
        self._on_strike(f"killed {members}")

    def _died(self, members: Sequence[int]) -> None:
        self._figures.kills += len(members)
        self._figures.victims.update("worker" if member else "chief" for member in members)

    def _drain(self, *members: int) -> None:
        for member in members:
            self._group.member(member).terminate()
            code = self._group.member(member).exit_code()
            assert code == 0, f"a member that was asked to stop has ended with {code}; {self._group.tails()}"
            self._figures.drains += 1
        self._on_strike(f"drained {members}")

    def _kill_coming_back(self, strike: Strike) -> None:
        members = self._drawn(strike.role)
        self._drain(*members)
        self._group.start(*members)
        time.sleep(self._random.uniform(0.0, _COMING_BACK_S))
        self._kill(*members)

    def _stop(self, strike: Strike) -> None:
        briefly = strike.kind is Kind.STOP_BRIEFLY
        seconds = _BRIEFLY_S if briefly else _STOPPED_S
        (member,) = self._drawn(strike.role)
        before = self._beginnings(but=member)
        os.kill(self._group.member(member).pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self._group.member(member).pid, signal.SIGCONT)
        self._learns()
        again = self._beginnings(but=member) > before
        self._figures.stops += 1
        self._figures.given_up += again and not briefly
        self._figures.waited_out += briefly and not again
        self._on_strike(f"stopped {member} for {seconds:g} s; the others {'began again' if again else 'waited'}")

    def _beginnings(self, *, but: int) -> int:
        """Return how often the members have begun again in place, but for one."""
        return sum(run.said(_AGAIN) for index, run in enumerate(self._group.runs) if run is not None and index != but)

    def _at_point(self, strike: Strike) -> None:
        """End members by the opening, arm their successors, and have one of them die at the failpoint."""
        members = self._drawn(strike.role)
        if strike.opening is Opening.DRAIN:
            self._drain(*members)
        elif strike.opening is Opening.KILL:
            self._kill(*members)
        after = self._random.randrange(3) if strike.point.startswith(_OFTEN) else 0
        self._group.start(*members, failpoints=f"{strike.point}=kill:after={after}")
        armed = {member: self._group.member(member) for member in members}
        self._group.keep_running()
        self._provoke(strike)
        reached = self._group.comes_true(
            lambda: any(not run.alive for run in armed.values()), within_s=_REACHED_WITHIN_S
        )
        dead = [member for member, run in armed.items() if run.hits(strike.point) and not run.alive]
        if dead:
            self._died(dead)
            self._figures.points[strike.place] += len(dead)
            self._armed += [(run, strike) for member, run in armed.items() if member not in dead]
            self._on_strike(f"{dead} died at {strike}")
            return
        codes = [run.exit_code() for run in armed.values() if not run.alive]
        self._figures.unreached.append(f"{strike.place} ({f'ended with {codes}' if reached else 'not in time'})")
        self._on_strike(f"NOT REACHED: {strike}, {codes}; {self._group.tails()}")
        self._kill(*(member for member, run in armed.items() if run.alive))

    def _provoke(self, strike: Strike) -> None:
        """Do what leads to the failpoint, where learning and saving do not."""
        if strike.point.startswith("careful."):
            self._stream.spike(Reason.STEP_RAISED)
        elif strike.point.startswith("fallback."):
            self._stream.spike(Reason.UPDATE_NOT_FINITE, infinite)
        elif strike.point.startswith("rewind."):
            chief = self._group.chief
            self._group.comes_true(lambda: chief.has_called() or not chief.alive)
            with suppress(OSError, http.client.HTTPException):
                self._rewind(durable=strike.point != "rewind.before_order")

    def _rewind(self, *, durable: bool = True) -> None:
        """Go back a few checkpoints, and skip what one partition learnt next.

        Where the rewind is not `durable` because the chief dies before, nothing is skipped.
        """
        newest = self._group.newest()
        timeline = {newest.manifest.number, *newest.manifest.ancestors}
        back = sorted(timeline.intersection(self._group.shelf.contents().good))[-_BACK:][0]
        target = self._group.shelf.statement(back)
        learnt = [at for at, position in newest.positions.items() if position > target.positions.get(at, 0)]
        partition = self._random.choice(learnt or [*range(self._topic.partitions)])
        begin = target.positions.get(partition, 0)
        end = min(begin + _SKIPPED, newest.positions.get(partition, 0))
        skip = [f"{self._topic.name}:{partition}:{begin}-{end - 1}"] if end > begin else []
        if durable:
            self._figures.skipped.setdefault(partition, set()).update(range(begin, end))
            self._figures.rewinds += 1
        self._on_strike(f"goes back to {back}, and skips {skip}")
        body = {"to": back, "skip": skip, "reason": "a campaign"}
        status, answer = self._group.chief.ask("POST", "/rewind?wait=60s", body)
        assert status in {HTTPStatus.OK, HTTPStatus.CREATED}, answer

    def _count_late_deaths(self) -> None:
        """Count those who died at their failpoint after another had done so."""
        for run, strike in [pair for pair in self._armed if not pair[0].alive]:
            self._armed.remove((run, strike))
            if run.hits(strike.point):
                self._figures.kills += 1
                self._figures.points[strike.place] += 1
