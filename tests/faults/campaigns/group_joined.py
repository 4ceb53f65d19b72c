"""Labels that come later in a group, as a campaign: its workers are killed again and again; and a plain join beside it.

    python -m tests.faults.campaigns.group_joined --kills 12

The topics are those of `joined.py`: whatever can be wrong with a label is. Two workers learn one model from them, and
are killed at random times and at failpoints. Each record is learnt with the label of a join in plain Python of what is
in Kafka, whoever of them joined it, and the account has each record and each label once, though both read all labels.
With `--co-partitioned` each label lies in the partition of its record's number, and each worker reads its own alone.
"""

import argparse
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from millrace.app.tools.local_broker.topics import create_topic
from tests.faults.campaigns.exactness import EXACT
from tests.faults.campaigns.joined import (
    AGO_MS,
    CLICKED,
    LENGTH,
    TAKES,
    JoinedFigures,
    Length,
    Topics,
    append_jumps,
    compare_with_plain_join,
    jumps_of,
    parts_of,
    sections,
    some_jumps,
    written,
)
from tests.faults.campaigns.kills import broker
from tests.faults.harness.group import GroupOfProcesses
from tests.faults.harness.later_labels import Traffic, draw

WORKERS = (2, 2)
_TRAINING = {"passes": EXACT["passes"], "batch_size": 128, "batches_per_call": 4}
_PROGRESS = 400
"""Offsets that are settled anew between two kills."""
_POINTS: Sequence[Sequence[str]] = (
    ("save.before_data", "save.after_manifest", "save.after_rename", "commit.before", "group.after_share"),
    ("group.before_stream", "group.before_share", "group.after_share", "call.before", "call.after"),
)
"""Where the chief is killed, and where another worker is."""


@dataclass
class GroupJoinedFigures(JoinedFigures):
    """What it comes to; several workers are not held to the bit."""

    @property
    def kept(self) -> bool:
        """Whether the promise held."""
        return self.joined


_ADDED = ("kills", "records", "lost", "learnt_twice", "labelled", "wrong_labels", "false_negatives", "unaccounted")


def wage_both(bootstrap: str, folder: Path, *, kills: int, seed: int) -> GroupJoinedFigures:
    """Have each worker read all labels, then its own alone, half of the kills each; return both together."""
    all_read, own = (
        wage(bootstrap, folder / str(each), kills=kills // 2, seed=seed, co_partitioned=each) for each in (False, True)
    )
    added = {name: getattr(all_read, name) + getattr(own, name) for name in _ADDED}
    same = all_read.same_evidence and own.same_evidence
    return replace(all_read, **added, same_evidence=same, points=all_read.points + own.points)


def wage(
    bootstrap: str,
    folder: Path,
    *,
    kills: int,
    seed: int,
    workers: tuple[int, int] = WORKERS,
    take: str | None = None,
    co_partitioned: bool = False,
    length: Length = LENGTH,
    cold_again: bool = True,
) -> GroupJoinedFigures:
    """Have a group learn two topics while its workers are killed, and compare what they have learnt with a plain join.

    `workers` are there for the first half of the topics, and for the second, who resume from what the first have left.
    `take` is which of several labels a record gets; None: the seed draws it.
    """
    began, random = time.monotonic(), Random(seed)
    figures = GroupJoinedFigures(seed=seed, take=take or random.choice(TAKES), same_evidence=True)
    each = length.extent.of(kills) // 2
    traffic = Traffic(
        each=each,
        began=round(time.time() * 1000) - AGO_MS,
        clicked=CLICKED,
        calm_at=each // 2,
        within_ms=length.within_ms,
        bad=length.bad,
        odd=length.odd,
    )
    if co_partitioned:
        traffic = replace(traffic, co_partitioned=True, label_partitions=traffic.partitions)
    topics, all_of_it = Topics(f"joined-{uuid.uuid4().hex[:8]}", bootstrap, traffic), draw(traffic, seed)
    create_topic(bootstrap, topics.name, traffic.partitions)
    create_topic(bootstrap, topics.labels, traffic.label_partitions)
    given = {**sections(topics, figures.take), "training": _TRAINING}
    given["labels"] = {**given["labels"], "co_partitioned": co_partitioned}
    before = some_jumps(topics, all_of_it, random)
    shares = kills // 2, kills - kills // 2
    for size, part, strikes in zip(workers, parts_of(traffic, all_of_it), shares, strict=True):
        with GroupOfProcesses(folder, topics, size, cold_again=cold_again, **given) as group:  # type: ignore[arg-type]
            if not part.start:
                append_jumps(group.projects[0].folder, topics, before)
            written(topics, part)
            group.keep_running()
            for _ in range(strikes):
                _strike(group, random, figures, part.end * traffic.partitions)
            _await(group, part.end * traffic.partitions)
    figures.jumps = len(jumps_of(group.projects[0].folder, topics.labels)) - len(before)
    compare_with_plain_join(figures, topics, group.projects[0].folder)
    figures.seconds = time.monotonic() - began
    return figures


def _await(group: GroupOfProcesses, offsets: int) -> None:
    group.wait_until(lambda: group.settled() >= offsets, f"{offsets} offsets are learnt")


def _strike(group: GroupOfProcesses, random: Random, figures: JoinedFigures, most: int) -> None:
    """Kill a worker while the group learns; half of the time its successor dies at a failpoint."""
    _await(group, min(most - 1, group.settled() + _PROGRESS))
    victim = random.randrange(len(group.runs))
    time.sleep(random.uniform(0, 1))
    group.member(victim).kill()
    figures.kills += 1
    figures.points["worker" if victim else "chief"] += 1
    if random.random() < 0.5:
        point = random.choice(_POINTS[min(victim, 1)])
        group.start(victim, failpoints=f"{point}=kill")
        run = group.member(victim)
        if group.comes_true(lambda: not run.alive or group.settled() >= most) and not run.alive:
            figures.kills += 1
            figures.points[point] += 1


def main() -> None:
    """Read the options, kill, compare, print."""
    parser = argparse.ArgumentParser(description="Join labels that come later in a group, killed on the way.")
    parser.add_argument("--kills", type=int, default=12, help="how many, and some more at failpoints")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the kills and the records")
    parser.add_argument("--take", choices=TAKES, help="which of several labels a record gets; the seed draws it")
    parser.add_argument("--workers", default="2,2", help="how many, for the first half and for the second")
    parser.add_argument("--co-partitioned", action="store_true", help="each worker reads its own labels alone")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-joined-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        there = Path(folder) / "joined"
        found = wage(
            bootstrap,
            there,
            kills=options.kills,
            seed=options.seed,
            workers=tuple(map(int, options.workers.split(","))),  # type: ignore[arg-type]
            take=options.take,
            co_partitioned=options.co_partitioned,
        )
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
