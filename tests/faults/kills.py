"""The campaign of kills: a trainer is killed again and again while records keep coming, then drains the topic.

    python -m tests.faults.kills --rounds 20

prints its figures as JSON, and ends with 1 where an offset was lost or learnt twice. `--bootstrap` names a broker;
without it a local one is started.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from app.local_broker import LocalBroker
from app.local_broker.topics import create_topic
from tests.faults.harness.faults import Fault, InSave, faults
from tests.faults.harness.kafka import Letter, committed, dead_letters
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.shelf import Shelf, Statement
from tests.faults.harness.topics import Topic
from training.evidence import Evidence

CI_ROUNDS, ROUNDS = 6, 20
PARTITIONS, REPLICAS = 4, 2
_POISON = Mixture(share=0.004)
_RECORDS_PER_S = 1600.0
_BACKLOG = 2000


@dataclass(slots=True, kw_only=True)
class Figures:
    """What a campaign comes to."""

    seed: int
    records: int = 0
    kills: int = 0
    kills_in_save: int = 0
    """Of them, how many left a save half done, or died in one of its windows."""
    lost: int = 0
    learnt_twice: int = 0
    valid_rejected: int = 0
    """Checkpoints on disk that do not verify, and restarts that went on from another than the newest."""
    replay: list[int] = field(default_factory=list)
    """By kill of which it is known: offsets settled and not yet durable, so read again."""
    first_call_s: list[float] = field(default_factory=list)
    """By start that came so far: seconds to its first call."""
    seconds: float = 0.0

    def summary(self) -> dict[str, Any]:
        """For a program, and for people."""
        spread = {"replay": _spread(self.replay), "first_call_s": _spread(self.first_call_s)}
        return {**asdict(self), **spread, "seconds": round(self.seconds, 1)}


def _spread(found: Sequence[float]) -> dict[str, float]:
    values = found or [0.0]
    return {"n": len(found), "p50": round(statistics.median(values), 1), "max": round(max(values), 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What is left when the topic has been drained."""

    figures: Figures
    topic: Topic
    statement: Statement
    letters: Counter[Letter]
    committed: Mapping[int, int | None]
    faults: tuple[Fault, ...]


class Campaign:
    """Kills of one trainer, one after the other."""

    def __init__(self, project: Project, topic: Topic, seed: int) -> None:
        self._project, self._topic = project, topic
        self._shelf = Shelf(project.folder)
        self._durable: int | None = None
        self.figures = Figures(seed=seed)

    def strike(self, fault: Fault) -> None:
        """Start the trainer, and kill it."""
        with Run(self._project, failpoints=fault.failpoints) as run:
            fault.bring_about(run)
            settled = run.settled() if run.alive else None
            run.kill()
        self.figures.kills += 1
        self._look_at(run)
        contents, newest = self._shelf.contents(), self._shelf.newest()
        self.figures.kills_in_save += bool(contents.torn or isinstance(fault, InSave))
        self.figures.valid_rejected += len(contents.bad)
        self._durable = None if newest is None else newest.number
        if settled is not None and newest is not None:
            self.figures.replay.append(max(0, settled - newest.settled))

    def drain(self) -> Statement:
        """Let it learn what is left, and compare what it knows with what was written."""
        with Run(self._project, "--until", "now") as run:
            run.finish()
        self._look_at(run)
        newest = self._shelf.newest()
        assert newest is not None
        for partition in range(PARTITIONS):
            lost, twice = compared(self._topic.evidence(partition), newest.seen[partition])
            self.figures.lost += lost
            self.figures.learnt_twice += twice
        self.figures.records = self._topic.records
        return newest

    def _look_at(self, run: Run) -> None:
        """Which checkpoint it went on from, and how soon it learnt."""
        began_at = run.went_on_from()
        if began_at is not None and self._durable is not None:
            self.figures.valid_rejected += began_at != self._durable
        if run.first_call_s is not None:
            self.figures.first_call_s.append(run.first_call_s)


def compared(expected: Evidence, seen: Evidence) -> tuple[int, int]:
    """At least how many offsets were lost, and how many learnt twice."""
    if expected == seen:
        return 0, 0
    missing = expected.count - seen.count
    return max(missing, int(missing == 0)), max(-missing, int(missing == 0))


@contextmanager
def campaign(bootstrap: str, folder: Path, *, rounds: int, seed: int) -> Iterator[Aftermath]:
    """Kill so many times, drain, and show what is left while the topic is still there."""
    began = time.monotonic()
    name = f"kills-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, f"{name}-dead", 1)
    with Topic(bootstrap, name, PARTITIONS, _POISON, seed) as topic:
        topic.write(_BACKLOG)
        topic.flow(_RECORDS_PER_S)
        project = Project(
            folder,
            topic,
            records={"dead_letters": {"topic": f"{name}-dead"}},
            training={"replicas": REPLICAS, "shuffle": 1024},
        )
        kills = Campaign(project, topic, seed)
        planned = tuple(faults(Random(seed), rounds))
        for fault in planned:
            kills.strike(fault)
        topic.still()
        statement = kills.drain()
        kills.figures.seconds = time.monotonic() - began
        yield Aftermath(
            figures=kills.figures,
            topic=topic,
            statement=statement,
            letters=dead_letters(bootstrap, f"{name}-dead"),
            committed=committed(bootstrap, project.group, name, PARTITIONS),
            faults=planned,
        )


@contextmanager
def _broker(given: str | None, folder: Path) -> Iterator[str]:
    if given is not None:
        yield given
        return
    with LocalBroker(folder / "broker") as broker:
        yield broker.bootstrap_servers


def main() -> None:
    """Read the options, kill, print."""
    parser = argparse.ArgumentParser(description="Kill a trainer again and again, and show what it has learnt.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how many kills")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the kills and the records")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-kills-") as folder,
        _broker(options.bootstrap, Path(folder)) as bootstrap,
        campaign(bootstrap, Path(folder) / "project", rounds=options.rounds, seed=options.seed) as aftermath,
    ):
        figures = aftermath.figures
        print(json.dumps(figures.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(bool(figures.lost or figures.learnt_twice or figures.valid_rejected)))


if __name__ == "__main__":
    main()
