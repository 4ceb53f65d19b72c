"""Careful learning: a block that makes a call raise is learnt without the records at fault, and all the rest once.

The whole block is tried, then its batches one by one, then halves, down to single records, each as a call of its own.
Before each try every variable is copied, and put back where the try raises, so that a record at fault leaves nothing
behind, on no replica: no weight, no statistic, no testimony. What raises alone is a culprit. What is learnt, and in
which order, is a function of the records and of the weights before them, so a replay comes to the same.

Owns the copies while it learns; runs on the trainer's thread, inside the settling of the block.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from consumers.errors import MillraceError
from consumers.failpoints import failpoint
from training.model.compiled_call import Rows
from training.model.culprit_search import only
from training.model.learner import Learner, Lesson
from training.model.variables import copies

_NODE = re.compile(r"\{\{(?:function_)?node ([^}]+)\}\}")
_OF_THE_MACHINE = (
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
)
"""Memory that has run out, a device that is lost, work that was called off."""
FEW = 32
"""So many records may be at fault in any case."""
_MANY, _SHARE = 256, 4
STEP, PREPROCESS = "the training step", "preprocess"


def at_fault(error: Exception) -> bool:
    """Whether a record may be to blame for what was raised: not for our own errors, nor for what ails the machine."""
    return not isinstance(error, (MillraceError, MemoryError, *_OF_THE_MACHINE))


def blamed(error: BaseException, place: str) -> str:
    """What was raised, and where. Never its message, which may hold a record's values."""
    node = _NODE.search(str(error))
    return f"{type(error).__name__} in {place}" + (f" ({node[1]})" if node else "")


def most_culprits(rows: int) -> int:
    """How many of a block's rows may raise: where more do, it is not the records that are at fault."""
    return min(max(rows // _SHARE, FEW), _MANY)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that one call has learnt."""

    rows: Rows
    """As the model took them."""
    lesson: Lesson


@dataclass(frozen=True, slots=True)
class Culprit:
    """A record that makes a step raise."""

    partition: int
    """By its place in the incarnation's table."""
    offset: int
    gist: str


class TooManyCulpritsError(Exception):
    """The search has found more culprits than single bad records can be."""

    def __init__(self, found: int, gist: str) -> None:
        super().__init__(f"{found} records: {gist}")
        self.found, self.gist = found, gist


class Memory:
    """Every variable that a checkpoint holds, on every replica, as it was."""

    def __init__(self, learner: Learner) -> None:
        self._variables = [copy for variable in learner.state for copy in copies(variable)]
        self._values: list[Any] = []

    def keep(self) -> None:
        """Copy them all; TensorFlow writes the next update to another buffer."""
        self._values = [variable.read_value() for variable in self._variables]

    def put_back(self) -> None:
        """Undo everything since `keep`."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)


@dataclass(slots=True, kw_only=True)
class CarefulLearner:
    """Learns one block."""

    learner: Learner
    prepare: Callable[[Rows], Rows] | None
    """The user's `preprocess`, where the rows have not been through it."""
    progress: Callable[[], None]
    """Called before each try: a search may take long."""
    most: int
    """Culprits; TooManyCulpritsError where there are more."""
    pieces: list[Piece] = field(default_factory=list)
    culprits: list[Culprit] = field(default_factory=list)

    def learn(self, rows: Rows) -> None:
        """Learn all that can be learnt, into `pieces`; the rest are `culprits`."""
        memory = Memory(self.learner)
        if self._try(rows, memory) is None:
            return
        for index in range(int(rows.weights.shape[0])):
            self._search(rows.batch(index), memory)

    def _search(self, batch: Rows, memory: Memory) -> None:
        offsets, partitions = batch.offsets.numpy()[0], batch.partitions.numpy()[0]
        left = [np.flatnonzero(offsets >= 0)]
        while left:
            rows = left.pop()
            gist = self._try(only(batch, rows), memory)
            if gist is not None and len(rows) == 1:
                self._found(Culprit(int(partitions[rows[0]]), int(offsets[rows[0]]), gist))
            elif gist is not None:
                left.extend(reversed(np.array_split(rows, 2)))

    def _found(self, culprit: Culprit) -> None:
        self.culprits.append(culprit)
        failpoint("careful.culprit")
        if len(self.culprits) > self.most:
            raise TooManyCulpritsError(len(self.culprits), culprit.gist)

    def _try(self, rows: Rows, memory: Memory) -> str | None:
        """Learn these rows, or be as before: then what they have raised."""
        self.progress()
        memory.keep()
        place = PREPROCESS
        try:
            prepared = rows if self.prepare is None else self.prepare(rows)
            place = STEP
            lesson = self.learner.learn(prepared)
        except Exception as error:
            if not at_fault(error):
                raise
            memory.put_back()
            return blamed(error, place)
        self.pieces.append(Piece(prepared, lesson))
        return None
