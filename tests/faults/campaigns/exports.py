"""The campaign of kills of an exporter and of its trainer, while the trainer learns and exports.

    python -m tests.faults.campaigns.exports --kills 50

prints its figures as JSON, and ends with 1 where a promise is broken. A part of the exporters dies at a failpoint, the
others at any time; in between the trainer dies. A reader looks at the folder all the time: whatever has a number there
has to be whole. Afterwards every version has to be that of the checkpoint whose number it has.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from millrace.consumers.failpoints import NAMES
from millrace.consumers.records import Partition
from millrace.training.checkpoints.exports.version_folder import VersionFolder
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.manifest import FILE_NAME, read_manifest
from tests.faults.campaigns.kills import broker
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.topics import Topic

FORMATS = ("saved_model", "onnx")
POINTS = tuple(name for name in NAMES if name.startswith("export."))
_LATEST_S = 8.0
"""When a kill at a random time comes at the latest, after the start of the process."""
_A_TRAINER = 3
"""Exporters that die before their trainer does."""
_WITHIN_S = 300.0
_POLL_S = 0.02
_RECORDS = 100
OnStrike = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class ExportKillFigures:
    """The results of a campaign."""

    seed: int
    kills: int = 0
    of_trainers: int = 0
    points: dict[str, int] = field(default_factory=dict)
    """How many died at each failpoint."""
    versions: int = 0
    """Versions that a reader has seen."""
    half_versions: int = 0
    """Of these, those that were not whole."""
    disagreeing: int = 0
    """Versions that are not of the checkpoint whose number they have."""
    left_over: int = 0
    """What is half written or half removed after the last export."""
    seconds: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether everything held."""
        return self.versions > 0 and not (self.half_versions or self.disagreeing or self.left_over)

    def summary(self) -> dict[str, Any]:
        """Return the results for a program, and for people."""
        return {**asdict(self), "seconds": round(self.seconds, 1), "kept": self.kept}


def wage(
    bootstrap: str, folder: Path, *, kills: int, seed: int, on_strike: OnStrike, formats: Sequence[str] = FORMATS
) -> ExportKillFigures:
    """Kill this often while a trainer learns and exports; then export once more, and compare what is there."""
    began, figures, draws = time.monotonic(), ExportKillFigures(seed=seed), random.Random(seed)
    with Topic(bootstrap, f"exports-{uuid.uuid4().hex[:8]}", 1, Mixture(), seed) as topic:
        settings = {"path": "./exports", "every": "1s", "keep": 2, "formats": [*formats]}
        made = Project(folder / "run", topic, export=settings)
        versions = VersionFolder(made.path / "exports" / made.name)
        with _reading(versions, figures):
            while figures.kills < kills:
                _one_trainer(made, topic, draws, figures, kills, on_strike)
            with Run(made) as run:
                _wait(lambda: run.status().get("exports", {}).get("made"), run, topic)
                run.terminate()
                run.finish()
        figures.left_over = len(versions.leftovers())
        figures.disagreeing = sum(not _agrees(versions, made.folder, number) for number in versions.numbers())
    figures.seconds = time.monotonic() - began
    return figures


def _one_trainer(
    made: Project, topic: Topic, draws: random.Random, figures: ExportKillFigures, kills: int, on_strike: OnStrike
) -> None:
    """Start a trainer, kill some of its exporters, and then the trainer."""
    untried = [name for name in POINTS if name not in figures.points]
    point = draws.choice(untried) if untried and draws.random() < 0.6 else None
    with Run(made, failpoints="" if point is None else f"{point}=kill") as run:
        for _ in range(1 if point else _A_TRAINER):
            child = _wait(lambda: _exporter_of(run.pid), run, topic)
            if point is not None:
                _wait(partial(_gone, child), run)
                figures.points[point] = figures.points.get(point, 0) + 1
            else:
                time.sleep(draws.uniform(0.0, _LATEST_S))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            figures.kills += 1
            on_strike(f"kill {figures.kills}: an exporter, {point or 'at any time'}")
            if figures.kills >= kills:
                return
        _wait(lambda: _exporter_of(run.pid), run, topic)
        time.sleep(draws.uniform(0.0, _LATEST_S))
        run.kill()
        figures.kills += 1
        figures.of_trainers += 1
        on_strike(f"kill {figures.kills}: the trainer")


def _exporter_of(trainer: int) -> int:
    """Return the process id of the trainer's exporter; 0 where there is none."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == trainer:
                words = (path.parent / "cmdline").read_bytes().split(b"\0")
                if b"export" in words and b"-c" in words and b"--json" in words:
                    return int(path.parent.name)
    return 0


def _gone(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def _wait(condition: Callable[[], Any], run: Run, topic: Topic | None = None) -> Any:
    """Wait for what is not false, and return it; some records are written meanwhile where there is a topic."""
    ends_at = time.monotonic() + _WITHIN_S
    while not (found := condition()):
        assert run.alive, f"the trainer has ended: {run.tail()}"
        assert time.monotonic() < ends_at, f"nothing within {_WITHIN_S:g} s: {run.tail()}"
        if topic is not None:
            topic.write(_RECORDS)
        time.sleep(10 * _POLL_S)
    return found


@contextmanager
def _reading(versions: VersionFolder, figures: ExportKillFigures) -> Iterator[None]:
    """Look at the folder all the time, as a server does."""
    stopped, seen = threading.Event(), set[int]()

    def read() -> None:
        while not stopped.wait(_POLL_S):
            for number in set(versions.numbers()) - seen:
                problems = versions.problems(number)
                if problems and versions.version(number).exists():
                    figures.half_versions += 1
                seen.add(number)
                figures.versions = len(seen)

    reader = threading.Thread(target=read, name="reader")
    reader.start()
    try:
        yield
    finally:
        stopped.set()
        reader.join()


def _agrees(versions: VersionFolder, checkpoints: Folder, number: int) -> bool:
    """Return whether a version is whole and of the checkpoint that has its number, which is still there."""
    if versions.problems(number):
        return False
    manifest, place = versions.manifest(number), checkpoints.checkpoint(number)
    theirs = read_manifest(place, number)
    positions = {
        str(Partition(topic, int(partition))): offset
        for topic, partitions in manifest.positions.items()
        for partition, offset in partitions.items()
    }
    digest = hashlib.sha256((place / FILE_NAME).read_bytes()).hexdigest()
    return manifest.checkpoint.sha256 == digest and positions == dict(theirs.positions)


def main() -> None:
    """Read the options, kill, print."""
    parser = argparse.ArgumentParser(description="Kill exporters and trainers again and again; look for half versions.")
    parser.add_argument("--kills", type=int, default=50, help="how many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the kills and the records")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-exports-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        found = wage(
            bootstrap,
            Path(folder) / "exports",
            kills=options.kills,
            seed=options.seed,
            on_strike=lambda text: print(text, file=sys.stderr, flush=True),  # noqa: T201 - a command
        )
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
