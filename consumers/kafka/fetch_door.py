"""A door at aiokafka's fetcher: what it has fetched is taken as columns, without a `ConsumerRecord` for each record.

aiokafka reads a batch by Cython, checks it, leaves out control records and aborted transactions, and then makes an
object of each record, of eleven fields, which takes three quarters of the time of a poll. Here the fetcher's results
answer `getall` with columns of the same records; everything else stays with aiokafka: requests, positions, errors,
transactions. Where aiokafka has changed inside, `open_door` returns False, and polls return records as before.

Owns nothing. Runs on the consumer's loop. `tests/consumers/kafka/test_fetch_door.py` compares it with `getmany`.
"""

import logging
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException

from millrace.consumers.kafka.batch_checksums import BatchChecksums, keep_bytes
from millrace.consumers.kafka.fetched_columns import FetchedColumns
from millrace.consumers.records import Headers, Int64s

log = logging.getLogger(__name__)

_NO_TIME = -1
"""The timestamp of a record that has none, as Kafka writes it."""
_ALL = 1 << 62
_VALUE, _KEY, _TIMESTAMP, _HEADERS = map(attrgetter, ("value", "key", "timestamp", "headers"))
_USED = {
    "MemoryRecords": ("has_next", "next_batch"),
    "FetchResult": ("check_assignment", "has_more", "_update_position"),
    "PartitionRecords": ("_consume_aborted_up_to", "_contains_abort_marker", "_unpack_records"),
}
"""What is used of each class. What the tests compare as well is not listed."""


def open_door(consumer: AIOKafkaConsumer) -> bool:
    """Have a consumer that has just started return columns; return whether that could be done."""
    inside: Any = getattr(consumer, "_fetcher", None)
    known = all(hasattr(getattr(fetcher, name, None), method) for name in _USED for method in _USED[name])
    if not known or type(getattr(inside, "_records", None)) is not OrderedDict:
        log.warning("this aiokafka is another one inside than the one known, so reading takes more time than it need")
        return False
    keep_bytes()
    inside._records = _Results(inside._records)  # noqa: SLF001 - no public API
    return True


class _Results(OrderedDict[Any, Any]):
    """What the fetcher keeps until a poll takes it: each result that comes in gives columns."""

    def __setitem__(self, partition: Any, result: Any) -> None:
        if type(result) is fetcher.FetchResult:
            result.getall = ResultReader(result).take  # `getall` is looked up in the instance first
        super().__setitem__(partition, result)


class ResultReader:
    """Takes the records of one result, some at a time."""

    def __init__(self, result: Any) -> None:
        # The result refers to this, and megabytes would wait for Python's collector if this referred to it.
        self._result: Any = weakref.proxy(result)
        self._records = result._partition_records  # noqa: SLF001 - no public API
        # aiokafka's own iterator refers to the records that refer to it, until it is exhausted, which it never is here:
        # each response would stay in memory until Python's collector runs, which is seldom.
        self._records._records_iterator = None  # noqa: SLF001 - no public API
        self._checksums = BatchChecksums(self._records._records)  # noqa: SLF001 - no public API
        self._rest: Iterator[Any] | None = None
        """What is left of the batch under way."""
        self._batch: Any = None
        self._broken = False

    def take(self, max_records: int | None = None) -> "FetchedColumns | tuple[()]":
        """Do as `FetchResult.getall` does: return so many records at most, and move the position behind them."""
        result = self._result
        if not result.check_assignment(result._topic_partition) or not result.has_more():  # noqa: SLF001
            return ()
        gathered, room = _Gathered(), _ALL if max_records is None else max_records
        while room > len(gathered.values):
            rows = self._next_rows(room - len(gathered.values))
            if rows is None:
                result._update_position()  # noqa: SLF001 - no public API
                result._partition_records = None  # noqa: SLF001 - no public API
                return gathered.columns()
            gathered.add(rows)
        result._update_position()  # noqa: SLF001 - no public API
        return gathered.columns()

    def _next_rows(self, most: int) -> list[Any] | None:
        """Return the next records of a batch, which may be none; None where no batch is left."""
        if self._rest is None:
            batch = self._next_batch()
            if batch is None:
                return None
            self._batch, self._rest = batch, chain(batch)  # a batch refuses a second `iter`
        first, rows = self._records.next_fetch_offset, list(islice(self._rest, most))
        if rows and rows[0].offset < first:  # a batch is sent whole, also where the first records were read before
            rows = [row for row in rows if row.offset >= first]
        elif len(rows) < most:
            # The batch tells where it ends even where compaction has removed its last records.
            self._records.next_fetch_offset, self._rest = self._batch.next_offset, None
            return rows
        if rows:
            self._records.next_fetch_offset = rows[-1].offset + 1
        return rows

    def _next_batch(self) -> Any:
        """Return the next batch whose records are to be read; None at the end, and after a damaged one.

        As aiokafka's own iterator does, and in its words.
        """
        held = self._records
        while not self._broken and held._records.has_next():  # noqa: SLF001 - no public API
            batch = held._records.next_batch()  # noqa: SLF001 - no public API
            if held._check_crcs and not self._checksums.passes(batch):  # noqa: SLF001 - no public API
                self._broken = True
                raise CorruptRecordException(f"Invalid CRC - {held._tp}")  # noqa: SLF001 - no public API
            if self._is_aborted(batch) or batch.is_control_batch:
                held.next_fetch_offset = batch.next_offset
                continue
            return batch
        return None

    def _is_aborted(self, batch: Any) -> bool:
        """Return whether a batch is of a transaction that was aborted; keep what its markers tell."""
        held = self._records
        if held._isolation_level != fetcher.READ_COMMITTED or batch.producer_id is None:  # noqa: SLF001
            return False
        held._consume_aborted_up_to(batch.base_offset)  # noqa: SLF001 - no public API
        aborted = held._aborted_producers  # noqa: SLF001 - no public API
        if batch.is_control_batch and held._contains_abort_marker(batch):  # noqa: SLF001 - no public API
            aborted.discard(batch.producer_id)
        return bool(batch.is_transactional and batch.producer_id in aborted)


class _Gathered:
    """Columns that are being put together. A batch at a time, while its records are in the processor's cache."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._headers: list[Headers] = []
        self._offsets: list[Int64s] = []
        self._timestamps: list[int] = []

    def add(self, rows: list[Any]) -> None:
        """Add records."""
        if not rows:
            return
        self.values += map(_VALUE, rows)
        self._keys += map(_KEY, rows)
        self._timestamps += map(_TIMESTAMP, rows)
        headers = [*map(_HEADERS, rows)]
        # An empty tuple costs no memory, where each record's own empty list does.
        self._headers += map(tuple, headers) if any(headers) else [()] * len(rows)
        first, last = rows[0].offset, rows[-1].offset
        # Offsets increase, so if the first and the last are as far apart as there are records, there is no gap.
        dense = last - first + 1 == len(rows)
        self._offsets.append(
            np.arange(first, last + 1, dtype=np.int64) if dense else np.array([row.offset for row in rows], np.int64)
        )

    def columns(self) -> FetchedColumns:
        """Return all that was added."""
        try:
            timestamps = np.array(self._timestamps, np.int64)
        except TypeError:  # Kafka's first format had no time
            timestamps = np.array([_NO_TIME if time is None else time for time in self._timestamps], np.int64)
        offsets = np.concatenate(self._offsets) if self._offsets else np.empty(0, np.int64)
        return FetchedColumns(offsets, timestamps, self._keys, self.values, self._headers)
