"""The campaign of kills of a group: its workers are killed, stopped and drained while records keep coming.

    python -m tests.faults.campaigns.group_kills --kills 60 --workers 2,3,1

prints its figures as JSON, and ends with 1 where a promise is broken. Who is struck, and how, is dealt from a shuffled
deck (`group_strikes.py`): 60 kills come to every failpoint of a chief and of a worker. Each number of workers resumes
from what the one before has left; a single worker is not killed, and learns the rest. `--bootstrap` names a broker;
without it a local one is started.
"""

import argparse
import json
import math
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from millrace.training.ledger.offset_checksum import Evidence
from tests.faults.campaigns.group_strikes import deck
from tests.faults.campaigns.group_striking import KEPT, Figures, OnStrike, Striking
from tests.faults.campaigns.kills import broker
from tests.faults.harness.group import EMBEDDED, GroupOfProcesses
from tests.faults.harness.records import Mixture
from tests.faults.harness.spikes import QUIET, Spiked
from tests.faults.harness.topics import Topic

PARTITIONS = 4
_POISON = Mixture(share=0.004, kinds=QUIET)
_RECORDS_PER_S = 400.0
_MOST_AHEAD = 4000
"""Records that the writer is ahead of the newest checkpoint."""
_BATCH = 48
_TIMEOUT = "60s"


def wage(
    bootstrap: str,
    folder: Path,
    *,
    kills: int,
    workers: Sequence[int],
    seed: int,
    on_strike: OnStrike,
    strike_s: float = math.inf,
) -> Figures:
    """Carry a deck of so many kills out, drain the topic, and compare what was learnt with what was written.

    A group is struck no more after `strike_s` seconds, however many are left of its portion of the deck.
    """
    began = time.monotonic()
    figures, random, stream = Figures(seed=seed), Random(seed), Spiked(_POISON)
    strikes = deck(random, kills)
    several = sum(size > 1 for size in workers)
    sections: dict[str, dict[str, Any]] = {
        "model": {"build": f"{EMBEDDED}:build_model"},
        "training": {"batch_size": _BATCH, "batches_per_call": 4},
        "checkpoints": {"keep": {"last": KEPT}},
    }
    with Topic(bootstrap, f"group-{uuid.uuid4().hex[:8]}", PARTITIONS, stream, seed) as topic:
        topic.write(500)
        for number, size in enumerate(workers):
            share = len(strikes) // several if several else 0
            with GroupOfProcesses(folder, topic, size, timeout=_TIMEOUT, cold_again=True, **sections) as group:
                topic.flow(_RECORDS_PER_S, partial(_is_wanted, topic, group))
                if size > 1:
                    several -= 1
                    dealt, strikes = strikes[:share], strikes[share:]
                    Striking(group, topic, stream, random, figures, on_strike).strike_all(dealt, strike_s)
                topic.still()
                if number == len(workers) - 1:
                    group.wait_until(lambda: group.settled() == topic.records, "all is learnt")
                    _compare(group, topic, figures)
                figures.checkpoints += group.assert_sound()
    figures.seconds = time.monotonic() - began
    return figures


def _is_wanted(topic: Topic, group: GroupOfProcesses) -> bool:
    """Return whether the group is about to have learnt all: a slow machine is not to have a topic without end."""
    return topic.records - group.last_settled < _MOST_AHEAD


def _compare(group: GroupOfProcesses, topic: Topic, figures: Figures) -> None:
    statement = group.newest()
    figures.records = topic.records
    for partition in range(topic.partitions):
        skipped = figures.skipped.get(partition, set())
        ids = [offset for offset in topic.learnable(partition) if offset not in skipped]
        expected, seen = Evidence.of(ids), statement.seen[partition]
        figures.lost += max(0, expected.count - seen.count)
        figures.learnt_twice += max(0, seen.count - expected.count)
        weights = statement.ids[partition] == (len(ids), sum(ids), sum(each * each for each in ids))
        if expected.count == seen.count and not (expected == seen and weights):  # one for another: both
            figures.lost += 1
            figures.learnt_twice += 1


def main() -> None:
    """Read the options, kill, print."""
    parser = argparse.ArgumentParser(description="Kill the workers of a group again and again.")
    parser.add_argument("--kills", type=int, default=60, help="how many, in all")
    parser.add_argument("--minutes", type=float, default=math.inf, help="strike each number of workers no longer")
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
        found = wage(
            bootstrap,
            there,
            kills=options.kills,
            workers=workers,
            seed=options.seed,
            on_strike=say,
            strike_s=60 * options.minutes,
        )
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
