"""Sends dead letters to a topic: each record that was set aside, unchanged, with its origin and reason in headers.

Owns the thread `dead-letters` with its event loop, a producer that waits for all replicas, and the backlog. Letters
are sent in windows of the oldest, which leave the backlog when the whole window is acknowledged; those of a window that
go to one partition are handed over as one batch, which costs a fraction of so many single ones. Records that the
trainer refused, and no longer has, are read again first (`consumers.dead_letters.origins`). A window that failed
is sent again by a new producer, for as long as it takes, so a letter may arrive twice; topic, partition and offset
identify it. When the backlog is full, `put` waits. It ends by `stop`, which sends what it can within its deadline and
returns how many letters were abandoned.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from millrace.consumers.dead_letters import origins
from millrace.consumers.dead_letters.backlog import Backlog, BacklogOptions
from millrace.consumers.dead_letters.letter import (
    HEADER_PREFIX,
    Absence,
    DeadLetter,
    DeadLetterStatistics,
    never_stopped,
)
from millrace.consumers.dead_letters.origins import OriginReader
from millrace.consumers.errors import TopicMissingError, UnreachableError, text_of
from millrace.consumers.kafka.aiokafka_internals import close_producer, start_producer, take_error
from millrace.consumers.kafka.logins import refuse_wrong_login, wrong_login
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.rights import refused_topic, topic_is_missing
from millrace.consumers.log_limit import limit_loggers, limit_repeats
from millrace.consumers.loop_thread import LoopThread

log = logging.getLogger(__name__)


_SHORTENED_BYTES = 16 * 1024
"""How much is sent of the value, and of the key, of a letter that is too large."""


LetterContents: TypeAlias = tuple[bytes | None, bytes, list[tuple[str, bytes]]]
"""A letter as it is written to its topic: its key, value and headers."""


def append_to(batch: Any, contents: LetterContents) -> bool:
    """Append a letter to a batch of aiokafka's producer; return whether the batch had room.

    The timestamp is now, not the record's: with an old one, retention could remove the letter at once.
    """
    key, value, headers = contents
    return batch.append(timestamp=None, key=key, value=value, headers=headers) is not None


def contents_of(letter: DeadLetter) -> LetterContents:
    """Return the record that was set aside, with its headers and ours."""
    headers, value = letter.all_headers(), letter.value
    if value is None:
        # In a compacted topic a letter without a value would delete those of its key. So an empty value is sent, and
        # the header tells it from a value that was empty.
        headers.append(("millrace.value", b"null"))
    return letter.key, value or b"", headers


def shortened_contents_of(letter: DeadLetter) -> LetterContents:
    """Return the beginning of the record's value and key, without its headers.

    Ours say where the whole record is.
    """
    value, key = letter.value or b"", letter.key
    ours = [(name, text) for name, text in letter.all_headers() if name.startswith(HEADER_PREFIX)]
    ours.append(("millrace.value_bytes", str(len(value)).encode()))
    return key and key[:_SHORTENED_BYTES], value[:_SHORTENED_BYTES], ours


_WINDOW = 2000
_WINDOW_BYTES = 1024 * 1024
_BATCH_BYTES = 256 * 1024
_GATHER_S = 0.1
"""How long a window waits for more letters, as each window costs something beside its letters."""
_RETRY_S = 0.5
_SPARE_S = 2.0
_IDLE_S = 30.0
"""After this long without a letter, the connection that reads records again is closed."""
_PARTITIONER = DefaultPartitioner()
"""Kafka's own choice, so that letters of one key stand in one partition, whoever writes them."""
_ANYWHERE = random.Random()  # noqa: S311 - no secret
"""A generator of its own: Keras draws the seeds of the first weights from Python's shared one."""
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterOptions:
    """Where dead letters are sent, and how many may wait."""

    topic: str
    """The topic of the dead letters, which must exist."""
    backlog: BacklogOptions = field(default_factory=BacklogOptions)
    """How much may wait for an acknowledgement."""
    max_request_bytes: int = 1024 * 1024
    """The largest letter that is sent whole."""


class KafkaDeadLetters:
    """The sink that writes dead letters to a topic."""

    def __init__(self, kafka: KafkaOptions, options: DeadLetterOptions) -> None:
        self._kafka = kafka
        self._options = options
        self._backlog = Backlog(options.backlog)
        self._loop = LoopThread("dead-letters")
        self._sender: _LetterSender | None = None

    def start(self, deadline_s: float) -> None:
        """Connect. Raises UnreachableError, TopicMissingError, and SourceError or ConfigError for what is refused."""
        limit_repeats("aiokafka")
        limit_repeats(origins.__name__)
        limit_loggers("aiokafka", self._kafka.log_lines_per_minute)
        self._loop.start()
        try:
            self._sender = self._loop.run(_connect(self._kafka, self._options, self._backlog, deadline_s), None)
        except BaseException:
            self._loop.stop(_SPARE_S)
            raise

    def put(self, letters: Sequence[DeadLetter], stopped: Callable[[], bool] = never_stopped) -> int:
        """Accept the letters in their order, and when full wait for room until `stopped` is true.

        Return how many are accepted. Raises DeadLettersStopped after `stop`.
        """
        accepted = 0
        while accepted < len(letters) and (some := self._backlog.put(letters[accepted:], stopped)):
            self._wake_sender()  # it makes room for the next ones
            accepted += some
        return accepted

    def put_at_once(self, letter: DeadLetter) -> None:
        """Accept the letter even beyond the capacity. Raises DeadLettersStopped after `stop`."""
        self._backlog.put_at_once(letter)
        self._wake_sender()

    @property
    def full(self) -> bool:
        """Whether the letters that wait have reached the capacity."""
        return self._backlog.full

    @property
    def stalled_s(self) -> float:
        """For how long letters have waited without one being acknowledged, seconds; 0 where none waits."""
        return self._backlog.stalled_s

    def sequence(self) -> int:
        """Return the number of the letter that was accepted last; the first is 1."""
        return self._backlog.sequence()

    def wait_acknowledged(self, sequence: int, timeout_s: float) -> bool:
        """Wait until every letter up to this number is acknowledged. Return whether that is so."""
        return self._backlog.wait_acknowledged(sequence, timeout_s)

    def statistics(self) -> DeadLetterStatistics:
        """Return what the sink holds and has done."""
        return self._backlog.statistics()

    def stop(self, deadline_s: float) -> int:
        """Send the letters that wait, within the deadline. Return how many were abandoned."""
        sender, self._sender = self._sender, None
        if sender is None:
            return self._backlog.close()
        self._backlog.wait_empty(deadline_s / 2)
        abandoned = self._backlog.close()
        with contextlib.suppress(TimeoutError):
            self._loop.run(sender.close(), deadline_s / 4)
        self._loop.stop(deadline_s / 4)
        if abandoned:
            log.warning("dead letters that were not acknowledged and are abandoned: %d", abandoned)
        return abandoned

    def _wake_sender(self) -> None:
        """Have the sender look at the backlog, unless it is about to: to wake a loop takes longer than a letter does.

        It looks after it has cleared `work`, so what is put while that is set is seen.
        """
        if self._sender is not None and not self._sender.work.is_set():
            self._loop.call(self._sender.work.set)


@dataclass(slots=True)
class _Window:
    """The oldest letters of the backlog, while they are being sent."""

    left: dict[int, DeadLetter]
    """The letters that are not acknowledged yet, by their index in the window."""
    too_large: set[int] = field(default_factory=set)
    """The indices of those that must be shortened."""
    alone: bool = False
    """Whether each is sent by itself: a batch was too large for the topic, and one letter may not be."""


class _Post(NamedTuple):
    """A batch that was handed over."""

    indices: Sequence[int]
    """Of its letters, in the window."""
    sent: "asyncio.Future[object]"


class _LetterSender:
    """Takes windows of the backlog and sends them until they are acknowledged. Everything here runs on the loop."""

    def __init__(self, kafka: KafkaOptions, options: DeadLetterOptions, backlog: Backlog) -> None:
        self._kafka = kafka
        self._options = options
        self._backlog = backlog
        self._producer: AIOKafkaProducer | None = None
        self._origins = OriginReader(kafka)
        self._task: asyncio.Task[None] | None = None
        self.work = asyncio.Event()

    async def connect(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    if await self._try_connect():
                        break
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            await self._drop_producer()
            raise UnreachableError(
                f"no broker for the dead letters answers at {self._kafka.servers} within {deadline_s:g} s: "
                "is the broker up? Check kafka.bootstrap_servers"
            ) from None
        except BaseException:
            await self._drop_producer()
            raise
        self._task = asyncio.create_task(self._run(), name="send-dead-letters")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._origins.close()
        await self._drop_producer()

    async def _run(self) -> None:
        while True:
            # Wait for a letter, and a moment for others unless they fill a window. `work` is cleared before each look
            # at the backlog: a letter that is put in between sets it again. While letters gather it stays set, so
            # that nobody wakes the loop for them.
            self.work.clear()
            if not self._backlog.statistics().waiting:
                try:
                    async with asyncio.timeout(_IDLE_S if self._origins.connected else None):
                        await self.work.wait()
                except TimeoutError:
                    await self._origins.close()
            held = self._backlog.statistics()
            if held.waiting < _WINDOW and held.waiting_bytes < _WINDOW_BYTES:
                self.work.set()
                await asyncio.sleep(_GATHER_S)
                self.work.clear()
            letters = self._backlog.oldest(_WINDOW, _WINDOW_BYTES)
            window = _Window(left=dict(enumerate(letters)))
            # Send the window until all of it is acknowledged.
            while window.left:
                failure = await self._try_to_send(window)
                if failure is not None:
                    # The next attempt has a new producer: the sequence numbers of one that failed may be out of order.
                    self._backlog.failed(failure)
                    await self._drop_producer()
                    await self._origins.close()
                    await asyncio.sleep(_RETRY_S)
            if letters:
                self._backlog.acknowledge(len(letters))

    async def _try_to_send(self, window: _Window) -> str | None:
        """Send what is left of the window. Return the error, or None when all of it is acknowledged.

        What was acknowledged before an error is not sent again: a window may take longer than one attempt.
        """
        posts, failure = list[_Post](), None
        within_s = self._kafka.request_timeout_ms / 1000
        try:
            # The producer comes first, so that while Kafka is away no letter goes without its record.
            async with asyncio.timeout(within_s):
                producer = await self._ready_producer()
            window.left = await self._origins.complete(window.left, self._backlog.statistics().waiting)
            ready = [index for index, letter in window.left.items() if letter.absent is not Absence.UNREAD]
            async with asyncio.timeout(within_s):
                async for post in self._posts(producer, window, ready):
                    posts.append(post)
                if posts:
                    await asyncio.wait([post.sent for post in posts])
        except TimeoutError:
            limit_ms = self._kafka.request_timeout_ms
            failure = f"topic {self._options.topic} has not acknowledged all letters within {limit_ms} ms"
        except Exception as error:  # noqa: BLE001 - no error of the client may lose a letter
            refused = await wrong_login(self._kafka) if isinstance(error, KafkaConnectionError) else None
            failure = str(refused or text_of(error))
        return self._settle(window, posts) or failure

    def _settle(self, window: _Window, posts: Sequence[_Post]) -> str | None:
        """Take what is acknowledged out of the window. Return the error of another batch, if there is one."""
        failure = None
        for post in posts:
            if not post.sent.done() or post.sent.cancelled():
                continue
            error = post.sent.exception()
            if error is None:
                for index in post.indices:
                    del window.left[index]
                continue
            failure = text_of(error)
            if isinstance(error, _TOO_LARGE):
                window.alone = True
                if len(post.indices) == 1:
                    self._mark_too_large(window, post.indices[0])
        return failure

    async def _posts(self, producer: AIOKafkaProducer, window: _Window, ready: Sequence[int]) -> AsyncIterator[_Post]:
        """Hand letters over in batches, in their order by partition; those without a key go to one partition."""
        partitions = sorted(await producer.partitions_for(self._options.topic))
        anywhere = _ANYWHERE.choice(partitions)
        by_partition: dict[int, list[int]] = {}
        for index in ready:
            key = window.left[index].key
            place = anywhere if key is None else _PARTITIONER(key, partitions, partitions)
            by_partition.setdefault(place, []).append(index)
        for place, indices in by_partition.items():
            batch, inside = producer.create_batch(), list[int]()
            for index in indices:
                contents = self._contents(window, index)
                if (inside and window.alone) or not append_to(batch, contents):
                    yield await self._handed_over(producer, batch, place, inside)
                    batch, inside = producer.create_batch(), []
                    append_to(batch, contents)  # the first one always fits
                inside.append(index)
            yield await self._handed_over(producer, batch, place, inside)

    async def _handed_over(
        self, producer: AIOKafkaProducer, batch: Any, partition: int, indices: Sequence[int]
    ) -> _Post:
        batch.close()
        sent: asyncio.Future[object] = await producer.send_batch(batch, self._options.topic, partition=partition)
        sent.add_done_callback(take_error)  # a window that fails early awaits no future
        return _Post(indices, sent)

    def _contents(self, window: _Window, index: int) -> LetterContents:
        """Return a letter whole, or shortened where it is too large."""
        letter = window.left[index]
        if index not in window.too_large:
            whole, most = contents_of(letter), self._options.max_request_bytes
            # Of a letter that is far from the limit the size in a request need not be known.
            if letter.nbytes <= most // 2 or DefaultRecordBatchBuilder.estimate_size_in_bytes(*whole) <= most:
                return whole
            self._mark_too_large(window, index)
        return shortened_contents_of(letter)

    def _mark_too_large(self, window: _Window, index: int) -> None:
        if index not in window.too_large:
            window.too_large.add(index)
            self._backlog.shortened()

    async def _try_connect(self) -> bool:
        try:
            producer = await self._ready_producer()
            missing = await topic_is_missing(producer.client, self._kafka, self._options.topic)
        except ClusterAuthorizationFailedError:
            # Kafka gives a producer its id only if it may write to any topic at all.
            raise refused_topic(self._kafka, "Write", self._options.topic) from None
        except (KafkaError, OSError):
            await self._drop_producer()
            await refuse_wrong_login(self._kafka)
            return False
        if missing:
            topic, servers = self._options.topic, self._kafka.servers
            raise TopicMissingError(
                f"the dead-letter topic {topic} is not at {servers}; create it: "
                f"kafka-topics.sh --bootstrap-server {servers} --create --topic {topic} --partitions 1"
            )
        return True

    async def _ready_producer(self) -> AIOKafkaProducer:
        if self._producer is None:
            producer = AIOKafkaProducer(
                **self._kafka.client_settings(),
                acks="all",
                enable_idempotence=True,
                max_request_size=self._options.max_request_bytes,
                max_batch_size=min(_BATCH_BYTES, self._options.max_request_bytes),
            )
            await start_producer(producer, self._kafka.request_timeout_ms / 1000)
            self._producer = producer
        return self._producer

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer)


async def _connect(
    kafka: KafkaOptions, options: DeadLetterOptions, backlog: Backlog, deadline_s: float
) -> _LetterSender:
    sender = _LetterSender(kafka, options, backlog)
    await sender.connect(deadline_s)
    return sender
