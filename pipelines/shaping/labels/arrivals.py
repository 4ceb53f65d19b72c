"""The reader of arrivals: it follows the records' topics at their head, and gives a sample of what is appended.

With labels that come later a record is learnt long after it came; a prediction that is to be as good as the served one
has to be made when it comes. So the records' topics are read a second time, from their ends at the start on. Which
records are in the sample is a function of their partition and offset, so that they are known again when they are due.

Owns the thread `arrivals`, and the hand-off between a source of its own and that thread. What the trainer has not taken
is bounded in bytes: then the thread waits, the hand-off fills, and the source does not poll. An error is logged, and
the reading begins again at the ends: what is missed has no score on arrival, and nothing that is learnt depends on it.
"""

import logging
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import HandoffBroken, HandoffEmpty, HandoffEnded, MillraceError
from millrace.consumers.handoff import Handoff, SendEnd
from millrace.consumers.kafka.positions import Latest, Start
from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.shaping.labels.keys import hashes_of
from millrace.pipelines.stream.decode import Decoded, decode_chunk

log = logging.getLogger(__name__)
_HANDOFF_BYTES = 16 * 2**20
_MOST_BYTES = 16 * 2**20
"""The memory of decoded records that the trainer has not taken."""
_TICK_S = 0.2
_AGAIN_S = 5.0
_STOP_S = 5.0


def salt_of(partition: Partition) -> int:
    """Return a number by which equal offsets of several partitions differ."""
    return zlib.crc32(str(partition).encode()) << 31


def in_sample(salts: Int64s, offsets: Int64s, share: float) -> npt.NDArray[np.bool_]:
    """Return which records are in the sample, by the salt of their partition and their offset."""
    return (hashes_of(offsets ^ salts).view(np.uint64) >> np.uint64(32)) < share * 2**32


class ArrivalSource(Protocol):
    """The part of a source that the reader uses."""

    def resolve_start(self, start: Start) -> Mapping[Partition, int]:
        """Return the offset that `start` means for each partition."""
        ...

    def begin(self, incarnation: int, positions: Mapping[Partition, int], handoff: SendEnd) -> None:
        """End the fetching under way, and fetch from `positions` into `handoff`."""
        ...


class ArrivalReader:
    """Reads a sample of the records that arrive."""

    def __init__(
        self, source: ArrivalSource, decoder: Decoder, share: float, as_rows: Callable[[Decoded], Decoded]
    ) -> None:
        """`as_rows` gives records the columns of rows, with stand-ins for the labels that are still to come."""
        self.share = share
        self._source, self._decoder, self._as_rows = source, decoder, as_rows
        self._room = threading.Condition()
        self._arrived: list[Decoded] = []
        self._stopped = False
        self._positions: Mapping[Partition, int] = {}
        """Where the reading begins."""
        self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)

    def start(self) -> None:
        """Begin to read what is appended from now on."""
        self._positions = self._source.resolve_start(Latest())
        self._thread.start()

    def take(self) -> list[Decoded]:
        """Return the rows that have arrived since the last time; never waits."""
        with self._room:
            arrived, self._arrived = self._arrived, []
            self._room.notify_all()
        return arrived

    def stop(self) -> None:
        """End the reading, and wait for it for some seconds."""
        with self._room:
            self._stopped = True
            self._room.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    # The thread `arrivals`.

    def _run(self) -> None:
        incarnation = 0
        while not self._stopped:
            incarnation += 1
            try:
                if incarnation > 1:
                    self._positions = self._source.resolve_start(Latest())
                self._follow(incarnation)
            except (MillraceError, TimeoutError) as error:
                why = error.why if isinstance(error, HandoffBroken) else error
                log.warning("records are not scored when they arrive, until they can be read again: %s", why)
            except Exception:
                log.exception("reading records as they arrive failed; it begins again")
            with self._room:
                self._room.wait_for(lambda: self._stopped, _AGAIN_S)

    def _follow(self, incarnation: int) -> None:
        """Read until the end or an error."""
        handoff = Handoff(capacity_bytes=_HANDOFF_BYTES, partitions=max(1, len(self._positions)))
        self._source.begin(incarnation, self._positions, handoff)
        while True:
            with self._room:
                self._room.wait_for(lambda: self._stopped or sum(one.nbytes for one in self._arrived) < _MOST_BYTES)
            if self._stopped:
                return
            try:
                chunk = handoff.receive(_TICK_S)
            except HandoffEmpty:
                continue
            except HandoffEnded:
                return
            salts = np.full(len(chunk), salt_of(chunk.partition))
            chosen = chunk.at(np.flatnonzero(in_sample(salts, chunk.offsets, self.share)))
            rows = self._as_rows(decode_chunk(chosen, self._decoder)) if len(chosen) else None
            if rows is not None and len(rows):
                with self._room:
                    self._arrived.append(rows)
