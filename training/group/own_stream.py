"""The stream of one member: its blocks, looked for without ever waiting, searched where they are suspect.

Holds at most one block, until the group makes its next call. Runs on the trainer's thread.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import Delivery
from millrace.training.group.roles import PolledStream
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.learner import Learner
from millrace.training.model.variables import assign, read
from millrace.training.recovery.isolation import Culprit
from millrace.training.recovery.step_errors import BlockRaised, Standing, StepRecovery
from millrace.training.stream import StreamEnded, TopicsRecreated
from millrace.training.telemetry.meter import Meter


@dataclass(frozen=True, slots=True)
class Sieved:
    """A block whose culprits are known."""

    delivery: Delivery
    """Without them; of no batch where nothing is left."""
    culprits: Sequence[Culprit] | None
    """None where the block was not suspect."""


class Sieve:
    """Finds the culprits of a suspect block on a model of this member alone, before the call of all.

    In a group nothing may be tried on the group's own model: all members make each of its calls, and after one that
    raises no collective of the process works any more. So the block is tried on a copy of the model, with the present
    weights, which is built for the first suspect block. The part of it that can be learnt goes into the call of all, in
    as many batches as the search has made of it.
    """

    def __init__(self, learner: Learner, steps: StepRecovery) -> None:
        self._learner, self._steps = learner, steps
        self._copy: Learner | None = None

    def sieved(self, delivery: Delivery) -> Sieved:
        """Return the block as it is, or without its culprits where it is suspect."""
        learnt = self._steps.sieved(delivery, self._present)
        if learnt is None:
            return Sieved(delivery, None)
        pieces = [piece.rows for piece in learnt.pieces]
        batches = sum(int(rows.weights.shape[0]) for rows in pieces)
        rows = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *pieces) if pieces else delivery.rows
        facts = replace(delivery.facts, batches=batches)
        return Sieved(Delivery(rows, facts), learnt.isolated)

    def _present(self) -> Learner:
        """Return the copy with the present weights."""
        if self._copy is None:
            self._copy = self._learner.alone(self._learner.options.batch_size)
            self._copy.trace(self._copy.rows_of(self._copy.probe()), deterministic=False)
        for mine, theirs in zip(self._copy.variables, self._learner.variables, strict=True):
            assign(mine, read(theirs).numpy())
        self._copy.scale.begin_as(self._learner.scale)
        return self._copy


class OwnStream:
    """The stream of the present incarnation, and the block that is ready."""

    def __init__(self, ledger: Ledger, steps: StepRecovery, sieve: Sieve) -> None:
        self._ledger, self._steps, self._sieve = ledger, steps, sieve
        self._stream: PolledStream | None = None
        self._held: Sieved | None = None
        self._held_since = 0.0
        self.ended = False
        """Whether it has given all that there is to learn."""
        self.has_to_reopen = False
        self.recreated: Mapping[Partition, int] = {}
        """The partitions of topics that were created again, with their first offsets."""

    @property
    def stream(self) -> PolledStream:
        assert self._stream is not None, "a stream is open while the trainer runs"
        return self._stream

    @property
    def expects(self) -> bool:
        """Whether records are on their way to a block, and none is ready."""
        return self._held is None and not self.ended and self.stream.expects

    @property
    def ready_batches(self) -> int:
        """The batches of the block that is ready; 1 for a block without rows, which has to be settled too."""
        return 0 if self._held is None else max(1, self._held.delivery.facts.batches)

    @property
    def waited_ms(self) -> int:
        """For how long a block has been ready."""
        return 0 if self._held is None else round((time.monotonic() - self._held_since) * 1000)

    def open(self, stream: PolledStream) -> None:
        """Take the stream of a new incarnation."""
        self._stream = stream
        self.ended, self.has_to_reopen, self.recreated = False, False, {}

    def close(self) -> None:
        """Close the stream and drop the block; a second call does nothing."""
        self._held = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def poll(self, standing: Standing) -> bool:
        """Look for the next block, without waiting for one; return whether one came.

        `standing` is the newest checkpoint: what `preprocess` raises on is remembered from there.
        """
        if self._held is None and not self.ended and not self.has_to_reopen:
            self.stream.draw_ahead()
            if self.stream.ready and (delivery := self._next(standing)) is not None:
                self._held, self._held_since = self._sieve.sieved(delivery), time.monotonic()
                return True
        return False

    def _next(self, standing: Standing) -> Delivery | None:
        """Take what is drawn: a block, or None for a tick, for the end, and for what has to be opened anew."""
        delivery = None
        try:
            delivery = self._steps.take(self.stream)
        except StreamEnded:
            self.ended = True
        except BlockRaised as raised:  # `preprocess` did, on this block; the state is as it was
            self._steps.remember(raised, standing)
            self.has_to_reopen = True
        except TopicsRecreated as recreated:
            self.recreated, self.has_to_reopen = dict(recreated.beginnings), True
        if delivery is not None and delivery.facts.incarnation != self._ledger.incarnation:
            self._ledger.settle(delivery.facts)  # a late block: the ledger drops and counts it
            return None
        return delivery

    def wait(self, timeout_s: float, standing: Standing) -> None:
        """Wait for a block, for so long at most; returns at once where one is ready.

        Who has one waits in the next exchange for whoever has none, which costs nothing, and not for a clock. A tick
        ends no wait: it says nothing that the others should hear.
        """
        if self.ended or self.has_to_reopen:
            time.sleep(timeout_s)
            return
        ends_at = time.monotonic() + timeout_s
        while not (self.poll(standing) or self._held or self.ended or self.has_to_reopen):
            if (left := ends_at - time.monotonic()) <= 0:
                return
            self.stream.wait(left)

    def take(self) -> Sieved | None:
        """Return the block that is ready, for the call."""
        held, self._held = self._held, None
        return held


_WAIT_S = 0.05
"""The longest wait of a member that expects no block: so long another with a block may wait for it."""
_EXPECTING_S = 0.25
"""The longest wait of one that expects a block, within the group's patience, in which the others wait for it anyway."""
_REST_S = 0.02
"""Between two exchanges while the group is paused or held."""


class Waits:
    """The waits of one member between its calls, on the trainer's thread: for the others, or for records of its own.

    The words of the members carry how long each has waited for the others, so all know who is the slow one.
    """

    def __init__(self, meter: Meter, clock: Callable[[], float]) -> None:
        self._meter, self._clock = meter, clock
        self.for_others_s = 0.0
        """Seconds of this process."""

    def exchanged(self, seconds: float) -> None:
        """Count the duration of an exchange, which ends when the last member has come to it."""
        self.for_others_s += seconds
        self._meter.waited_for_workers(seconds)

    def pause(self, own: OwnStream, standing: Standing, patience_s: float) -> None:
        """Wait a moment for a block of this member's own; with one ready, the next exchange waits for the others.

        `patience_s` is how much longer the others wait for a block that is expected. An exchange takes about 1 ms of
        CPU, so none is made before it can change anything.
        """
        began = self._clock()
        own.wait(max(_WAIT_S, min(_EXPECTING_S, patience_s)) if own.expects else _WAIT_S, standing)
        self._meter.waited(self._clock() - began)

    def rest(self) -> None:
        """Sleep a moment that counts for nothing, as the group is paused or held."""
        time.sleep(_REST_S)
