"""Rebuilds as a campaign: checkpoints of a run with kills, a rewind and a skip, learnt again of their records alone.

    python -m tests.faults.campaigns.rebuild --kills 10

The run learns in deterministic mode, from several partitions, poison of every kind included; one of its saves fails on
a full disk after the journal has its segment. It goes back once, and once skips a range. Then Kafka loses the first of
its records, which an archive has. `millrace rebuild` makes three checkpoints again: one that the rewind has given up,
the one that the skip was published on, and the newest; all numbers in them are compared with those of the run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from millrace.app.settings import load
from millrace.app.tools.archive import archive
from millrace.app.tools.child_process import millrace_command, python_environment
from millrace.app.tools.prove.checkpoint_reader import STATE
from millrace.app.tools.rewind import TypedRewind, rewind_or_send
from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.shards import listing
from millrace.consumers.kafka.positions import Now
from millrace.training.checkpoints.part_files import decode
from tests.faults.campaigns.exactness import EXACT, PARTITIONS, POISON, Figures, apart, drawn, kill_often
from tests.faults.campaigns.kills import broker
from tests.faults.harness.fork_server import run_forked
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.retention import delete_before
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.topics import Topic

_BEFORE, _A_KILL = 2_000, 2_500
"""Records of each partition in each of the three parts of the run, and for each kill."""
_SKIPPED = 300
_FULL_DISK = "journal.after_segment=full:after=2:once"
_NO_ROOM = "training ended: checkpoint"
"""How the log ends of a run whose last save, after which there is no next one, has met the full disk."""
_WITHIN_S = 600.0


@dataclass(slots=True, kw_only=True)
class RebuildFigures:
    """What the rebuilds come to."""

    seed: int
    records: int = 0
    kills: int = 0
    rebuilt: list[int] = field(default_factory=list)
    """The checkpoints that were made again."""
    blocks: int = 0
    """Blocks of the longest of them."""
    journal_bytes: int = 0
    max_weight_difference: float = float("inf")
    """The greatest difference of any number in weights, seeds and optimizer."""
    told_otherwise: list[str] = field(default_factory=list)
    """What `millrace rebuild` has said where it did not find them equal."""
    seconds: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether the promise held."""
        return len(self.rebuilt) == 3 and not self.told_otherwise and self.max_weight_difference == 0

    def summary(self) -> dict[str, Any]:
        """Return the figures as the report holds them."""
        shown = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**shown, "seconds": round(self.seconds, 1), "kept": self.kept}


def rebuild_some(
    bootstrap: str,
    folder: Path,
    *,
    kills: int,
    seed: int,
    cold: bool = True,
    shaped: Mapping[str, Mapping[str, Any]] | None = None,
    place: Place | None = None,
) -> RebuildFigures:
    """Learn with kills, a rewind and a skip; rebuild three checkpoints, and return how far they are apart.

    `shaped` are sections of the config beside those of a deterministic run; the archive is at `place`, or in a folder.
    """
    place = folder / "archive" if place is None else place
    began, figures, random = time.monotonic(), RebuildFigures(seed=seed), Random(seed)
    with Topic(bootstrap, f"rebuild-{uuid.uuid4().hex[:8]}", PARTITIONS, POISON, seed) as topic:
        archived = {"path": str(place)}
        keep = {"every": "7 steps", "keep": {"last": 1000}}
        sections = {"training": {**EXACT, "memory": 300}, **(shaped or {})}
        made = Project(folder / "run", topic, checkpoints=keep, archive=archived, **sections)
        shelf, settings = Shelf(made.folder), load(made.config).settings
        _learn_more(made, topic, kills // 3, random, figures, cold=cold)
        archive(settings, Now(), threading.Event())
        _learn_more(made, topic, kills // 3, random, figures, cold=cold)
        given_up = _newest(shelf)
        rewind_or_send(settings, TypedRewind(to=str(given_up - 3)))
        _learn_more(made, topic, kills - 2 * (kills // 3), random, figures, cold=cold)
        before_skip = _newest(shelf) - 2
        at = shelf.statement(before_skip).positions[0]
        skip = f"{topic.name}:0:{at + 10}-{at + 9 + _SKIPPED}"
        rewind_or_send(settings, TypedRewind(to=str(before_skip), skip=[skip], reason="a bad hour"))
        skipping = _newest(shelf)
        _learn_more(made, topic, 0, random, figures, cold=cold)
        ends = {shard.partition.number: shard.next_offset for shard in listing(place)}
        delete_before(bootstrap, topic.name, {number: end - 100 * (number % 2) for number, end in ends.items()})
        figures.records = topic.records
        apart_at_most = 0.0
        for number in (given_up, skipping, _newest(shelf)):
            apart_at_most = max(apart_at_most, _rebuilt(made, shelf, number, figures, cold=cold))
        figures.max_weight_difference = apart_at_most
        figures.journal_bytes = sum(path.stat().st_size for path in made.folder.journal.iterdir())
    figures.seconds = time.monotonic() - began
    return figures


def _learn_more(
    made: Project, topic: Topic, kills: int, random: Random, figures: RebuildFigures, *, cold: bool
) -> None:
    """Write some records, and learn all that there are, killed so often on the way."""
    topic.write(_BEFORE + kills * _A_KILL)
    end = ",".join(f"{topic.name}:{number}={len(one)}" for number, one in enumerate(topic.verdicts))
    killed = Figures(seed=figures.seed)
    kill_often(made, end, (drawn(random, cold=cold) for _ in range(kills)), killed, cold=cold)
    figures.kills += killed.kills
    with Run(made, "--until", end, failpoints=_FULL_DISK, cold=cold) as run:
        if run.exit_code() == 0:
            return
        if _NO_ROOM not in run.tail():
            run.finish()
    with Run(made, "--until", end, cold=cold) as run:  # it was the last save that met the full disk
        run.finish()


def _rebuilt(made: Project, shelf: Shelf, number: int, figures: RebuildFigures, *, cold: bool) -> float:
    """Rebuild one checkpoint into a folder of its own, and return how far its numbers are from the run's."""
    into = made.path / f"rebuilt-{number}"
    arguments = ["rebuild", str(number), "-c", str(made.config), "--into", str(into), "--json"]
    environment = python_environment()
    if cold:
        done = subprocess.run(
            millrace_command(arguments),
            cwd=made.path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
    else:
        done = run_forked(arguments, cwd=made.path, env=environment, timeout=_WITHIN_S)
    figures.rebuilt.append(number)
    if done.returncode:
        figures.told_otherwise.append(f"{number}: exit code {done.returncode}: {done.stderr[-800:]}")
        return float("inf")
    told = json.loads(done.stdout[done.stdout.index("{") :])  # the model prints a line of its own
    figures.blocks = max(figures.blocks, told["blocks"])
    theirs = shelf.statement(number).arrays
    ours: dict[str, np.ndarray[Any, Any]] = {
        f"{part}/{key}": value
        for part in STATE
        if (into / f"{part}.safetensors").exists()
        for key, value in decode((into / f"{part}.safetensors").read_bytes()).items()
    }
    if ours.keys() != theirs.keys() or told["base"] != 0:
        return float("inf")
    return max(apart(ours[key], np.asarray(theirs[key])) for key in ours)


def _newest(shelf: Shelf) -> int:
    number = shelf.newest_number()
    assert number is not None
    return number


def main() -> None:
    """Read the options, rebuild, print."""
    parser = argparse.ArgumentParser(description="Rebuild checkpoints of a run with kills, a rewind and a skip.")
    parser.add_argument("--kills", type=int, default=10, help="how many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the kills and the records")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-rebuild-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        found = rebuild_some(bootstrap, Path(folder) / "rebuild", kills=options.kills, seed=options.seed)
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
