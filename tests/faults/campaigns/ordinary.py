"""Ordinary streams as a campaign: kinds of records, scaled features, a golden set, rows of the past, a detector.

    python -m tests.faults.campaigns.ordinary --kills 20

All at once, in deterministic mode, over several partitions with poison: a run that is killed again and again ends with
the bits of one that never was, and has learnt each record that matches once, and filtered each that does not.
"""

import argparse
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.consumers.reasons import Reason
from millrace.training.ledger.offset_checksum import Evidence
from tests.faults.campaigns.exactness import (
    EXACT,
    EXTENT,
    PARTITIONS,
    POISON,
    SHAPED,
    Extent,
    Figures,
    apart,
    difference,
    drawn,
    kill_often,
)
from tests.faults.campaigns.kills import broker
from tests.faults.campaigns.machine import ROOT
from tests.faults.harness.process import Run
from tests.faults.harness.project import FEATURES, Project
from tests.faults.harness.records import USERS, ExpectedPosition, good
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.topics import Topic

_LEAST_USER = 7
"""Users from here on are learnt from."""
_GOLDEN = 500
_UNREADABLE = (Reason.MALFORMED, Reason.EMPTY)
"""Records that have no user, so that nobody can say whether they match."""


def sections(golden: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the sections of the config."""
    return {
        "records": {
            "features": {**FEATURES, "x": {**FEATURES["x"], "scale": "running"}},  # type: ignore[dict-item]
            "where": {"user": {"min": _LEAST_USER}},
            # One that the model does not see, and one that it does.
            "slices": {"user": "int64", "partition": {}},
        },
        "model": SHAPED["model"],
        "reservoir": {"size": 600, "share": "20 %", "by": "label"},
        "golden": {"path": str(golden)},
        "training": {
            **EXACT,
            "memory": 300,
            "detectors": [f"{ROOT / 'examples' / 'plugins' / 'page_hinkley.py'}:PageHinkley"],
        },
    }


def write_golden(path: Path, seed: int) -> Path:
    """Write records that no topic holds."""
    random, records = Random(seed), []
    for number in range(_GOLDEN):
        record = good(ExpectedPosition(number % PARTITIONS, number), random)
        records.append({name: record[name] for name in (*FEATURES, "user", "y")})
    pq.write_table(pa.Table.from_pylist(records), path)
    return path


def compare(
    bootstrap: str, folder: Path, *, kills: int, seed: int, cold: bool = True, extent: Extent = EXTENT
) -> Figures:
    """Learn once undisturbed and once killed `kills` times, and return how far apart the two end."""
    began, figures, random = time.monotonic(), Figures(seed=seed), Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    given = sections(write_golden(folder / "golden.parquet", seed))
    with Topic(bootstrap, f"ordinary-{uuid.uuid4().hex[:8]}", PARTITIONS, POISON, seed) as topic:
        topic.write(extent.of(kills))
        end = ",".join(f"{topic.name}:{number}={len(one)}" for number, one in enumerate(topic.verdicts))
        whole = Project(folder / "whole", topic, checkpoints={"every": "150 steps"}, **given)
        killed = Project(folder / "killed", topic, checkpoints={"every": "7 steps"}, **given)
        with Run(whole, "--until", end, cold=cold) as run:
            run.finish()
        kill_often(killed, end, (drawn(random, cold=cold) for _ in range(kills)), figures, cold=cold)
        with Run(killed, "--until", end, cold=cold) as run:
            run.finish()
        _compare_ends(figures, topic, Shelf(whole.folder), Shelf(killed.folder))
    figures.seconds = time.monotonic() - began
    return figures


def _compare_ends(figures: Figures, topic: Topic, whole: Shelf, killed: Shelf) -> None:
    """Hold both ends against each other, and against what a plain reading of the records says."""
    one, two = whole.newest(), killed.newest()
    assert one is not None
    assert two is not None
    figures.records, figures.steps = topic.records, one.manifest.step
    same = one.manifest.step == two.manifest.step and one.manifest.golden == two.manifest.golden is not None
    for part in ("detectors", "reservoir"):
        same &= whole.part(one.number, part).facts == killed.part(two.number, part).facts
    for part in ("recent", "calibration", "inputs", "slices"):
        mine, theirs = (shelf.part(end.number, part).arrays for shelf, end in ((whole, one), (killed, two)))
        same &= mine.keys() == theirs.keys() and all(apart(mine[name], theirs[name]) == 0 for name in mine)
    for number, verdicts in enumerate(topic.verdicts):
        due = Evidence.of(offset for offset in topic.learnable(number) if _matches(offset))
        filtered = sum(not _matches(at) and verdict not in _UNREADABLE for at, verdict in enumerate(verdicts))
        account, seen = two.ledger[number], two.seen[number]
        same &= account == one.ledger[number] and account.balanced and account.position == len(verdicts)
        same &= account.filtered == filtered and seen == one.seen[number] == due
        # What the live score says of a partition is of its records, each once.
        same &= mine[f"partition={number}/binned"].sum() == due.count
        figures.lost += max(0, due.count - seen.count)
        figures.learnt_twice += max(0, seen.count - due.count)
    figures.same_evidence = same
    figures.max_weight_difference = difference(one, two)


def _matches(offset: int) -> bool:
    return offset * offset % USERS >= _LEAST_USER


def main() -> None:
    """Read the options, compare, print."""
    parser = argparse.ArgumentParser(description="Learn an ordinary stream, killed on the way.")
    parser.add_argument("--kills", type=int, default=20, help="how many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the kills and the records")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-ordinary-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        found = compare(bootstrap, Path(folder) / "ordinary", kills=options.kills, seed=options.seed)
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
