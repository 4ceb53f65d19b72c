"""The campaign of kills of an archiver: it is killed again and again while records keep coming.

    python -m tests.faults.campaigns.archive_kills --kills 50

prints its figures as JSON, and ends with 1 where a promise is broken. Every third kill is at a failpoint, while a shard
is closed; the others come at any time, from the start of the process on. Afterwards every offset has to be in exactly
one shard, with the value that was produced, and every file has to be what was written.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from millrace.app.tools.child_process import python_environment
from millrace.app.tools.traffic.single_writer import ExpectedPosition, Verdict
from millrace.consumers.archive.archive_account import by_partition
from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.shard_names import facts_name, home_of
from millrace.consumers.archive.shard_reader import complaint_about, read
from millrace.consumers.archive.shards import Shard, survey
from millrace.consumers.archive.stores import store_at
from millrace.consumers.failpoints import NAMES, VARIABLE
from tests.faults.campaigns.kills import broker
from tests.faults.harness.topics import Topic

PARTITIONS = 4
RECORDS_A_KILL = 40_000
POINTS = tuple(point for point in NAMES if point.startswith("archive."))
_WITHIN_S = 300.0
_LATEST_S = 5.0
"""When a kill at a random time comes at the latest, after the start of the process."""
_PROGRAM = """
from millrace.app.cli import main
from millrace.consumers.archive import object_store
object_store.RENEW_S, object_store.STALE_S, object_store._LOOK_S = 0.5, 3.0, 0.2
main()
"""
"""An archiver that is sooner sure of the death of the one before it, where its archive is in an object store."""
OnStrike = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Figures:
    """The results of a campaign."""

    seed: int
    kills: int = 0
    points: Counter[str] = field(default_factory=Counter)
    """How many died at each failpoint."""
    records: int = 0
    shards: int = 0
    missing: int = 0
    """Offsets that no shard has."""
    twice: int = 0
    """Offsets that more than one shard has."""
    changed: int = 0
    """Records whose value is not what was produced."""
    damaged: int = 0
    """Files that are not what was written, or that nothing describes."""
    left_over: int = 0
    """Files that no shard needs."""
    seconds: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether everything held."""
        return not (self.missing or self.twice or self.changed or self.damaged or self.left_over)

    def summary(self) -> dict[str, Any]:
        """Return the results for a program, and for people."""
        counted = {"points": dict(self.points), "seconds": round(self.seconds, 1)}
        return {**asdict(self), **counted, "kept": self.kept}


class Told:
    """Values that follow from where a record is."""

    def draw(self, place: ExpectedPosition, random: random.Random) -> tuple[bytes | None, Verdict]:
        """Return the value for this position."""
        return value_at(place.partition, place.offset), None


def value_at(partition: int, offset: int) -> bytes:
    """Return the value of a record; no two are alike, and they are of many lengths."""
    number = (offset * 0x9E3779B97F4A7C15 + partition) & (2**64 - 1)
    return b"%d:%d:%x" % (partition, offset, number ** (1 + offset % 5))


def wage(
    bootstrap: str, folder: Path, *, kills: int, seed: int, on_strike: OnStrike, place: Place | None = None
) -> Figures:
    """Kill this often while records arrive, archive the rest, and compare what is there with what was written.

    The archive is at `place`; None takes a folder.
    """
    began = time.monotonic()
    figures, draws = Figures(seed=seed), random.Random(seed)
    with (
        Topic(bootstrap, f"archive-{uuid.uuid4().hex[:8]}", PARTITIONS, Told(), seed) as topic,
        ThreadPoolExecutor(1) as writer,
    ):
        place = folder / "archive" if place is None else place
        config = _config(folder, bootstrap, topic.name, place)
        for number in range(kills):
            point = POINTS[number // 3 % len(POINTS)] if number % 3 == 2 else None
            written = writer.submit(topic.write, RECORDS_A_KILL // PARTITIONS)
            _strike(config, point, draws)
            written.result(_WITHIN_S)
            figures.kills += 1
            figures.points.update([point] if point else [])
            on_strike(f"kill {figures.kills}: {point or 'at a random time'}")
        _archive(config, until_now=True).wait(_WITHIN_S)
        figures.records = topic.records
        _compare(place, [len(verdicts) for verdicts in topic.verdicts], figures)
    figures.seconds = time.monotonic() - began
    return figures


def _config(folder: Path, bootstrap: str, topic: str, place: Place) -> Path:
    settings = {
        "name": topic,
        "kafka": {"bootstrap_servers": [bootstrap], "topics": [topic]},
        "records": {"format": "json", "features": {"x": "float32"}, "label": {"y": "float32"}},
        "model": {"build": "./model.py:build"},
        "checkpoints": {"path": "./checkpoints"},
        # Small and short-lived shards, so that kills meet many of them half written.
        "archive": {"path": str(place), "shard_size": "256KiB", "shard_age": "1s"},
        "memory": {"limit": "8MiB"},
        "logs": {"level": "warning"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "millrace.yaml"
    path.write_text(json.dumps(settings))
    return path


def _archive(config: Path, *, until_now: bool = False, failpoints: str = "") -> "subprocess.Popen[bytes]":
    words = ["archive", "-c", str(config), *(["--until", "now"] if until_now else [])]
    command = [sys.executable, "-c", _PROGRAM, *words]
    return subprocess.Popen(command, env=python_environment() | {VARIABLE: failpoints})


def _strike(config: Path, point: str | None, draws: random.Random) -> None:
    """Start an archiver, and kill it: at a failpoint, or at a random time."""
    armed = "" if point is None else f"{point}=kill:after={draws.randrange(PARTITIONS)}"
    process = _archive(config, failpoints=armed)
    try:
        if point is not None:
            died = process.wait(_WITHIN_S)
            assert died == -signal.SIGKILL, f"it was to die at {point}, and ended with {died}"
        else:
            time.sleep(draws.uniform(0.0, _LATEST_S))
            assert process.poll() is None, f"the archiver has ended by itself, with {process.returncode}"
    finally:
        process.kill()
        process.wait(_WITHIN_S)


def _compare(place: Place, written: list[int], figures: Figures) -> None:
    found = survey(place)
    figures.shards = len(found.shards)
    complaints = [complaint_about(shard, deep=True) for shard in found.shards]
    figures.damaged = len(found.problems) + sum(complaint is not None for complaint in complaints)
    archived = {one.partition.number: one.shards for one in by_partition(found.shards)}
    for number, count in enumerate(written):
        seen = bytearray(count)
        for shard in archived.get(number, ()):
            figures.changed += _read(shard, seen)
        figures.missing += seen.count(0)
        figures.twice += count - seen.count(0) - seen.count(1)
    store = store_at(place)
    needed = {path for shard in found.shards for path in (shard.name, facts_name(shard.name))}
    homes = {home_of(shard.partition) for shard in found.shards}
    figures.left_over = sum(name not in needed for home in homes for name in store.files(home))


def _read(shard: Shard, seen: bytearray) -> int:
    """Count each record of a shard where it stands; return how many have another value than was produced."""
    changed = 0
    for columns in read(shard):
        for offset, value in zip(columns.offsets.tolist(), columns.values, strict=True):
            seen[offset] = min(2, seen[offset] + 1)
            changed += value != value_at(shard.partition.number, offset)
    return changed


def main() -> None:
    """Read the options, kill, print."""
    parser = argparse.ArgumentParser(description="Kill an archiver again and again while records keep coming.")
    parser.add_argument("--kills", type=int, default=50, help=f"how many; {RECORDS_A_KILL:,} records arrive for each")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the times of the kills")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()

    def say(what: str) -> None:
        print(what, file=sys.stderr, flush=True)  # noqa: T201 - a command

    with (
        tempfile.TemporaryDirectory(prefix="millrace-archive-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        found = wage(bootstrap, Path(folder) / "kills", kills=options.kills, seed=options.seed, on_strike=say)
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
