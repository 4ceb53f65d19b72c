"""All that is used of aiokafka's private parts, because it has no public way to do the same.

Nothing else reaches into it: `tests/consumers/kafka/test_aiokafka_internals.py` fails with the name that is gone when a
new aiokafka changes what this module relies on.

Owns nothing. Runs on the consumer's loop; `buffered_bytes` may be called from any thread.
"""

import asyncio
import contextlib
import logging
import random
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import google_crc32c
import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, client, conn, partitioner
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, CloseReason, OAuthAuthenticator
from aiokafka.consumer import fetcher
from aiokafka.errors import AuthenticationFailedError, CorruptRecordException, KafkaError
from aiokafka.protocol.admin import SaslAuthenticateRequest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords

from millrace.consumers.errors import text_of
from millrace.consumers.kafka.chunking import FetchedColumns
from millrace.consumers.records import Headers, Int64s

log = logging.getLogger(__name__)


_SPARE_S = 2.0
"""For the last letters of a producer that is closed."""

# Keras makes the seeds of the first weights of Python's shared generator, and the consumer's thread draws meanwhile.
for _module in (client, conn, fetcher, partitioner):
    _module.random = random.Random()  # noqa: S311 - which broker is asked, in which order

# A connection takes in a whole response, as large as it is by default. With aiokafka's own 64 KiB it stops its socket
# several times a response, and the loop, which lets Python's lock go each time, waits for it again: a JSON record of
# 280 bytes then costs 6 % more.
conn.READER_LIMIT = 1024 * 1024


class MetadataDoubt:
    """Records whether the client has asked for new metadata before it was due.

    The client does so when a broker does not know a partition, is not its leader, or breaks a connection. It reports
    none of these to us in another way, so its `force_metadata_update` is wrapped. It asks before it sends the next
    fetch; therefore whatever it fetches from a topic that was created again arrives after the doubt was raised.
    """

    def __init__(self, client: AIOKafkaClient) -> None:
        self.raised = False
        self._update_metadata = client.force_metadata_update
        client.force_metadata_update = self._raise_and_update

    def _raise_and_update(self) -> Any:
        self.raised = True
        return self._update_metadata()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Raise no doubt for the updates that our own calls cause in this block."""
        raised = self.raised
        yield
        self.raised = raised


def metadata_client(consumer: AIOKafkaConsumer) -> AIOKafkaClient:
    """Return the consumer's client, which knows the cluster's metadata and sends any request."""
    client: AIOKafkaClient = consumer._client
    return client


def lengthen_lookups(consumer: AIOKafkaConsumer, *, by_ms: int) -> None:
    """Make the consumer wait `by_ms` longer for offsets than each of its requests may take.

    aiokafka has one setting for both, and would give up the lookup before the request times out.
    """
    consumer._request_timeout_ms += by_ms


def take_commit_errors(consumer: AIOKafkaConsumer) -> None:
    """Take the error of every commit request of a started consumer, also where the commit no longer waits for it.

    aiokafka shields the request from a commit that is cancelled or times out. If the request fails afterwards, asyncio
    logs a traceback of a task whose exception was never retrieved. The caller of the commit knows of the failure
    already.
    """
    coordinator = consumer._coordinator
    send = coordinator._do_commit_offsets

    def send_and_take(assignment: Any, offsets: Any) -> "asyncio.Task[None]":
        request: asyncio.Task[None] = asyncio.ensure_future(send(assignment, offsets))
        request.add_done_callback(take_error)
        return request

    coordinator._do_commit_offsets = send_and_take


def take_error(future: "asyncio.Future[Any]") -> None:
    """Retrieve the error of a future that is done, which asyncio would log otherwise if nobody awaits it."""
    if not future.cancelled():
        future.exception()


async def stop_and_close(consumer: AIOKafkaConsumer) -> None:
    """Stop the consumer, and close its connections in any case.

    When a broker is away and the consumer waits before its next attempt, `stop` raises the CancelledError of the
    consumer's own task and does not close the connections.
    """
    # `gather` tells that CancelledError from a cancellation of the task that waits here, which must go through.
    error: BaseException | None = (await asyncio.gather(consumer.stop(), return_exceptions=True))[0]
    if error is None:
        return
    await metadata_client(consumer).close()
    if not isinstance(error, KafkaError | asyncio.CancelledError):
        raise error


def buffered_bytes(consumer: Any) -> int:
    """Return the buffered bytes, as they came over the wire. A result counts whole until its last record is taken."""
    # A copy, because the loop changes the mapping meanwhile.
    results = tuple(consumer._fetcher._records.values())
    return sum(map(_bytes_of, results))


def _bytes_of(result: Any) -> int:
    # A result may also be an error that waits to be raised, or one that was just used up: both hold nothing.
    records = getattr(getattr(result, "_partition_records", None), "_records", None)
    return 0 if records is None else int(records.size_in_bytes())


async def wait_until_closed(connection: AIOKafkaConnection, within_s: float) -> None:
    """Close a connection, and wait until it is closed."""
    closed = connection.close()
    if connection._protocol is not None:  # else there is none that ever closes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await closed


async def start_producer(producer: AIOKafkaProducer, within_s: float) -> None:
    """Start the producer, or close all of it: a start that is cancelled half-way would leave its connection open.

    A start that is cancelled may take `within_s` more, and closing takes its time after that.
    """
    starting = asyncio.ensure_future(producer.start())
    try:
        await asyncio.shield(starting)
    except BaseException:
        with contextlib.suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(within_s):  # the brokers may take any time to give it its id
                await starting
        await close_producer(producer)
        raise


async def close_producer(producer: AIOKafkaProducer) -> None:
    """Send what can be sent within a moment, drop the rest, and close the producer."""
    with contextlib.suppress(KafkaError, TimeoutError):
        async with asyncio.timeout(_SPARE_S):
            await producer.flush()  # which never ends while the broker is away
    with contextlib.suppress(KafkaError):
        await producer._sender.close()
    # `stop` flushes too, in a task that it would leave behind: with nothing to send, that task ends at once.
    producer._message_accumulator._batches.clear()
    producer._message_accumulator._pending_batches.clear()
    await producer.stop()


# A broker that wants logins to be repeated (`connections.max.reauth.ms`), or that goes by a token's end, says at the
# login how long it holds, and closes the connection at the first request after that. aiokafka cannot repeat a login on
# its connection; the request would fail, with an error in the log. So each connection of ours ends itself between two
# requests, well before the broker does, and the client opens a new one for the next request.

_ENDS_AT = (0.75, 0.85)
"""Of the time that a login holds; at random, so that not all connections are renewed at once."""


class EndingConnection(AIOKafkaConnection):  # type: ignore[misc]  # to mypy aiokafka's classes are Any
    """A connection that closes itself, when no answer is awaited, before the broker ends its login."""

    due = False
    """Whether it is time."""

    async def _do_sasl_handshake(self) -> None:
        try:
            await super()._do_sasl_handshake()
        except (KafkaError, OSError, TimeoutError):
            raise
        except Exception as error:
            # Kerberos' library has errors of its own, as does SCRAM for a broker that answers otherwise. They would end
            # aiokafka's tasks.
            self.close()
            raise AuthenticationFailedError(text_of(error)) from error

    def send(self, request: Any, expect_response: bool = True) -> Any:
        answer = super().send(request, expect_response)
        return self._note_end(answer) if type(request) is SaslAuthenticateRequest else answer

    async def _note_end(self, answer: Any) -> Any:
        answered = await answer
        holds_s = getattr(answered, "session_lifetime_ms", 0) / 1000
        if holds_s > 0:
            # A weak reference: the timer keeps no connection that was closed before.
            wait_s = holds_s * conn.random.uniform(*_ENDS_AT)
            asyncio.get_running_loop().call_later(wait_s, _begin_to_end, weakref.ref(self))
        return answered

    def _handle_frame(self, frame: bytes) -> None:
        super()._handle_frame(frame)
        _end_if_due(self)


def _begin_to_end(reference: "weakref.ref[EndingConnection]") -> None:
    if (connection := reference()) is not None:
        connection.due = True
        _end_if_due(connection)


def _end_if_due(connection: EndingConnection) -> None:
    if connection.due and not connection._requests and connection.connected():
        connection.close(CloseReason.IDLE_DROP)


class AskingOAuth(OAuthAuthenticator):  # type: ignore[misc]  # to mypy aiokafka's classes are Any
    """Asks why a token is refused: the broker says it only when it is asked (RFC 7628, 3.2.3), which aiokafka omits.

    aiokafka would take the connection for logged in, and then see it closed for no reason.
    """

    async def step(self, challenge: bytes | None) -> tuple[bytes, bool] | None:
        """Return what to send next, None after the last."""
        if challenge:
            return b"\x01", True
        step: tuple[bytes, bool] | None = await super().step(challenge)
        return step


conn.AIOKafkaConnection, conn.OAuthAuthenticator = EndingConnection, AskingOAuth


# The door at the fetcher: what it has fetched is taken as columns, without a `ConsumerRecord` for each record.
#
# aiokafka reads a batch by Cython, checks it, leaves out control records and aborted transactions, and then makes an
# object of each record, of eleven fields, which takes three quarters of the time of a poll. Here the fetcher's results
# answer `getall` with columns of the same records; everything else stays with aiokafka: requests, positions, errors,
# transactions. Where aiokafka has changed inside, `open_door` returns False, and polls return records as before.
# `tests/consumers/kafka/test_fetch_door.py` compares it with `getmany`.

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
    inside._records = _Results(inside._records)
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
        self._records = result._partition_records
        # aiokafka's own iterator refers to the records that refer to it, until it is exhausted, which it never is here:
        # each response would stay in memory until Python's collector runs, which is seldom.
        self._records._records_iterator = None
        self._checksums = BatchChecksums(self._records._records)
        self._rest: Iterator[Any] | None = None
        """What is left of the batch under way."""
        self._batch: Any = None
        self._broken = False

    def take(self, max_records: int | None = None) -> "FetchedColumns | tuple[()]":
        """Do as `FetchResult.getall` does: return so many records at most, and move the position behind them."""
        result = self._result
        if not result.check_assignment(result._topic_partition) or not result.has_more():
            return ()
        gathered, room = _Gathered(), _ALL if max_records is None else max_records
        while room > len(gathered.values):
            rows = self._next_rows(room - len(gathered.values))
            if rows is None:
                result._update_position()
                result._partition_records = None
                return gathered.columns()
            gathered.add(rows)
        result._update_position()
        return gathered.columns()

    def _next_rows(self, most: int) -> list[Any] | None:
        """Return the next records of a batch, which may be none; None where no batch is left."""
        if self._rest is None:
            batch = self._next_batch()
            if batch is None:
                return None
            self._batch, self._rest = batch, chain(batch)  # a batch refuses a second `iter`
        first, rows = self._records.next_fetch_offset, self._rows(self._rest, most)
        if rows and rows[0].offset < first:  # a batch is sent whole, also where the first records were read before
            rows = [row for row in rows if row.offset >= first]
        elif len(rows) < most:
            # The batch tells where it ends even where compaction has removed its last records.
            self._records.next_fetch_offset, self._rest = self._batch.next_offset, None
            return rows
        if rows:
            self._records.next_fetch_offset = rows[-1].offset + 1
        return rows

    def _rows(self, rest: Iterator[Any], most: int) -> list[Any]:
        """Return the next records of the batch, which may be records from its beginning, read before.

        aiokafka ends a batch at a header whose name is not UTF-8, which Kafka permits, so the batch is read again then.
        """
        try:
            return list(islice(rest, most))
        except (UnicodeDecodeError, CorruptRecordException) as error:
            # aiokafka's C extension raises the one, its plain Python the other because of the one.
            if not isinstance(error.__cause__ or error, UnicodeDecodeError):
                raise
        self._rest = lenient_records(bytes_of_batch(self._records._records.raw, self._batch.base_offset))
        return list(islice(self._rest, most))

    def _next_batch(self) -> Any:
        """Return the next batch whose records are to be read; None at the end, and after a damaged one.

        As aiokafka's own iterator does, and in its words.
        """
        held = self._records
        while not self._broken and held._records.has_next():
            batch = held._records.next_batch()
            if held._check_crcs and not self._checksums.passes(batch):
                self._broken = True
                raise CorruptRecordException(f"Invalid CRC - {held._tp}")
            if self._is_aborted(batch) or batch.is_control_batch:
                held.next_fetch_offset = batch.next_offset
                continue
            return batch
        return None

    def _is_aborted(self, batch: Any) -> bool:
        """Return whether a batch is of a transaction that was aborted; keep what its markers tell."""
        held = self._records
        if held._isolation_level != fetcher.READ_COMMITTED or batch.producer_id is None:
            return False
        held._consume_aborted_up_to(batch.base_offset)
        aborted = held._aborted_producers
        if batch.is_control_batch and held._contains_abort_marker(batch):
            aborted.discard(batch.producer_id)
        return bool(batch.is_transactional and batch.producer_id in aborted)


class _LenientText(bytearray):
    """Bytes whose slices decode to a text in any case, with U+FFFD for each part that is not UTF-8."""

    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        return _LenientText(part) if isinstance(at, slice) else part

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:  # noqa: ARG002 - whoever asks is strict
        return super().decode(encoding, "replace")


def lenient_records(raw: bytes) -> Iterator[Any]:
    """Return the records of a batch, with U+FFFD in the names of headers that are not UTF-8.

    They come by aiokafka's plain Python, which takes eight times as long as its C extension.
    """
    batch = _DefaultRecordBatchPy(raw)
    batch._maybe_uncompress()
    batch._buffer = _LenientText(batch._buffer)
    return iter(batch)


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


# The checksums of a response's batches, by the processor's own instruction, which aiokafka does not use.
#
# aiokafka hides a batch's bytes, so its fetcher is given records that keep those of the response. Where they are not
# kept, or a checksum seems wrong, aiokafka's own check has the word. So a batch is never called damaged on the word of
# this class, and never right unless the checksum in its header is that of its bytes.
_LENGTH_AT, _BEHIND_LENGTH, _MAGIC_AT, _CRC_AT, _COVERED_AT = 8, 12, 16, 17, 21
_NATIVE = google_crc32c.implementation == "c"
"""In plain Python, where there is no wheel for the platform, it takes longer than aiokafka's own."""
_SINCE_MAGIC = 2
"""Older formats have another checksum."""


def _end_of_batch(raw: bytes, at: int) -> int:
    """Return where the batch ends that begins here."""
    return at + _BEHIND_LENGTH + int.from_bytes(raw[at + _LENGTH_AT : at + _BEHIND_LENGTH], "big")


def bytes_of_batch(raw: bytes, base_offset: int) -> bytes:
    """Return the bytes of a response's batch, which begins at an offset."""
    at = 0
    while int.from_bytes(raw[at : at + _LENGTH_AT], "big") != base_offset:
        at = _end_of_batch(raw, at)
        assert at < len(raw), "the batch is of this response"
    return raw[at : _end_of_batch(raw, at)]


class KeptRecords(MemoryRecords):  # type: ignore[misc]  # to mypy aiokafka's classes are Any
    """The records of a response, which also keep its bytes."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self.raw = raw


def keep_bytes() -> None:
    """Have aiokafka's fetchers of this process keep the bytes of what they have fetched from now on."""
    fetcher.MemoryRecords = KeptRecords


class BatchChecksums:
    """Checks the batches of one `MemoryRecords`, in their order, from the first on."""

    def __init__(self, records: Any) -> None:
        self._raw: bytes | None = records.raw if _NATIVE and type(records) is KeptRecords else None
        self._at = 0

    def passes(self, batch: Any) -> bool:
        """Return whether the next batch, which is this one, is what was written. Asked once for each."""
        raw, at = self._raw, self._at
        if raw is not None:
            self._at = end = _end_of_batch(raw, at)
            written = int.from_bytes(raw[at + _CRC_AT : at + _COVERED_AT], "big")
            if raw[at + _MAGIC_AT] >= _SINCE_MAGIC and google_crc32c.value(raw[at + _COVERED_AT : end]) == written:
                return True
        return bool(batch.validate_crc())
