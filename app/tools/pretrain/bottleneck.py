"""What is slowest in a pretraining: a trace of some calls for TensorBoard, and a verdict in words of the first epoch.

The verdict is of our own clocks, since a trace of a whole epoch has too many events. If the model seldom waits for
rows, the call is slowest. Else it is the stage whose threads have worked longest: each may use all of them.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.files.stage_times import Stage, StageTimes

_CALLS = 20
"""Calls of a trace. The first call of an epoch is left out: it is made then."""
_SELDOM = 0.1
"""The share of the time in which the model may wait for rows, and is the slowest all the same."""
_WAYS: Mapping[str, str] = {
    "the call": "the rows come in time; take a larger training.batch_size, a smaller model or a faster device",
    "reading": "put the files on a faster disk, keep a bucket's shards by --cache-shards, or the rows by --cache",
    "decoding": "keep what it gives by --cache, have workers do it by --service, or store the records as raw or avro",
    "shuffling": "make the window smaller by --shuffle",
    "preprocess": "keep what it gives by --cache, have workers do it by --service, or write it for whole columns",
}


class InputProfile(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Takes the trace, and says the verdict at the end of the first epoch.

    Owns TensorFlow's profiler while the trace is taken; runs on the thread that trains.
    """

    def __init__(self, folder: Path, times: StageTimes, say: Callable[[str], None]) -> None:
        super().__init__()
        self._folder, self._times, self._say = folder, times, say
        self._call: Any = None
        self._calls = 0
        self._call_s = self._wait_s = self._at = 0.0
        self._tracing = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras' signature
        """Note how long the rows were waited for."""
        now = time.perf_counter()
        if self._calls:
            self._wait_s += now - self._at
        self._at = now
        if self._tracing:
            self._call = tf.profiler.experimental.Trace("call", step_num=self._calls, _r=1)
            self._call.__enter__()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras' signature
        """Note how long the call took; begin the trace behind the first one."""
        if self._call is not None:
            self._call.__exit__(None, None, None)
            self._call = None
        now = time.perf_counter()
        if self._calls:
            self._call_s += now - self._at
        self._calls += 1
        if self._calls == 1:
            self._begin()
        elif self._calls > _CALLS:
            self._end()
        self._at = time.perf_counter()  # writing a trace is nobody's time

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras' signature
        """Say what is slowest, once."""
        self._end()
        if epoch == 0:
            for line in verdict(self._call_s, self._wait_s, self._times.seconds()):
                self._say(line)
            if self._calls > 1:
                self._say(f"a trace of {min(self._calls - 1, _CALLS)} calls: tensorboard --logdir {self._folder}")

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras' signature
        """End the trace before the validation."""
        self._end()

    def _begin(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            tf.profiler.experimental.start(str(self._folder))
        except (OSError, tf.errors.OpError) as error:
            raise ConfigError(f"--profile: TensorFlow takes no trace to {self._folder}: {error}") from error
        self._tracing = True

    def _end(self) -> None:
        if self._tracing:
            self._tracing = False
            tf.profiler.experimental.stop()


def verdict(call_s: float, wait_s: float, stages: Mapping[Stage, float]) -> list[str]:
    """Return where the time went, and what is slowest, in sentences."""
    total = call_s + wait_s
    if not total:
        return ["the epoch has one call, too few to say what is slowest"]
    listed = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in stages.items())
    _, slowest = max(((seconds, str(stage)) for stage, seconds in stages.items()), default=(0.0, "the call"))
    if wait_s < _SELDOM * total:
        slowest = "the call"
    return [
        f"the call took {call_s / total:.0%} of the time, and waiting for rows {wait_s / total:.0%}".replace("%", " %"),
        f"the threads that read took: {listed or 'nothing, as all rows were kept'}",
        f"slowest is {slowest}: {_WAYS[slowest]}",
    ]
