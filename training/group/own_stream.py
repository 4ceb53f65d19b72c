"""The stream of one member: its blocks, looked for without ever waiting, searched where they are suspect.

Holds at most one block, until the group makes its next call. Runs on the trainer's thread.
"""

import time
from collections.abc import Mapping

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import Delivery
from millrace.training.group.roles import PolledStream
from millrace.training.group.sieve import Sieve, Sieved
from millrace.training.ledger.ledger import Ledger
from millrace.training.recovery.step_errors import BlockRaised, Standing, StepRecovery
from millrace.training.stream import StreamEnded, TopicsRecreated


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
        """The stream itself."""
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
