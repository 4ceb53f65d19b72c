"""Vowpal Wabbit: `--nn 64` through its Python binding, one record at a time.

Its binding takes examples as text, `1 | 0:0.12573 1:-0.13210 …`, and gives back the guess from before the update, so
every record is judged at no cost. A plain consumer loop feeds it.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "measuring"))

from plain_client import batches
from stopwatch import BATCH, HIDDEN, Stopwatch, options
from vowpalwabbit import Workspace

NOTE = "one hidden layer of 64 with its own SGD: --nn has no second layer and no Adam"


def learn(workspace: Workspace, value: bytes) -> bool:
    """Learn one record; whether it was guessed right before."""
    record = json.loads(value)
    label = 1 if record["y"] else -1
    features = " ".join([f"{number}:{x}" for number, x in enumerate(record["x"])])
    example = workspace.example(f"{label} | {features}")
    workspace.learn(example)
    odds: float = example.get_simplelabel_prediction()
    workspace.finish_example(example)
    return (odds > 0.5) == (label > 0)


def main() -> None:
    """Learn record after record."""
    given = options(__doc__)
    clock = Stopwatch(given)
    workspace = Workspace(f"--nn {HIDDEN} --loss_function logistic --link logistic --quiet")
    for values in batches(given.bootstrap, given.topic, BATCH):
        right = sum([learn(workspace, value) for value in values])
        if not clock.learnt(len(values), right):
            break
    print(json.dumps({**clock.result(), "note": NOTE}))


if __name__ == "__main__":
    main()
