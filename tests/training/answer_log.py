"""A watcher that keeps what each record was answered, for an independent sum over them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.pipelines.stream.blocks import Rows
from millrace.training.checkpoints.parts import PartState
from millrace.training.telemetry.watcher import Call, Watcher


class AnswerLog(Watcher):
    """Keeps of each offset the label and the answer of when it was last learnt, as a log beside the service would."""

    name = "answer_log"

    def __init__(self) -> None:
        self.answers: dict[tuple[int, int], tuple[Any, Any]] = {}

    def called(self, call: Call) -> None:
        for (rows, learnt), outputs in zip(call.rows, call.outputs, strict=True):
            columns = (rows.partitions.numpy(), rows.offsets.numpy(), rows.labels.numpy(), outputs)
            for partition, offset, label, answer in zip(*(column[learnt] for column in columns), strict=True):
                self.answers[int(partition), int(offset)] = (label, answer)

    def of(self, end: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Return labels and answers of the first offsets of partition 0."""
        found = [self.answers[0, offset] for offset in range(end) if (0, offset) in self.answers]
        return np.array([label for label, _ in found]).reshape(len(found), -1), np.array([a for _, a in found])

    def snapshot(self) -> PartState:
        return PartState()

    def restore(self, state: PartState) -> None:
        del state

    @staticmethod
    def call(labels: npt.NDArray[Any], answers: npt.NDArray[np.float32], first: int = 0) -> Call:
        """Return a call of one batch whose rows have these labels, and these answers."""
        offsets = np.arange(first, first + len(labels))
        rows = Rows(
            features={},
            labels=tf.constant(labels[None]),
            weights=tf.ones([1, len(labels)]),
            offsets=tf.constant(offsets[None]),
            partitions=tf.zeros([1, len(labels)], tf.int32),
        )
        facts: Any = SimpleNamespace(spans=())
        learnt = np.ones((1, len(labels)), np.bool_)
        outputs = answers.reshape(1, len(labels), -1)
        return Call(facts=facts, rows=[(rows, learnt)], scored=(), outputs=[outputs], step=1, records=len(labels))
