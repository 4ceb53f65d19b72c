"""A campaign: one trainer is killed again and again while records keep coming, then learns the rest.

After each kill the campaign looks at what is on disk: everything must verify, and the next start must resume from the
newest checkpoint. At the end it compares the weights' own witness with what was written. Runs on the caller's thread.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from millrace.app.tools.prove.checkpoint_reader import Shelf, Statement
from millrace.app.tools.prove.kills import SAVE_POINTS, AfterSave, KillMethod
from millrace.app.tools.prove.trainer_process import Launch, Run, TrainerFolder, UnprovenError, start_python
from millrace.consumers.records import Partition
from millrace.training.ledger.offset_checksum import Evidence

Expected = Callable[[], Mapping[Partition, Sequence[int]]]
"""Returns the offsets that must be learnt, ascending, by partition."""
_FRUITLESS = 2
"""Kills during learning without a checkpoint in between: after more, the trainer rightly suspects the next records."""
_IN_A_CALL = ("call.", "careful.")


@dataclass(slots=True, kw_only=True)
class Figures:
    """The results of a campaign."""

    seed: int
    records: int = 0
    kills: int = 0
    kills_in_save: int = 0
    """Of them, how many left a save half done, or died in one of its windows."""
    points: Counter[str] = field(default_factory=Counter)
    """How many died at each failpoint."""
    waiting: int = 0
    """Records that are left at the end because they do not fill a batch (`training.partial_batches: wait`)."""
    lost: int = 0
    learnt_twice: int = 0
    unbalanced: int = 0
    """Partitions whose account does not add up."""
    labelled: int = 0
    """Records that have a label in a plain join of the topics."""
    joined_otherwise: int = 0
    """Records that had a label where a plain join has none, or none where it has one."""
    valid_rejected: int = 0
    """Checkpoints on disk that do not verify, and restarts that resumed from another than the newest."""
    restored_newest: int = 0
    """Restarts that resumed from the newest durable checkpoint."""
    replay: list[int] = field(default_factory=list)
    """By kill of which it is known: offsets settled and not yet durable, so read again."""
    replay_beyond_bound: int = 0
    """Of them, how many were more than were learnt in the time between two saves, and a block in flight."""
    rto_s: list[float] = field(default_factory=list)
    """By start that came so far: seconds to its first new call."""
    seconds: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether everything held."""
        broken = self.lost, self.learnt_twice, self.unbalanced, self.valid_rejected, self.replay_beyond_bound
        return not any((*broken, self.joined_otherwise))

    def add(self, other: "Figures") -> None:
        """Add the results of another history."""
        for name in (
            "records",
            "kills",
            "kills_in_save",
            "waiting",
            "lost",
            "learnt_twice",
            "unbalanced",
            "valid_rejected",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.restored_newest += other.restored_newest
        self.replay_beyond_bound += other.replay_beyond_bound
        self.points += other.points
        self.replay += other.replay
        self.rto_s += other.rto_s
        self.seconds += other.seconds

    def summary(self) -> dict[str, Any]:
        """Return the results for a program, and for people."""
        spreads = {"replay": spread(self.replay), "rto_s": spread(self.rto_s)}
        counted = {"points": dict(self.points), "seconds": round(self.seconds, 1)}
        return {**asdict(self), **spreads, **counted, "kept": self.kept}


def spread(found: Sequence[float]) -> dict[str, float]:
    """Return the median and extremes of some values; by nearest rank from above, so that few values do not flatter."""
    values = sorted(found) or [0.0]
    p99 = values[min(len(values) - 1, int(0.99 * len(values)))]
    median = statistics.median(values)
    return {"n": len(found), "p50": round(median, 2), "p99": round(p99, 2), "max": round(values[-1], 2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSchedule:
    """How often a trainer saves, which bounds what is read again."""

    every_s: float
    save_s: float = 2.0
    """How long a save may take: it is durable so much later than it was due."""
    block_rows: int

    def bound(self, settled: int, learning_s: float) -> float:
        """Return the most offsets that may be read again after `settled` offsets in `learning_s` seconds."""
        return self.block_rows + settled * min(1.0, (self.every_s + self.save_s) / max(learning_s, 1e-3))


class Campaign:
    """Kills of one trainer, one after the other."""

    def __init__(
        self,
        home: TrainerFolder,
        shelf: Shelf,
        pace: SaveSchedule,
        figures: Figures,
        provoke: Callable[[KillMethod], None] = lambda _fault: None,
        most_waiting: int = 0,
        launch: Launch = start_python,
    ) -> None:
        """Prepare it. `provoke` does what a kill needs and only the caller, who feeds the trainer, can do.

        `most_waiting` is how many records the trainer may leave at the end, as they fill no batch.
        """
        self.figures = figures
        self._most_waiting, self._launch = most_waiting, launch
        self._home, self._shelf, self._pace, self._provoke = home, shelf, pace, provoke
        self._durable: int | None = None
        self._settled = 0
        self._fruitless = 0

    def wage(self, faults: Iterable[KillMethod], on_strike: Callable[[KillMethod], None] = lambda _fault: None) -> None:
        """Kill by each of these methods; one that lets the trainer save first is drawn forward when that is due."""
        left = list(faults)
        while left:
            fault = self._fruitful(left) if self._fruitless >= _FRUITLESS else left.pop(0)
            self.strike(fault)
            on_strike(fault)

    def _fruitful(self, left: list[KillMethod]) -> KillMethod:
        """Take a method that lets the trainer save first, or replace one that kills at any time by such a method."""
        at = next((at for at, fault in enumerate(left) if isinstance(fault, AfterSave)), None)
        if at is not None:
            return left.pop(at)
        at = next((at for at, fault in enumerate(left) if fault.point is None), None)
        if at is not None:
            left.pop(at)
        return AfterSave(0.0)

    def strike(self, fault: KillMethod) -> None:
        """Start the trainer, and kill it."""
        with Run(self._home, failpoints=fault.failpoints, launch=self._launch) as run:
            self._provoke(fault)
            fault.bring_about(run, self._shelf)
            settled = run.settled() if run.alive and run.first_call_s is not None else None
            run.kill()
        self.figures.kills += 1
        self.figures.points[fault.point or type(fault).__name__] += 1
        self._look_at(run)
        contents, newest = self._shelf.contents(), self._shelf.newest()
        self.figures.kills_in_save += bool(contents.torn or fault.point in SAVE_POINTS)
        self.figures.valid_rejected += len(contents.bad)
        if settled is not None and newest is not None:
            replayed = max(0, settled - newest.settled)
            self.figures.replay.append(replayed)
            assert run.first_call_s is not None
            bound = self._pace.bound(settled - self._settled, run.age_s - run.first_call_s)
            self.figures.replay_beyond_bound += replayed > bound
        learning = run.first_call_s is not None or (fault.point or "").startswith(_IN_A_CALL)
        number = None if newest is None else newest.number
        self._fruitless = self._fruitless + learning if number == self._durable else 0
        self._durable, self._settled = number, 0 if newest is None else newest.settled

    def drain(self, expected: Expected) -> Statement:
        """Let the trainer learn the rest, and compare what it knows with what was written."""
        with Run(self._home, "--until", "now", launch=self._launch) as run:
            run.finish()
        self._look_at(run)
        newest = self._shelf.newest()
        if newest is None:
            raise UnprovenError("a trainer that ended well has left no checkpoint")
        take_in(self.figures, newest, expected, self._most_waiting)
        return newest

    def _look_at(self, run: Run) -> None:
        """Count which checkpoint the trainer resumed from, and how soon it learnt."""
        began_at = run.went_on_from()
        if began_at is not None and self._durable is not None:
            self.figures.valid_rejected += began_at != self._durable
            self.figures.restored_newest += began_at == self._durable
        if run.first_call_s is not None:
            self.figures.rto_s.append(round(run.first_call_s, 2))


def take_in(figures: Figures, newest: Statement, expected: Expected, most_waiting: int) -> None:
    """Compare the last checkpoint, which stands at the end of all topics, with what was written."""
    positions = {partition: account.position for partition, account in newest.accounts.items()}
    waiting, lost, twice = judged(expected(), positions, newest.testimonies, most_waiting)
    figures.waiting += waiting
    figures.lost += lost
    figures.learnt_twice += twice
    figures.unbalanced += sum(not account.balanced for account in newest.accounts.values())


def judged(
    expected: Mapping[Partition, Sequence[int]],
    positions: Mapping[Partition, int],
    testimonies: Mapping[Partition, Evidence],
    most_waiting: int,
) -> tuple[int, int, int]:
    """Return how many offsets wait beyond the positions, how many were lost, and how many learnt twice."""
    waiting = lost = twice = 0
    for partition, offsets in expected.items():
        due = [offset for offset in offsets if offset < positions.get(partition, 0)]
        waiting += len(offsets) - len(due)
        missing, again = compared(Evidence.of(due), testimonies.get(partition, Evidence(0, 0, 0)))
        lost, twice = lost + missing, twice + again
    return min(waiting, most_waiting), lost + max(0, waiting - most_waiting), twice


def compared(expected: Evidence, seen: Evidence) -> tuple[int, int]:
    """Return at least how many offsets were lost, and how many learnt twice."""
    if expected == seen:
        return 0, 0
    missing = expected.count - seen.count
    return max(missing, int(missing == 0)), max(-missing, int(missing == 0))
