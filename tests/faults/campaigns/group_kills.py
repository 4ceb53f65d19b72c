"""The campaign of kills of a group: its workers are killed, stopped and drained while records keep coming.

    python -m tests.faults.campaigns.group_kills --kills 60 --workers 2,3,1

prints its figures as JSON, and ends with 1 where a promise is broken. Each number of workers resumes from what the one
before has left; a single worker is not killed, and learns the rest. `--bootstrap` names a broker; without it a local
one is started.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any

from app.tools.prove.campaign import spread
from consumers.failpoints import NAMES
from tests.faults.campaigns.kills import broker
from tests.faults.harness.group import GroupOfProcesses
from tests.faults.harness.records import Mixture
from tests.faults.harness.spikes import QUIET
from tests.faults.harness.topics import Topic
from training.ledger.offset_checksum import Evidence

PARTITIONS = 4
_POISON = Mixture(share=0.004, kinds=QUIET)
_RECORDS_PER_S = 400.0
_PROGRESS = 400
"""Offsets that are settled anew between two faults."""
_STOPPED_S = 15.0
"""Longer than the others take to give up a member that stands still."""
_BATCH = 48
_BACK = 5
"""How many checkpoints a rewind goes back, where there are as many: what is learnt again takes time."""
_SKIPPED = 20
"""Offsets that a rewind skips."""
_OF_CHIEF = ("save.", "restore.", "commit.", "prune.", "term.")
_OF_ALL = ("call.", "group.")
POINTS = tuple(point for point in NAMES if point.startswith((*_OF_CHIEF, *_OF_ALL)))
OnStrike = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Figures:
    """The results of a campaign."""

    seed: int
    kills: int = 0
    stops: int = 0
    drains: int = 0
    rewinds: int = 0
    points: Counter[str] = field(default_factory=Counter)
    """How many died at each failpoint."""
    victims: Counter[str] = field(default_factory=Counter)
    records: int = 0
    lost: int = 0
    learnt_twice: int = 0
    checkpoints: int = 0
    """How many were found on disk whose weights, witness and ledger agree."""
    restart_s: list[float] = field(default_factory=list)
    """By kill: seconds until the group made its next checkpoint's progress."""
    skipped: dict[int, set[int]] = field(default_factory=dict)
    """By partition, what rewinds have skipped: learnt by nobody, and neither lost."""
    seconds: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether everything held."""
        return not (self.lost or self.learnt_twice)

    def summary(self) -> dict[str, Any]:
        """Return the results for a program, and for people."""
        counted = {
            "points": dict(self.points),
            "victims": dict(self.victims),
            "skipped": sum(map(len, self.skipped.values())),
            "seconds": round(self.seconds, 1),
        }
        return {**asdict(self), **counted, "restart_s": spread(self.restart_s), "kept": self.kept}


def wage(
    bootstrap: str, folder: Path, *, kills: int, workers: Sequence[int], seed: int, on_strike: OnStrike
) -> Figures:
    """Kill this often in all, drain the topic, and compare what was learnt with what was written."""
    began = time.monotonic()
    figures, random = Figures(seed=seed), Random(seed)
    with Topic(bootstrap, f"group-{uuid.uuid4().hex[:8]}", PARTITIONS, _POISON, seed) as topic:
        topic.write(500)
        topic.flow(_RECORDS_PER_S)
        several = [number for number, size in enumerate(workers) if size > 1]
        for number, size in enumerate(workers):
            due = kills * sum(each <= number for each in several) // len(several)
            with GroupOfProcesses(folder, topic, size, training={"batch_size": _BATCH, "batches_per_call": 4}) as group:
                _Campaign(group, topic, random, figures, on_strike).strike_until(due)
                if number == len(workers) - 1:
                    topic.still()
                    group.wait_until(lambda: group.settled() == topic.records, "all is learnt")
                    _compare(group, topic, figures)
                figures.checkpoints += group.assert_sound()
    figures.seconds = time.monotonic() - began
    return figures


class _Campaign:
    """Faults in one group."""

    def __init__(
        self, group: GroupOfProcesses, topic: Topic, random: Random, figures: Figures, on_strike: OnStrike
    ) -> None:
        self._group, self._topic = group, topic
        self._random, self._figures, self._on_strike = random, figures, on_strike

    def strike_until(self, kills: int) -> None:
        """Strike until so many kills are done in all."""
        self._group.start()
        self._learns(self._group.settled())
        first = [self._kill_worker, self._rewind, self._kill_chief, self._kill_two, self._kill_at_point]
        while self._figures.kills < kills:
            at, began = self._group.settled(), time.monotonic()
            strike = first.pop(0) if first else self._random.choice(self._strikes)
            strike()
            self._learns(at)
            self._figures.restart_s.append(time.monotonic() - began)

    @property
    def _strikes(self) -> list[Callable[[], None]]:
        kills = [self._kill_worker, self._kill_chief, self._kill_two]
        return [*kills * 3, *[self._kill_at_point] * 8, self._stop, self._drain, self._rewind]

    def _learns(self, before: int) -> None:
        group = self._group
        group.wait_until(lambda: group.settled() >= before + _PROGRESS, "the group learns")
        time.sleep(self._random.uniform(0.0, 1.5))

    def _kill(self, *members: int) -> None:
        for member in members:
            self._group.member(member).kill()
            self._figures.kills += 1
            self._figures.victims["chief" if member == 0 else "worker"] += 1
        self._on_strike(f"killed {members}")

    def _kill_worker(self) -> None:
        self._kill(self._random.randrange(1, len(self._group.runs)))

    def _kill_chief(self) -> None:
        self._kill(0)

    def _kill_two(self) -> None:
        self._kill(*self._random.sample(range(len(self._group.runs)), 2))

    def _kill_at_point(self) -> None:
        """Kill a member, and its successor at a failpoint."""
        point = self._random.choice(POINTS)
        member = 0 if point.startswith(_OF_CHIEF) else self._random.randrange(len(self._group.runs))
        self._kill(member)
        self._group.start(member, failpoints=f"{point}=kill")
        doomed = self._group.member(member)
        self._group.wait_until(lambda: not doomed.alive, f"it dies at {point}", spare=member)
        self._figures.kills += 1
        self._figures.points[point] += 1
        self._on_strike(f"killed {member} at {point}")

    def _stop(self) -> None:
        member = self._random.randrange(len(self._group.runs))
        pid = self._group.member(member).pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(_STOPPED_S)
        os.kill(pid, signal.SIGCONT)
        self._figures.stops += 1
        self._on_strike(f"stopped {member} for {_STOPPED_S:g} s")

    def _drain(self) -> None:
        member = self._random.randrange(len(self._group.runs))
        self._group.member(member).terminate()
        code = self._group.member(member).exit_code()
        assert code == 0, f"a member that was asked to stop has ended with {code}; {self._group.tails()}"
        self._figures.drains += 1
        self._on_strike(f"drained {member}")

    def _rewind(self) -> None:
        """Go back a few checkpoints, skip what one partition learnt next, and kill a member."""
        newest = self._group.newest()
        timeline = {newest.manifest.number, *newest.manifest.ancestors}
        back = sorted(timeline.intersection(self._group.shelf.contents().good))[-_BACK:][0]
        target = self._group.shelf.statement(back)
        partition = self._random.randrange(self._topic.partitions)
        begin = target.positions.get(partition, 0)
        end = min(begin + _SKIPPED, newest.positions.get(partition, 0))
        skip = [f"{self._topic.name}:{partition}:{begin}-{end - 1}"] if end > begin else []
        body = {"to": back, "skip": skip, "reason": "a campaign"}
        status, answer = self._group.chief.ask("POST", "/rewind?wait=60s", body)
        assert status in {HTTPStatus.OK, HTTPStatus.CREATED}, answer
        self._figures.skipped.setdefault(partition, set()).update(range(begin, end))
        self._figures.rewinds += 1
        self._on_strike(f"went back to {back}, and skipped {skip}")
        self._kill(self._random.randrange(len(self._group.runs)))


def _compare(group: GroupOfProcesses, topic: Topic, figures: Figures) -> None:
    statement = group.newest()
    figures.records = topic.records
    for partition in range(topic.partitions):
        skipped = figures.skipped.get(partition, set())
        expected = Evidence.of(offset for offset in topic.learnable(partition) if offset not in skipped)
        seen = statement.seen[partition]
        figures.lost += max(0, expected.count - seen.count)
        figures.learnt_twice += max(0, seen.count - expected.count)
        if expected.count == seen.count and expected != seen:  # one for another: both
            figures.lost += 1
            figures.learnt_twice += 1


def main() -> None:
    """Read the options, kill, print."""
    parser = argparse.ArgumentParser(description="Kill the workers of a group again and again.")
    parser.add_argument("--kills", type=int, default=60, help="how many, in all")
    parser.add_argument("--workers", default="2,3,1", help="the numbers of workers, one after the other")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the faults and the records")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    workers = [int(number) for number in options.workers.split(",")]

    def say(what: str) -> None:
        print(what, file=sys.stderr, flush=True)  # noqa: T201 - a command

    with (
        tempfile.TemporaryDirectory(prefix="millrace-group-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        there = Path(folder) / "group"
        found = wage(bootstrap, there, kills=options.kills, workers=workers, seed=options.seed, on_strike=say)
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
