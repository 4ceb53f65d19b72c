"""The campaign of lost volumes: a trainer is killed, its checkpoints are removed, and it resumes from their mirror.

    python -m tests.faults.campaigns.mirror_losses --losses 20

prints its figures as JSON, and ends with 1 where a promise is broken. The mirror is in an object store; `--folder`
takes a folder. Some kills are at a failpoint, while a checkpoint is copied, pruned there or brought back; the others
come at any time. After each the folder of the checkpoints is removed. The next start must resume from the newest
checkpoint that was whole in the mirror, with its very bytes, and at the end all that was written must be learnt once,
by the witness in the weights.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from millrace.consumers.failpoints import NAMES
from millrace.training.checkpoints.mirror.mirror import Mirror, MirroredCheckpoint
from millrace.training.checkpoints.mirror.target import target_at
from tests.consumers.archive.s3_server import S3Server
from tests.faults.campaigns.kills import broker
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.topics import Topic

PARTITIONS = 2
POINTS = tuple(point for point in NAMES if point.startswith("mirror."))
_BRINGS_BACK = "mirror.before_rename"
_AT_POINTS = 3
"""One kill in so many is at a failpoint."""
_LATEST_S = 3.0
_RECORDS_PER_S = 500.0
_DRAIN_S = 1800.0
OnStrike = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class LossFigures:
    """The results of a campaign."""

    seed: int
    losses: int = 0
    """How often the volume was removed after a kill."""
    resumed: int = 0
    """Starts that resumed from a checkpoint of the mirror."""
    points: Counter[str] = field(default_factory=Counter)
    """How many died at each failpoint."""
    records: int = 0
    lost: int = 0
    learnt_twice: int = 0
    wrong: int = 0
    """Starts that resumed from another checkpoint than the newest of the mirror, or from other bytes."""
    seconds: float = 0.0

    @property
    def unlearnt(self) -> int:
        """Records that were lost or learnt twice."""
        return self.lost + self.learnt_twice

    @property
    def kept(self) -> bool:
        """Whether everything held, and the mirror was needed."""
        return not (self.unlearnt or self.wrong) and self.resumed > 0

    def summary(self) -> dict[str, Any]:
        """Return the results for a program, and for people."""
        counted = {"points": dict(self.points), "seconds": round(self.seconds, 1), "unlearnt": self.unlearnt}
        return {**asdict(self), **counted, "kept": self.kept}


@contextmanager
def bucket() -> Iterator[str]:
    """Yield the URL of a place in a new bucket of a server that this process and its children reach."""
    from fsspec import filesystem

    with S3Server() as server:
        before = {name: os.environ.get(name) for name in server.environment}
        os.environ.update(server.environment)
        try:
            filesystem("s3", skip_instance_cache=True).mkdir("models")
            yield "s3://models/of/tests"
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                os.environ |= {} if value is None else {name: value}


def lose(
    bootstrap: str, folder: Path, *, losses: int, seed: int, place: Path | str, on_strike: OnStrike = lambda _told: None
) -> LossFigures:
    """Kill and remove this often while records arrive, then learn the rest, and compare."""
    began, figures, draws = time.monotonic(), LossFigures(seed=seed), Random(seed)
    with Topic(bootstrap, f"mirror-{uuid.uuid4().hex[:8]}", PARTITIONS, Mixture(), seed) as topic:
        checkpoints = {"path": "./checkpoints", "every": "1s", "mirror": str(place), "keep": {"last": 3}}
        project = Project(folder, topic, checkpoints=checkpoints)
        topic.flow(_RECORDS_PER_S)
        newest: MirroredCheckpoint | None = None
        for number in range(losses):
            point = POINTS[number // _AT_POINTS % len(POINTS)] if number % _AT_POINTS == _AT_POINTS - 1 else None
            _strike(project, point, draws, newest, figures)
            shutil.rmtree(project.folder.root)
            newest = _newest(project, place)
            figures.losses += 1
            on_strike(
                f"loss {figures.losses}: {point or 'at a random time'}, {newest.name if newest else 'nothing'} left"
            )
        topic.still()
        with Run(project, "--until", "now") as run:
            _look_at(run, project, newest, figures)
            run.finish(_DRAIN_S)
        end, mirrored = Shelf(project.folder).newest(), _newest(project, place)
        assert end is not None
        assert mirrored is not None
        assert mirrored.manifest == end.manifest, "the last checkpoint is copied before the end"
        figures.records = topic.records
        for partition in range(PARTITIONS):
            due, seen = topic.evidence(partition), end.seen[partition]
            figures.lost += max(0, due.count - seen.count)
            figures.learnt_twice += max(0, seen.count - due.count)
            assert due == seen or figures.unlearnt, "what was learnt is what was written"
    figures.seconds = time.monotonic() - began
    return figures


def _strike(
    project: Project, point: str | None, draws: Random, newest: MirroredCheckpoint | None, figures: LossFigures
) -> None:
    """Start a trainer, and kill it: at a failpoint, or at a random time once it has copied something new."""
    # Whoever brings a checkpoint back does so once.
    after = 0 if point == _BRINGS_BACK else draws.randrange(2)
    with Run(project, failpoints="" if point is None else f"{point}=kill:after={after}") as run:
        if point != _BRINGS_BACK:
            _look_at(run, project, newest, figures)
        if point is None:
            run.wait_for(lambda: run.said(" is mirrored"), "it has copied a checkpoint")
            time.sleep(draws.uniform(0.0, _LATEST_S))
            assert run.alive, f"it has ended by itself:\n{run.tail()}"
            run.kill()
        else:
            code = run.exit_code()
            assert (code, run.hits(point)) == (-signal.SIGKILL, 1), f"it was to die at {point}:\n{run.tail()}"
            figures.points[point] += 1


def _look_at(run: Run, project: Project, newest: MirroredCheckpoint | None, figures: LossFigures) -> None:
    """Compare what a trainer resumed from with the newest checkpoint of the mirror."""
    run.wait_for(lambda: run.went_on_from() is not None, "it has resumed")
    if newest is None:
        return
    figures.resumed += 1
    home = project.folder.checkpoint(newest.manifest.number)
    same = all(
        (home / name).exists() and hashlib.sha256((home / name).read_bytes()).hexdigest() == facts.sha256
        for name, facts in newest.manifest.files.items()
    )
    figures.wrong += run.went_on_from() != newest.manifest.number or not same


def _newest(project: Project, place: Path | str) -> MirroredCheckpoint | None:
    """Return the newest checkpoint that is whole in the mirror."""
    mirror = Mirror(target_at(place, project.name))
    mirror.look()
    return max(mirror.whole.values(), key=lambda one: (one.manifest.number, one.manifest.term), default=None)


def main() -> None:
    """Read the options, kill and remove, print."""
    parser = argparse.ArgumentParser(
        description="Remove a trainer's volume again and again, and show what it has learnt."
    )
    parser.add_argument("--losses", type=int, default=20, help="how many volumes are lost")
    parser.add_argument("--folder", action="store_true", help="mirror to a folder, and not to an object store")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the kills and the records")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-mirror-") as path,
        broker(given.bootstrap, Path(path)) as bootstrap,
        bucket() as url,
    ):
        place = Path(path) / "mirror" if given.folder else url
        found = lose(
            bootstrap, Path(path) / "trainer", losses=given.losses, seed=given.seed, place=place, on_strike=_say
        )
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


def _say(told: str) -> None:
    print(told, file=sys.stderr, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    main()
