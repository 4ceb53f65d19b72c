"""tensorflow-io: `KafkaGroupIODataset` into `model.fit`, as its tutorial of Kafka does.

The messages are decoded by its own `decode_json`, one by one as it takes them, in as many threads as tf.data finds
good; then `batch(1024)`, `prefetch` and one `fit` over the stream, everything else at its default. It needs
TensorFlow 2.16, and a broker of Kafka 3: its client finds no common request with Kafka 4.
"""

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1] / "measuring"))

import keras
import tensorflow as tf
import tensorflow_io as tfio
from keras_mlp import build_model
from stopwatch import BATCH, FEATURES, SAME_MODEL, Stopwatch, options

SPECS = {"x": tf.TensorSpec([FEATURES], tf.float32), "y": tf.TensorSpec([], tf.float32)}


class Clock(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Stops the fit when enough is learnt."""

    def __init__(self, clock: Stopwatch) -> None:
        super().__init__()
        self._clock = clock
        self._right = 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """A batch was learnt; `fit` tells the accuracy of all batches so far."""
        before, self._right = self._right, (logs or {})["accuracy"] * BATCH * (batch + 1)
        if not self._clock.learnt(BATCH, self._right - before):
            self.model.stop_training = True


def decode(message: Any, key: Any) -> tuple[Any, Any]:
    """One record."""
    del key
    record = tfio.experimental.serialization.decode_json(message, SPECS)
    return record["x"], record["y"]


def main() -> None:
    """Fit to the stream; end without waiting for threads that never end."""
    given = options(__doc__)
    clock = Stopwatch(given)
    stream = tfio.experimental.streaming.KafkaGroupIODataset(
        topics=[given.topic],
        group_id=f"peer-{uuid.uuid4()}",
        servers=given.bootstrap,
        stream_timeout=10_000,
        configuration=["session.timeout.ms=7000", "max.poll.interval.ms=8000", "auto.offset.reset=earliest"],
    )
    rows = stream.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = rows.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    build_model().fit(dataset, verbose=0, callbacks=[Clock(clock)])
    print(json.dumps({**clock.result(), "note": SAME_MODEL}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
