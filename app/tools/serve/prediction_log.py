"""The log of predictions: a share of the rows that were answered, each a record of the topic `serve.log.topic`.

Which rows are logged is a function of their features, so that a reader of the topic knows which rows to look for. A
request is put into a queue behind its answer, bounded in requests, rows and bytes, and never waits; what there is no
room for is dropped, and counted by its reason. Each record is acknowledged by all replicas, and tried again until it
is: so what was not dropped is in the topic at least once.

Owns the thread `served-log`, the queue, and a `TopicWriter`. `offer` is called on the HTTP side's loop.
"""

import json
import logging
import sys
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.app.settings import Settings
from millrace.app.settings.connection import kafka_options
from millrace.app.settings.sections.records import to_schema
from millrace.app.tools.serve.json_tensors import Array, written
from millrace.app.tools.serve.predict_requests import PredictRequest
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.topic_writer import TopicWriter
from millrace.pipelines.stream.row_identity import RowIdentity, in_share

log = logging.getLogger(__name__)
SETTING = "serve.log"
DROPPED = ("full", "too_large", "unknown", "ending")
"""Why a request, or a row of it, is not logged: the queue is full; its record is too large for Kafka; its features are
not those of the config's records, or its answers are not one a row; the server has ended before Kafka has acknowledged
it."""
_MOST_REQUESTS, _MOST_ROWS, _MOST_BYTES = 2_000, 20_000, 64 << 20
_AT_ONCE = 500
_LARGEST = 512 * 1024
_WRITE_S, _AGAIN_S, _STOP_S = 10.0, 1.0, 3.0
_Record = tuple[bytes | None, bytes]
"""The key and the value of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """A request that was answered."""

    version: int
    request: PredictRequest
    answers: Mapping[str, Array]
    positions: Mapping[str, int]
    """Up to where the topics are known to what answered: to its memory, or else to the version."""
    age_s: float | None
    """How old the memory was; None without one."""
    at: float
    """Seconds since 1970."""

    @property
    def rows(self) -> int:
        """How many rows it has; 0 if its columns do not agree."""
        return self.request.rows or 0

    @property
    def features(self) -> Mapping[str, Array]:
        """Its features as the records have them."""
        return self.request.tensors if self.request.features is None else self.request.features

    def size(self) -> int:
        """Return how many bytes its arrays hold, those of texts and images included."""
        arrays = [*self.request.tensors.values(), *(self.request.features or {}).values(), *self.answers.values()]
        return sum(_bytes_in(array) for array in arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBoard:
    """What is known of the log."""

    topic: str
    share: float
    written: int
    """Rows that Kafka has acknowledged."""
    dropped: Mapping[str, int]
    """Rows that are not logged, by reason; of a request that is dropped whole, all its rows."""
    waiting: int
    """Requests in the queue, and rows that are being written."""
    problem: str | None
    """Why nothing is written just now."""


class PredictionLog:
    """Writes what was answered."""

    def __init__(self, settings: Settings) -> None:
        topic = settings.serve.log.topic
        assert topic is not None, "there is a topic where something is logged"
        self._topic, self._share, self._by = topic, settings.serve.log.share, settings.windows.by or ""
        self._name = settings.name
        self._identity = RowIdentity(to_schema(settings.records))
        self._writer = TopicWriter(kafka_options(settings.kafka), topic, setting=SETTING, thread="served-log-kafka")
        self._changed = threading.Condition()
        self._queue: deque[tuple[AnsweredRequest, int]] = deque()
        """Requests and their bytes."""
        self._rows = self._bytes = 0
        """Of the queue."""
        self._writing = 0
        self._written, self._dropped = 0, Counter(dict.fromkeys(DROPPED, 0))
        self._problem: str | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="served-log", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._writer.start()
        self._thread.start()

    def offer(self, answered: AnsweredRequest) -> None:
        """Have what was answered logged, if there is room; never waits for Kafka."""
        rows, size = answered.rows, answered.size()
        with self._changed:
            if len(self._queue) >= _MOST_REQUESTS or self._rows + rows > _MOST_ROWS or self._bytes + size > _MOST_BYTES:
                self._dropped["full"] += rows
                return
            self._queue.append((answered, size))
            self._rows += rows
            self._bytes += size
            self._changed.notify()

    def board(self) -> LogBoard:
        """Return what is known now; any thread may ask."""
        with self._changed:
            return LogBoard(
                topic=self._topic,
                share=self._share,
                written=self._written,
                dropped=dict(self._dropped),
                waiting=len(self._queue) + self._writing,
                problem=self._problem,
            )

    def end(self) -> None:
        """Write what waits, within some seconds, and end the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
            self._writer.stop(_STOP_S)
            self._thread.join(_STOP_S)
        with self._changed:
            self._dropped["ending"] += self._rows + self._writing

    # The thread `served-log`.

    def _run(self) -> None:
        while (records := self._next()) is not None:
            while records:
                try:
                    self._writer.write_all(records, _WRITE_S)
                    self._report(None, len(records))
                    break
                except MillraceError as error:
                    self._report(str(error), 0)
                except Exception as error:  # a defect, or the end: requests are answered all the same
                    if not self._ended:
                        log.exception("%s: an unforeseen error", SETTING)
                    self._report(f"{type(error).__name__}: {error}", 0)
                with self._changed:
                    if self._changed.wait_for(lambda: self._ended, _AGAIN_S):
                        return

    def _next(self) -> list[_Record] | None:
        """Return the records of the requests that wait; None once there are none, and no more come."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ended)
            if not self._queue:
                return None
            some = [self._queue.popleft() for _ in range(min(_AT_ONCE, len(self._queue)))]
            self._rows -= sum(one.rows for one, _ in some)
            self._bytes -= sum(size for _, size in some)
        records = [record for one, _ in some for record in self._records(one)]
        with self._changed:
            self._writing = len(records)
        return records

    def _records(self, answered: AnsweredRequest) -> list[_Record]:
        """Return the records of a request; none if it cannot be logged, which is counted. Raises nothing."""
        try:
            records, too_large = self._logged_rows(answered)
        except Exception as error:  # one request must not end the thread, which logs those of all others
            if not isinstance(error, (KeyError, IndexError, TypeError, ValueError)):  # those say: other features
                log.exception("%s: an unforeseen error", SETTING)
            self._drop("unknown", answered.rows)
            return []
        self._drop("too_large", too_large)
        return records

    def _logged_rows(self, answered: AnsweredRequest) -> tuple[list[_Record], int]:
        """Return the records of the rows that are in the share, and how many more are too large for Kafka."""
        features, records, too_large = answered.features, list[_Record](), 0
        identities = self._identity.of(features)
        for name, array in answered.answers.items():
            if array.ndim == 0 or len(array) != len(identities):
                raise ValueError(f"the output {name!r} is not one value a row")
        for row in np.flatnonzero(in_share(identities, self._share)).tolist():
            key = _plain(features[self._by][row]) if self._by in features else None
            prediction = {name: written(array[row : row + 1], name)[0] for name, array in answered.answers.items()}
            value = {
                "name": self._name,
                "version": answered.version,
                "key": key,
                "row": f"{identities[row]:016x}",
                "positions": answered.positions,
                "memory_age": answered.age_s,
                "prediction": prediction,
                "time": round(answered.at * 1000),
            }
            raw = json.dumps(value).encode()
            if len(raw) > _LARGEST:
                too_large += 1
            else:
                records.append((None if key is None else str(key).encode(), raw))
        return records, too_large

    def _drop(self, reason: str, rows: int) -> None:
        with self._changed:
            self._dropped[reason] += rows

    def _report(self, problem: str | None, rows: int) -> None:
        with self._changed:
            before, self._problem = self._problem, problem
            self._written += rows
            self._writing -= rows
        if problem is not None and before is None:
            log.warning("predictions are not logged, and tried again every %g s: %s", _AGAIN_S, problem)
        elif problem is None and before is not None:
            log.info("predictions are logged again")


def _bytes_in(array: Array) -> int:
    """Return how many bytes an array holds; to texts and images it holds pointers, so their bytes are added."""
    return array.nbytes + (sum(map(sys.getsizeof, array.flat)) if array.dtype == object else 0)


def _plain(value: Any) -> Any:
    """Return a key as JSON has it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if hasattr(value, "item") else value
