"""The campaign of kills: a trainer is killed again and again while records keep coming, then drains the topic.

    python -m tests.faults.campaigns.kills --rounds 20
    python -m tests.faults.campaigns.kills --rounds 20 --partial-batches wait
    python -m tests.faults.campaigns.kills --deterministic 20
    python -m tests.faults.campaigns.kills --terms 20

prints its figures as JSON, and ends with 1 where a promise is broken. `--bootstrap` names a broker; without it a local
one is started.
"""

import argparse
import json
import math
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from millrace.app.tools.local_broker import LocalBroker
from millrace.app.tools.local_broker.topics import create_topic
from millrace.app.tools.prove.campaign import Campaign, Figures, SaveSchedule
from millrace.app.tools.prove.kills import TRAINER_POINTS
from millrace.app.tools.prove.trainer_process import Launch, start_python
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from tests.faults.campaigns import exactness, terms
from tests.faults.harness.faults import KillMethod, plan
from tests.faults.harness.kafka import Letter, committed, dead_letters
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.shelf import Shelf, Statement
from tests.faults.harness.spikes import QUIET, Spiked
from tests.faults.harness.topics import Topic

ROUNDS = 20
HISTORY_ROUNDS = 50
"""Kills of one history at most; a campaign of more has several, each with a topic of its own."""
PARTITIONS, REPLICAS = 4, 2
_POISON = Mixture(share=0.004, kinds=QUIET)
_AFTER_A_RAISE = ("fallback.", "careful.")
"""Points that are passed when a step has raised."""
_RECORDS_PER_S, GATE_RECORDS_PER_S = 1600.0, 800.0
_BACKLOG = 2000
_BATCH, _BATCHES = 64, 4
OnStrike = Callable[[KillMethod, Figures], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What is left when the topic has been drained."""

    figures: Figures
    topic: Topic
    statement: Statement
    letters: Counter[Letter]
    committed: Mapping[int, int | None]
    faults: tuple[KillMethod, ...]


@contextmanager
def campaign(
    bootstrap: str,
    folder: Path,
    *,
    rounds: int,
    seed: int,
    on_strike: OnStrike = lambda *_told: None,
    partial_batches: str = "pad",
    records_per_s: float = _RECORDS_PER_S,
    launch: Launch = start_python,
) -> Iterator[Aftermath]:
    """Run one history: kill this often, drain, and show what is left while the topic still exists."""
    began = time.monotonic()
    name = f"kills-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, f"{name}-dead", 1)
    stream = Spiked(_POISON)
    stream.spike(Reason.STEP_RAISED)

    def provoke(fault: KillMethod) -> None:
        if (fault.point or "").startswith(_AFTER_A_RAISE):
            stream.spike(Reason.STEP_RAISED)

    with Topic(bootstrap, name, PARTITIONS, stream, seed) as topic:
        topic.write(_BACKLOG)
        topic.flow(records_per_s)
        project = Project(
            folder,
            topic,
            records={"dead_letters": {"topic": f"{name}-dead"}},
            training={
                "replicas": REPLICAS,
                "shuffle": 1024,
                "batch_size": _BATCH,
                "batches_per_call": _BATCHES,
                "partial_batches": partial_batches,
            },
        )
        figures, shelf = Figures(seed=seed), Shelf(project.folder)
        pace = SaveSchedule(every_s=1.0, block_rows=_BATCH * _BATCHES)
        most_waiting = _BATCH - 1 if partial_batches == "wait" else 0
        kills = Campaign(project, shelf, pace, figures, provoke, most_waiting, launch)
        planned = tuple(plan(Random(seed), rounds))
        kills.wage(planned, lambda fault: on_strike(fault, figures))
        topic.still()
        statement = Statement.of(kills.drain(lambda: _written(topic)))
        figures.records = topic.records
        figures.seconds = time.monotonic() - began
        yield Aftermath(
            figures=figures,
            topic=topic,
            statement=statement,
            letters=dead_letters(bootstrap, f"{name}-dead"),
            committed=committed(bootstrap, project.group, name, PARTITIONS),
            faults=planned,
        )


def kill(
    bootstrap: str, folder: Path, *, rounds: int, seed: int, on_strike: OnStrike, partial_batches: str = "pad"
) -> Figures:
    """Run as many histories as it takes; return their figures together."""
    total = Figures(seed=seed)
    histories = math.ceil(rounds / HISTORY_ROUNDS)
    for number in range(histories):
        share = rounds // histories + (number < rounds % histories)
        there = folder / f"history-{number}"
        history = campaign(
            bootstrap,
            there,
            rounds=share,
            seed=seed + number,
            on_strike=on_strike,
            partial_batches=partial_batches,
        )
        with history as aftermath:
            total.add(aftermath.figures)
    return total


def missed(points: Mapping[str, int]) -> list[str]:
    """Return the failpoints at which no process was killed."""
    return [point for point in TRAINER_POINTS if not points.get(point)]


def _written(topic: Topic) -> dict[Partition, list[int]]:
    return {Partition(topic.name, number): [*topic.learnable(number)] for number in range(PARTITIONS)}


@contextmanager
def broker(given: str | None, folder: Path) -> Iterator[str]:
    """Yield the broker that is named, or start one."""
    if given is not None:
        yield given
        return
    with LocalBroker(folder / "broker") as local:
        yield local.bootstrap_servers


def say(fault: KillMethod, figures: Figures) -> None:
    """Print a line for one kill, to show the progress."""
    print(f"kill {figures.kills}: {fault}", file=sys.stderr, flush=True)  # noqa: T201 - a command


def main() -> None:
    """Read the options, kill, print."""
    parser = argparse.ArgumentParser(description="Kill a trainer again and again, and show what it has learnt.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how many kills")
    parser.add_argument("--deterministic", type=int, help="how many kills of a run that must end with the same bits")
    parser.add_argument("--terms", type=int, help="how many SIGTERMs instead")
    parser.add_argument("--partial-batches", choices=("pad", "wait"), default="pad", help="the setting of that name")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the kills and the records")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-kills-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        there = Path(folder) / "projects"
        found: Figures | exactness.Figures | terms.Figures
        if options.deterministic is not None:
            found = exactness.compare(bootstrap, there, kills=options.deterministic, seed=options.seed)
        elif options.terms is not None:
            found = terms.terminate(bootstrap, there, rounds=options.terms, seed=options.seed)
        else:
            found = kill(
                bootstrap,
                there,
                rounds=options.rounds,
                seed=options.seed,
                on_strike=say,
                partial_batches=options.partial_batches,
            )
        print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
