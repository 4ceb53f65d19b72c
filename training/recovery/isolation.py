"""Isolation of culprits: learns a block that makes a call raise, all of it once but for the records that raise.

A try whose call returns and leaves NaN or infinity in the state counts as one that raised.

The whole block is tried, then its batches one by one, then halves, down to single records, each as a call of its own.
Before each try every variable is copied, and copied back if the try raises, so that a culprit leaves no trace on any
replica: no weight, no statistic, no count of the witness. A record that raises alone is a culprit. What is learnt, and
in which order, depends only on the records and on the weights before them, so that a replay gives the same weights.

`training/model/call/culprit_search.py` searches by halves too, for updates that are not finite, and is a search of its
own because it needs another order. There the call itself leaves a bad batch out, and the number of calls is limited:
both halves are tried before either is searched, so that a good half is learnt before the limit is reached. Here each
try copies all variables, and the number of culprits is limited: the first half is searched to its end before the second
is tried, so that a hopeless block reaches the limit in fewer tries.

Owns the copies while it learns; runs on the trainer's thread, before the block is settled.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from millrace.consumers.errors import MillraceError
from millrace.consumers.failpoints import failpoint
from millrace.consumers.reasons import Reason
from millrace.pipelines.stream.blocks import Rows
from millrace.training.errors import StateNotFiniteError, op_gist
from millrace.training.model.call.compiled_call import batch_of
from millrace.training.model.call.culprit_search import only
from millrace.training.model.learner import Learner, Lesson
from millrace.training.model.variables import copies

_MACHINE_ERRORS = (
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
)
"""Errors of the machine: no memory, a lost device, cancelled work. No record causes them."""
FEW = 32
"""The number of culprits that any block may have, however small it is."""
_MANY, _PORTION = 256, 4
"""Beyond that: a quarter of the block's rows, but no more than 256."""
STEP, PREPROCESS = "the training step", "preprocess"


def at_fault(error: Exception) -> bool:
    """Return whether a record may have caused this error: not one of millrace's own, nor one of the machine."""
    return not isinstance(error, (MillraceError, MemoryError, *_MACHINE_ERRORS))


def blamed(error: BaseException, place: str) -> str:
    """Describe what raised, and where: by what an assertion states, never by the values, which an error may quote."""
    return op_gist(error, place)


def most_culprits(rows: int) -> int:
    """Return how many of a block's rows may raise; if more do, the model or the producer is at fault."""
    return min(max(rows // _PORTION, FEW), _MANY)


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one call that has returned, and its results."""

    rows: Rows
    """The rows as the model took them."""
    lesson: Lesson


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a try failed."""

    gist: str
    reason: Reason = Reason.STEP_RAISED


@dataclass(frozen=True, slots=True)
class Culprit:
    """A record that makes a training step or `preprocess` raise, or leaves a state that is not finite."""

    partition: int
    """The partition's index in the table of the incarnation."""
    offset: int
    fault: Fault


class TooManyCulpritsError(Exception):
    """The search has found more culprits than single bad records explain."""

    def __init__(self, count: int, fault: Fault) -> None:
        super().__init__(f"{count} records: {fault.gist}")
        self.count, self.fault = count, fault


class VariableCopies:
    """Copies of every variable that a checkpoint holds, on every replica."""

    def __init__(self, learner: Learner) -> None:
        self._variables = [copy for variable in learner.state for copy in copies(variable)]
        self._values: list[Any] = []

    def copy(self) -> None:
        """Copy all variables; reading is enough, as TensorFlow writes the next update to another buffer."""
        self._values = [variable.read_value() for variable in self._variables]

    def restore(self) -> None:
        """Undo every update since `copy`."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)


@dataclass(slots=True, kw_only=True)
class IsolatingLearner:
    """Learns one block and isolates the records that raise."""

    learner: Learner
    prepare: Callable[[Rows], Rows] | None
    """The user's `preprocess`, if the rows have not been through it; else None."""
    progress: Callable[[], None]
    """Called before each try, as a search may take long."""
    most: int
    """The most culprits; TooManyCulpritsError if there are more."""
    pieces: list[Piece] = field(default_factory=list)
    culprits: list[Culprit] = field(default_factory=list)

    def learn(self, rows: Rows) -> None:
        """Learn every record that can be learnt; list the calls in `pieces` and the other records in `culprits`."""
        variables = VariableCopies(self.learner)
        if self._try(rows, variables, replay=True) is None:
            return
        for index in range(int(rows.weights.shape[0])):
            self._search(batch_of(rows, index), variables)

    def _search(self, batch: Rows, variables: VariableCopies) -> None:
        offsets, partitions = batch.offsets.numpy()[0], batch.partitions.numpy()[0]
        untried = [np.flatnonzero(offsets >= 0)]
        while untried:
            rows = untried.pop()
            # Of rows that are given again one may be at fault, which is no reason to set these aside.
            fault = self._try(only(batch, rows), variables, replay=False)
            if fault is None:
                continue
            together = self.learner.options.rows_together
            if len(rows) > 1 and not together:
                # Reversed, so that the first half is popped next and searched to its end before the second is tried.
                untried.extend(reversed(np.array_split(rows, 2)))
                continue
            # Where the loss compares rows, a part of a batch is another batch: it is set aside whole.
            self.culprits += [Culprit(int(partitions[row]), int(offsets[row]), fault) for row in rows]
            failpoint("careful.culprit")
            if len(self.culprits) > self.most:
                raise TooManyCulpritsError(len(self.culprits), fault)

    def _try(self, rows: Rows, variables: VariableCopies, *, replay: bool) -> Fault | None:
        """Learn these rows and return None; if they raise or leave NaN, undo it all and return what did, and where."""
        self.progress()
        variables.copy()
        place, fault = PREPROCESS, None
        try:
            prepared = rows if self.prepare is None else self.prepare(rows)
            place = STEP
            lesson = self.learner.learn(prepared, replay=replay)
            if names := self.learner.not_finite():
                fault = Fault(StateNotFiniteError(names).gist, Reason.UPDATE_NOT_FINITE)
        except Exception as error:
            if not at_fault(error):
                raise
            fault = Fault(blamed(error, place))
        if fault is not None:
            variables.restore()
            return fault
        self.pieces.append(Piece(prepared, lesson))
        return None
