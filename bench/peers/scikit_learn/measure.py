"""scikit-learn: MLPClassifier(64, 64) by `partial_fit`, in batches of 1,024.

A plain consumer loop feeds it: `json.loads` of each record, one array a batch. Only the judged records are guessed
first, by `predict`: in the timed part it learns and does nothing else.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # at this size a second thread only waits, and slows it down
sys.path.insert(0, str(Path(__file__).parents[1] / "measuring"))

import numpy as np
from plain_client import batches
from sklearn.neural_network import MLPClassifier
from stopwatch import BATCH, HIDDEN, SAME_MODEL, Stopwatch, options

NOTE = f"{SAME_MODEL}; float32, no AUC"


def main() -> None:
    """Learn batch after batch."""
    given = options(__doc__)
    clock = Stopwatch(given)
    model = MLPClassifier((HIDDEN, HIDDEN), batch_size=BATCH, alpha=0.0)
    for values in batches(given.bootstrap, given.topic, BATCH):
        records = [json.loads(value) for value in values]
        x = np.array([record["x"] for record in records], np.float32)
        y = np.array([record["y"] for record in records])
        right = float((model.predict(x) == y).sum()) if clock.judging else 0.0
        model.partial_fit(x, y, classes=[0, 1])
        if not clock.learnt(len(values), right):
            break
    print(json.dumps({**clock.result(), "note": NOTE}))


if __name__ == "__main__":
    main()
