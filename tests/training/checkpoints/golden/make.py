"""Makes a golden folder: small checkpoints of the present format, kept as they are for every later version to load.

    python -m tests.training.checkpoints.golden.make tests/training/checkpoints/golden/1/NAME

A real trainer of a tiny model makes them: number 0, one in the middle of the stream, and a rewind to it that skips a
range. Beside them, `expected.json` says what was in memory at each save; the store has no part in writing that.
Once released, a golden folder is never made anew. What the format gains is shown by a new one, beside those that there
are: `1/first` has all that format 1 began with, `1/second` the hyperparameters and the lineage too, `1/third` the
live metrics in the manifests, `1/fourth` the last label of each partition.
"""

import json
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import keras
import numpy as np

from millrace.training.commands import Rewind, Save
from millrace.training.ledger.interventions import Skip
from tests.training.conftest import BATCH, FEATURES, state_of
from tests.training.trainer_rig import P0, P1, RigOptions, Run, Topic

RECORDS = 2 * BATCH + 5
BAD = 7
SKIPPED = (RECORDS + 2, RECORDS + 6)


def tiny() -> Any:
    """Build a model of one weight a feature, a bias, a seed generator, and momentum for each weight."""
    inputs = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dropout(0.25, name="drop")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid", name="clicked")(hidden))
    model.compile(optimizer=keras.optimizers.SGD(0.5, momentum=0.75), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def in_memory(run: Run) -> dict[str, Any]:
    """Return what a checkpoint of this moment holds."""
    return {
        "arrays": {key: np.asarray(value).tolist() for key, value in sorted(state_of(run.learner).items())},
        "step": run.saving.step,
        "partitions": {
            str(partition): {
                "start": account.start,
                "position": account.position,
                "learnt": account.learnt,
                "set_aside": {reason.value: count for reason, count in account.set_aside.items()},
            }
            for partition, account in run.ledger.statistics().partitions.items()
        },
        "skips": [[str(skip.partition), skip.start, skip.end] for skip in run.ledger.skips],
        "witness": {
            str(partition): [seen.count, seen.total, seen.mixed]
            for partition, seen in run.learner.witness.testimonies().items()
            if seen.count
        },
        "records_scored": run.live.look().cumulative_records,
    }


def make(folder: Path) -> None:
    """Make it; the folder must not be there."""
    socket.gethostname = lambda: "golden"  # the record of the term names the host
    topic = Topic(P0, P1)
    topic.bad.add((P0, BAD))
    expected: dict[int, Any] = {}

    def save(order: Callable[[], Any]) -> None:
        manifest = order()
        expected[manifest.number] = in_memory(run)

    with tempfile.TemporaryDirectory() as root:
        run = Run(Path(root), topic, RigOptions(build=tiny)).start()
        expected[0] = in_memory(run)
        for partition in (P0, P1):
            topic.produce(RECORDS, partition)
        for partition in (P0, P1):
            run.reaches(RECORDS, partition)
        save(lambda: run.ask(Save(by="golden", note="in the middle")))
        skip = Skip(order="rewind-golden", partition=P0, start=SKIPPED[0], end=SKIPPED[1], reason="a bad hour")
        save(lambda: run.ask(Rewind(to=1, by="golden", skips=[skip])))
        for name in ("checkpoints", "terms"):
            copytree(Path(root) / "clicks" / name, folder / name)
        run.leave()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
