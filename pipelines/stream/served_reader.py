"""The reader of served predictions: it reads back what servers have written to the topic of `serve.log`.

Owns the thread `served`, its source, and what the trainer has not taken, which is bounded: then the thread waits, the
hand-off fills, and the source does not poll. What cannot be read is no prediction of this model, and is left out. While
Kafka does not answer, or the topic is missing, it tries again every few seconds: what is learnt does not depend on it.
"""

import json
import logging
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import HandoffBroken, HandoffEmpty, HandoffEnded, MillraceError
from millrace.consumers.handoff import Handoff, SendEnd
from millrace.consumers.kafka.positions import Latest, Start
from millrace.consumers.records import Chunk, Partition

log = logging.getLogger(__name__)
_HANDOFF_BYTES = 8 * 2**20
_MOST = 20_000
_TICK_S, _AGAIN_S, _CONNECT_S, _STOP_S = 0.2, 5.0, 10.0, 5.0


class ServedPrediction(NamedTuple):
    """What a server has answered for a row."""

    identity: int
    version: int
    outputs: npt.NDArray[np.float32]
    """The numbers of its only output that holds numbers."""
    at: float
    """When, in seconds since 1970."""


class ServedPiece(NamedTuple):
    """Predictions of one partition of the topic."""

    partition: Partition
    end: int
    """Up to where it is read with these."""
    predictions: list[ServedPrediction]


class ServedSource(Protocol):
    """The part of a source that the reader uses."""

    def start(self, timeout: float) -> None:
        """Connect."""
        ...

    def stop(self, timeout: float) -> None:
        """End the connection."""
        ...

    def resolve_start(self, start: Start) -> Mapping[Partition, int]:
        """Return the offset that `start` means for each partition."""
        ...

    def begin(self, incarnation: int, positions: Mapping[Partition, int], handoff: SendEnd) -> None:
        """End the fetching under way, and fetch from `positions` into `handoff`."""
        ...


class ServedReader:
    """Reads the predictions of one model."""

    def __init__(self, connect: Callable[[], ServedSource], name: str) -> None:
        self._connect, self._name = connect, name
        self._changed = threading.Condition()
        self._pieces: list[ServedPiece] = []
        self._positions: dict[Partition, int] = {}
        self.begun_at: Mapping[Partition, int] = {}
        """Where the reading began."""
        self._begun = 0
        """Counts how often reading was sent to other positions."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="served", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def read_from(self, positions: Mapping[Partition, int]) -> None:
        """Read on from these positions; partitions that are not named begin with what is written from now on."""
        with self._changed:
            self._positions, self.begun_at, self._pieces = dict(positions), {}, []
            self._begun += 1
            self._changed.notify_all()

    def take(self) -> list[ServedPiece]:
        """Return what was read since the last time; never waits."""
        with self._changed:
            pieces, self._pieces = self._pieces, []
            self._changed.notify_all()
        return pieces

    def stop(self) -> None:
        """End the reading, and wait for it for some seconds."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    # The thread `served`.

    def _run(self) -> None:
        while not self._stopped:
            source: ServedSource | None = None
            try:
                source = self._connect()
                source.start(_CONNECT_S)
                incarnation = 0
                while not self._stopped:
                    incarnation += 1
                    self._follow(source, incarnation)
            except (MillraceError, TimeoutError) as error:
                why = error.why if isinstance(error, HandoffBroken) else error
                log.warning("served predictions are not scored until they can be read: %s", why)
            except Exception:
                log.exception("reading served predictions failed; it begins again")
            finally:
                if source is not None:
                    source.stop(_STOP_S)
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, _AGAIN_S)

    def _follow(self, source: ServedSource, incarnation: int) -> None:
        """Read until the end, an error, or other positions."""
        with self._changed:
            begun, known = self._begun, dict(self._positions)
        positions = {**source.resolve_start(Latest()), **known}
        with self._changed:
            if begun == self._begun:
                self._positions, self.begun_at = dict(positions), {**positions, **self.begun_at}
        handoff = Handoff(capacity_bytes=_HANDOFF_BYTES, partitions=max(1, len(positions)))
        source.begin(incarnation, positions, handoff)
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped or begun != self._begun or self._waiting() < _MOST)
                    if self._stopped or begun != self._begun:
                        return
                try:
                    chunk = handoff.receive(_TICK_S)
                except HandoffEmpty:
                    continue
                except HandoffEnded:
                    return
                predictions = [one for value in chunk.values if (one := self._read(value)) is not None]
                self._add(chunk, predictions, begun)
        finally:
            handoff.close()

    def _waiting(self) -> int:
        return sum(len(piece.predictions) for piece in self._pieces)

    def _add(self, chunk: Chunk, predictions: list[ServedPrediction], begun: int) -> None:
        with self._changed:
            if begun == self._begun:
                self._pieces.append(ServedPiece(chunk.partition, chunk.end, predictions))
                self._positions[chunk.partition] = chunk.end

    def _read(self, value: bytes | None) -> ServedPrediction | None:
        try:
            said = json.loads(value or b"")
            if said["name"] != self._name:
                return None
            (outputs,) = (each for one in said["prediction"].values() if (each := _numbers(one)) is not None)
            found = ServedPrediction(int(said["row"], 16), int(said["version"]), outputs, said["time"] / 1000)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None
        # A checkpoint holds them as integers of 64 bits.
        fits = 0 <= found.identity < 2**64 and 0 <= found.version < 2**63 and math.isfinite(found.at)
        return found if fits else None


def _numbers(output: Any) -> npt.NDArray[np.float32] | None:
    """Return an output as numbers; None for one that holds none, as the text of a class."""
    found = np.asarray(output).ravel()
    if found.dtype.kind not in "fiub":
        return None
    with np.errstate(over="ignore"):
        numbers = found.astype(np.float32)
    return numbers if np.isfinite(numbers).all() else None
