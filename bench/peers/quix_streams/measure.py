"""Quix Streams: a StreamingDataFrame whose rows go to Keras' `train_on_batch`, 1,024 at a time.

Quix Streams deserialises JSON and calls `update` for each row; how rows become a model is left to its user.
"""

import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1] / "measuring"))

import numpy as np
from keras_mlp import build_model
from quixstreams import Application
from stopwatch import BATCH, SAME_MODEL, Stopwatch, options


class Learner:
    """Collects rows and trains."""

    def __init__(self, clock: Stopwatch, enough: Callable[[], None]) -> None:
        self._clock = clock
        self._enough = enough
        self._model = build_model()
        self._rows: list[dict[str, Any]] = []

    def take(self, row: dict[str, Any]) -> None:
        """One more row."""
        self._rows.append(row)
        if len(self._rows) == BATCH and not self._train():
            self._enough()

    def _train(self) -> bool:
        x = np.array([row["x"] for row in self._rows], np.float32)
        y = np.array([row["y"] for row in self._rows], np.float32)
        self._rows.clear()
        scores = self._model.train_on_batch(x, y, return_dict=True)  # of this batch alone
        return self._clock.learnt(BATCH, scores["accuracy"] * BATCH)


def main() -> None:
    """Run the application until the learner has enough."""
    clock = Stopwatch(given := options(__doc__))
    with tempfile.TemporaryDirectory(prefix="quix-streams-") as state:
        application = Application(
            broker_address=given.bootstrap,
            consumer_group=f"peer-{uuid.uuid4()}",
            auto_offset_reset="earliest",
            state_dir=state,
            loglevel="WARNING",
        )
        rows = application.dataframe(application.topic(given.topic, value_deserializer="json"))
        rows.update(Learner(clock, application.stop).take)
        application.run()
    print(json.dumps({**clock.result(), "note": SAME_MODEL}))


if __name__ == "__main__":
    main()
