"""Redriving: produces the records of dead letters again, each exactly once, to a topic that the user chooses.

A record is identified by its origin: topic, partition, offset and timestamp. A letter may have been sent twice, so all
letters of one record count once. A record that was sent to one topic may still be sent to another. Records are sent in
windows. Each window is one Kafka transaction, together with markers in the dead letters' topic that name the records:
a reader of committed records finds both or neither, even if the redrive was killed. Every partition of that topic gets
the marker, which is newer than its letters and so outlives them. When two redrives of a topic run at once, the later
one ends the earlier one before it looks for markers.

Runs an event loop on the caller's thread. It holds in memory one window of letters and the names of all records sent.
It handles the letters that are in the topic when it begins. What it sent before an error stands and is not sent again.
"""

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, ProducerFenced, TransactionalIdAuthorizationFailed

from millrace.consumers.dead_letters.reader import ReceivedLetter, each_letter
from millrace.consumers.errors import ConfigError, MillraceError, SourceError, UnreachableError, text_of
from millrace.consumers.kafka.client import KafkaClient
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.rights import refused_transactions
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition

_CONNECT_S, _STOP_S = 10.0, 5.0
_WINDOW = 200
_WINDOW_WITHIN_S = 45.0
"""Less than the minute after which Kafka aborts a transaction by itself."""
_LARGEST_BYTES = 1024 * 1024
_WITHOUT_RECORD = (Reason.UPDATE_NOT_FINITE, Reason.STEP_RAISED)
"""Letters with these reasons may say only where their record is."""
_STANDS = "what was sent before stands, and is not sent again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """Which records to send, and where."""

    letters: str
    """The dead letters' topic."""
    to: str
    """The topic to send the records to."""
    model: str
    """The `name` of the config that set the records aside."""
    reasons: Collection[Reason] = ()
    """Only letters with one of these reasons; empty for all."""
    limit: int | None = None
    """The most records to send; None for all."""
    again: bool = False
    """Whether to send records that were sent before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """The outcome of a redrive."""

    sent: Counter[str] = field(default_factory=Counter)
    """The number of records sent, by reason."""
    stayed: Counter[str] = field(default_factory=Counter)
    """The number of letters that stayed, by why they did."""


def redrive(options: KafkaOptions, wanted: Redrive) -> Redriven:
    """Send the records, and return the outcome."""
    return asyncio.run(_redrive(options, wanted, _Transactions(options, wanted)))


def plan_redrive(options: KafkaOptions, wanted: Redrive) -> Redriven:
    """Return what `redrive` would do now. It sends nothing and does not disturb a redrive that runs."""
    return asyncio.run(_redrive(options, wanted, _DryRunSender()))


class _RedriveSender(Protocol):
    """Sends windows of letters."""

    async def start(self) -> None: ...

    async def send(self, window: Sequence[ReceivedLetter], places: Sequence[Partition]) -> None: ...

    async def stop(self) -> None: ...


class _DryRunSender:
    """Sends nothing."""

    async def start(self) -> None:
        """Do nothing."""

    async def send(self, window: Sequence[ReceivedLetter], places: Sequence[Partition]) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""


class _Transactions:
    """Sends each window, with the markers of its records, in one transaction."""

    def __init__(self, options: KafkaOptions, wanted: Redrive) -> None:
        self._options, self._wanted = options, wanted
        self._marker = [
            ("millrace.redriven", b"these records were sent on"),
            ("millrace.to", wanted.to.encode()),
            ("millrace.name", wanted.model.encode()),
        ]
        self._producer: AIOKafkaProducer | None = None

    async def start(self) -> None:
        """Connect. From then on, no other redrive of these letters can send, and its open transaction is aborted."""
        transactional_id = f"millrace-redrive-{self._wanted.letters}"
        asyncio.get_running_loop().set_exception_handler(_but_for_fencing)
        async with _translated_errors(self._options, transactional_id):
            self._producer = AIOKafkaProducer(
                **self._options.client_settings(),
                transactional_id=transactional_id,
                acks="all",
                enable_idempotence=True,
                max_request_size=_LARGEST_BYTES,
                linger_ms=5,
            )
            await self._producer.start()

    async def send(self, window: Sequence[ReceivedLetter], places: Sequence[Partition]) -> None:
        """Send all of the window or nothing, with a marker to each of these partitions."""
        producer = self._producer
        assert producer is not None, "start comes first"
        async with _translated_errors(self._options):
            await producer.begin_transaction()
            try:
                sent, bare = list[asyncio.Future[object]](), list[ReceivedLetter]()
                for letter in window:
                    if letter.key is None and letter.value is None:
                        bare.append(letter)
                        continue
                    headers = _headers(letter)
                    sent.append(await producer.send(self._wanted.to, letter.value, letter.key, headers=headers))
                sent += await self._send_bare(producer, bare)
                names = "\n".join(map(_origin, window)).encode()
                marked = [await producer.send(p.topic, names, partition=p.number, headers=self._marker) for p in places]
                await asyncio.gather(*sent, *marked)
            except BaseException:
                # Readers of committed records wait until the transaction ends. If another redrive has ended it already,
                # aiokafka raises an AssertionError.
                with contextlib.suppress(KafkaError, TimeoutError, AssertionError):
                    async with asyncio.timeout(_STOP_S):
                        await producer.abort_transaction()
                raise
            await producer.commit_transaction()

    async def _send_bare(
        self, producer: AIOKafkaProducer, letters: Sequence[ReceivedLetter]
    ) -> list["asyncio.Future[object]"]:
        """Send records that have neither key nor value. aiokafka takes them in batches alone, Kafka anyhow."""
        sent, left, to = list[asyncio.Future[object]](), deque(map(_headers, letters)), self._wanted.to
        while left:
            batch = producer.create_batch()
            # An empty batch takes any record; the broker has the word on one that is too large.
            while left and batch.append(timestamp=None, key=None, value=None, headers=left[0]) is not None:
                left.popleft()
            partition = random.choice(sorted(await producer.partitions_for(to)))  # noqa: S311 - no secret
            sent.append(await producer.send_batch(batch, to, partition=partition))
        return sent

    async def stop(self) -> None:
        """Close the connections. The next redrive, or Kafka after a minute, aborts an open transaction."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError, TimeoutError):  # `stop` flushes first, which may never end
                async with asyncio.timeout(_STOP_S):
                    await producer.stop()


async def _redrive(options: KafkaOptions, wanted: Redrive, sender: _RedriveSender) -> Redriven:
    if wanted.to == wanted.letters:
        raise ConfigError(f"--to: {wanted.to} holds the dead letters themselves; name the topic that should be learnt")
    client = KafkaClient(replace(options, topics=(wanted.letters, wanted.to), isolation_level="read_committed"))
    try:
        await client.connect(_CONNECT_S)
        for topic in (wanted.letters, wanted.to):
            await client.check_write(topic)
        # Before the ends and the markers are read, so that no earlier redrive can send anything after that.
        await sender.start()
        return await _send_on(client, wanted, sender)
    except TimeoutError:
        raise UnreachableError(f"Kafka at {options.servers} gives no more letters; {_STANDS}") from None
    finally:
        await sender.stop()
        await client.close()


async def _send_on(client: KafkaClient, wanted: Redrive, sender: _RedriveSender) -> Redriven:
    places = [partition for partition in client.partitions() if partition.topic == wanted.letters]
    starts, ends = await client.beginnings(places), await client.ends(places)
    # The origins of the records that were sent to the same topic for the same model, as the markers say.
    sent = set[str]()
    if not wanted.again:
        async for letter in each_letter(client, starts, ends):
            if letter.is_marker and (letter.ours.get("to"), letter.ours.get("name")) == (wanted.to, wanted.model):
                sent.update((letter.value or b"").decode("utf-8", "replace").splitlines())
    outcome, window = Redriven(), list[ReceivedLetter]()
    async for letter in each_letter(client, starts, ends):
        if letter.is_marker:
            continue
        if (why := _why_it_stays(letter, wanted, sent, outcome.sent.total())) is not None:
            outcome.stayed[why] += 1
            continue
        outcome.sent[letter.ours["reason"]] += 1
        sent.add(_origin(letter))
        window.append(letter)
        if len(window) == _WINDOW:
            await sender.send(window, places)
            window = []
    if window:
        await sender.send(window, places)
    return outcome


def _why_it_stays(letter: ReceivedLetter, wanted: Redrive, sent: Collection[str], count: int) -> str | None:
    """Return why the letter is not sent, or None if it is. `count` is the number of records sent so far."""
    reason = letter.ours.get("reason")
    if reason is None or letter.ours.get("name") != wanted.model:
        return "of another model"
    if wanted.reasons and reason not in wanted.reasons:
        return "for another reason"
    # Letters of versions that did not read the record again have no header for that, and the timestamp 0.
    earlier = letter.ours.get("reason") in _WITHOUT_RECORD and letter.value is None and letter.ours["timestamp"] == "0"
    if "without_record" in letter.ours or earlier:
        return "without their record"
    if "value_bytes" in letter.ours:
        return "shortened"
    if _origin(letter) in sent:
        return "sent before"
    return "beyond the limit" if wanted.limit is not None and count >= wanted.limit else None


def _headers(letter: ReceivedLetter) -> list[tuple[str, bytes | None]]:
    """Return the headers of the record that is sent."""
    return [*letter.headers, ("millrace.redriven_from", f"{letter.place}:{letter.place_offset}".encode())]


def _origin(letter: ReceivedLetter) -> str:
    """Return what identifies the letter's record."""
    where = ":".join(letter.ours.get(name, "") for name in ("topic", "partition", "offset"))
    return f"{where}@{letter.ours.get('timestamp', '')}"


def _but_for_fencing(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody awaits, except that another redrive has ended this one: aiokafka tells that to more than one."""
    if not isinstance(context.get("exception"), ProducerFenced):
        loop.default_exception_handler(context)


@contextlib.asynccontextmanager
async def _translated_errors(options: KafkaOptions, transactional_id: str = "") -> AsyncIterator[None]:
    """Limit how long the block may wait for Kafka, and raise aiokafka's errors as ours."""
    try:
        async with asyncio.timeout(_WINDOW_WITHIN_S):
            yield
    except ProducerFenced:
        raise MillraceError(f"another redrive of these letters has begun and ended this one; {_STANDS}") from None
    except TransactionalIdAuthorizationFailed:
        raise refused_transactions(options, transactional_id) from None
    except MessageSizeTooLargeError:
        raise ConfigError(
            f"--to: the topic takes no record as large as one of the letters'; raise its max.message.bytes; {_STANDS}"
        ) from None
    except TimeoutError:
        raise UnreachableError(f"Kafka at {options.servers} did not take the records in time; {_STANDS}") from None
    except KafkaError as error:
        text = f"Kafka refuses the records ({text_of(error)}); {_STANDS}"
        raise (UnreachableError if error.retriable else SourceError)(text) from error
