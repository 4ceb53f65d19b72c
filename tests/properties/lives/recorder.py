"""Stands where the learner does: its model is the list of the offsets that it was given, read out of the records."""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from millrace.pipelines.stream.blocks import Rows
from millrace.training.checkpoints import PartState
from millrace.training.model.call.compiled_call import CallResult
from millrace.training.model.call.culprit_search import alone
from millrace.training.model.call.witness import Witness
from millrace.training.model.learner import Learner, Lesson
from millrace.training.model.variables import VariablesPart, optimizer_variables, rates_of
from tests.properties.lives.log import NAN, RAISES, Log

BATCH = 2


class Seen:
    """How often each offset was learnt: all that there is to this model. Both a variable and a part."""

    name = "seen"

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    @property
    def times(self) -> Counter[int]:
        return Counter(number for call in self.calls for number in call)

    def read_value(self) -> list[list[int]]:
        return [list(call) for call in self.calls]

    def assign(self, calls: Sequence[Sequence[int]]) -> None:
        self.calls = [list(call) for call in calls]

    def snapshot(self) -> PartState:
        return PartState(facts={"calls": self.read_value()})

    def restore(self, state: PartState) -> None:
        self.assign(state.facts["calls"])


@functools.cache
def _model() -> Any:
    """Return a model, for its optimizer's variables and hyperparameters only."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.125), loss="mse")
    model.optimizer.build(model.trainable_variables)
    return model


@functools.cache
def _witness() -> tuple[Witness, Callable[..., None]]:
    """Return one witness for all lives, as it takes long to trace; each life begins with its rows empty."""
    witness = Witness()
    shapes = [tf.TensorSpec([None, None], dtype) for dtype in (tf.int64, tf.int32, tf.bool)]
    return witness, tf.function(witness.add, input_signature=shapes)


class Recorder:
    """Stands where the learner does. Some records have no finite update, and some raise half-way through their call."""

    parameters, replicas, devices, learning_rate = 0, 1, ("CPU:0",), 0.125
    batch_size, mixtures = BATCH, ()
    places = staticmethod(alone)
    options = SimpleNamespace(batch_size=BATCH, rows_together=False)

    def __init__(self, log: Log) -> None:
        self._log = log
        self.model = _model()
        self.seen = Seen()
        self.witness, self._testify = _witness()
        self.witness._write({})
        optimizer = VariablesPart("optimizer", optimizer_variables(self.model), optional=rates_of(self.model))
        self.parts = (optimizer, self.seen, self.witness)
        self.state = [self.seen, self.witness.variable]

    def not_finite(self) -> list[str]:
        """Return nothing: it holds only whole numbers."""
        return []

    def learn(self, rows: Rows, *, replay: bool = True) -> Lesson:
        # All that it asks of a learner is its call.
        return Learner.learn(self, rows, replay=replay)  # type: ignore[arg-type]

    def call(self, rows: Rows, *, replay: bool = True) -> CallResult:
        """Learn all or nothing of each batch; if a record raises, the state is not to be relied upon."""
        here = rows.offsets.numpy() >= 0
        ids = [numbers[present].tolist() for numbers, present in zip(rows.features["id"].numpy(), here, strict=True)]
        kinds = [{self._log.kind_of(number) for number in batch} for batch in ids]
        finite = np.array([NAN not in there for there in kinds])
        self.seen.calls.append([number for batch, good in zip(ids, finite, strict=True) if good for number in batch])
        self._testify(rows.offsets, rows.partitions, tf.constant(here & finite[:, None]))
        if any(RAISES in there for there in kinds):
            raise ZeroDivisionError("in the middle of a step")
        outputs = np.zeros((*rows.weights.shape, 0), np.float32)
        return CallResult(finite=finite, losses=np.zeros(len(finite)), states=(), outputs=outputs)
