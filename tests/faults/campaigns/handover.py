"""The hand-over as a campaign: a run that reads the archive and then Kafka ends with the bits of one that read Kafka.

    python -m tests.faults.campaigns.handover --kills 10

Both learn the same records in deterministic mode, from several partitions, poison included. The first one reads all of
them from Kafka. Then Kafka loses most of what is archived, and the second one, which is killed on the way, reads that
from the archive and hands over to Kafka at the next offset.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from random import Random

from millrace.app.settings import load
from millrace.app.tools.archive import archive
from millrace.consumers.archive.shards import listing
from millrace.consumers.kafka.positions import Now
from tests.faults.campaigns.exactness import EXACT, PARTITIONS, POISON, Figures, compare_ends, drawn, kill_often
from tests.faults.campaigns.kills import broker
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.retention import delete_before
from tests.faults.harness.topics import Topic

_SHARDS = 3
"""Shards of each partition."""
_A_SHARD = 2_000
"""Records of each; a kill finds about this many of each partition to learn, and half of them come from Kafka."""
_A_KILL = 2_500


def hand_over(bootstrap: str, folder: Path, *, kills: int, seed: int, cold: bool = True) -> Figures:
    """Learn once from Kafka, once from archive and Kafka, killed so often; return how far apart the two end."""
    began, figures, random = time.monotonic(), Figures(seed=seed), Random(seed)
    with Topic(bootstrap, f"handover-{uuid.uuid4().hex[:8]}", PARTITIONS, POISON, seed) as topic:
        whole = Project(folder / "whole", topic, training=EXACT, checkpoints={"every": "150 steps"})
        archived = {"path": str(folder / "archive")}
        handed = Project(folder / "handed", topic, training=EXACT, checkpoints={"every": "7 steps"}, archive=archived)
        for _ in range(_SHARDS):
            topic.write(_A_SHARD + kills * _A_KILL // _SHARDS // 2)
            archive(load(handed.config).settings, Now(), threading.Event())
        ends = {shard.partition.number: shard.next_offset for shard in listing(folder / "archive")}
        topic.write(_A_SHARD + kills * _A_KILL // 2)
        until = ",".join(f"{topic.name}:{number}={len(one)}" for number, one in enumerate(topic.verdicts))
        with Run(whole, "--until", until, cold=cold) as run:
            run.finish()
        # Kafka begins within the last shard of one partition, at the end of another's, and so on.
        delete_before(bootstrap, topic.name, {number: end - 700 * (number % 2) for number, end in ends.items()})
        kill_often(handed, until, (drawn(random, cold=cold) for _ in range(kills)), figures, cold=cold)
        with Run(handed, "--until", until, cold=cold) as run:
            run.finish()
        compare_ends(figures, topic, whole, handed)
    figures.seconds = time.monotonic() - began
    return figures


def main() -> None:
    """Read the options, compare, print."""
    parser = argparse.ArgumentParser(description="Hand over from an archive to Kafka, killed on the way.")
    parser.add_argument("--kills", type=int, default=10, help="how many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the kills and the records")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-handover-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        found = hand_over(bootstrap, Path(folder) / "handover", kills=options.kills, seed=options.seed)
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
