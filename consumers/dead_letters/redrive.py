"""Redriving: the records of dead letters are produced again, to a topic of somebody's choice, and each of them once.

A record is known by where it came from: topic, partition, offset and timestamp. Letters of the same one count once, for
letters are sent at least once; that it went to one topic keeps it from no other. They are sent on in windows, each of
them one transaction of Kafka's, together with markers in the dead letters' topic that name the records: whoever reads
committed records alone finds both or neither, whenever this was killed. Every partition of that topic gets the marker,
which is newer than its letters, so it outlives them. Of two redrives of a topic at once the later one ends the earlier,
before it looks for markers.

Runs an event loop on the caller's thread; in memory are one window of letters, and the names of all records that went.
It ends with the letters that were there when it began. What it sent before an error stands, and is not sent again.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, ProducerFenced

from consumers.dead_letters.reader import Positions, ReceivedLetter, each_letter
from consumers.errors import ConfigError, MillraceError, SourceError, UnreachableError
from consumers.kafka.client import KafkaClient
from consumers.kafka.options import KafkaOptions
from consumers.reasons import Reason
from consumers.records import Partition

_CONNECT_S, _STOP_S = 10.0, 5.0
_WINDOW = 200
_WINDOW_WITHIN_S = 45.0
"""Less than the minute after which Kafka ends a transaction by itself."""
_LARGEST_BYTES = 1024 * 1024
_WITHOUT_RECORD = (Reason.UPDATE_NOT_FINITE, Reason.STEP_RAISED)
"""Their letters say where the record is, and no more."""
_KEPT = "what was sent before stands, and is not sent again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """Which letters' records go where."""

    letters: str
    """The dead letters' topic."""
    to: str
    model: str
    """Whose letters, by the `name` of the config."""
    reasons: Collection[Reason] = ()
    """None for all of them."""
    limit: int | None = None
    """The most that are sent."""
    again: bool = False
    """Whether those go too that went before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What became of the letters."""

    sent: Counter[str] = field(default_factory=Counter)
    """By reason."""
    stayed: Counter[str] = field(default_factory=Counter)
    """By why."""


def redrive(options: KafkaOptions, wanted: Redrive) -> Redriven:
    """Send them on."""
    return asyncio.run(_redrive(options, wanted, _Transactions(options, wanted)))


def foresee(options: KafkaOptions, wanted: Redrive) -> Redriven:
    """What `redrive` would do now; nothing is sent, and a redrive that runs is left alone."""
    return asyncio.run(_redrive(options, wanted, _Nowhere()))


class _RedriveSender(Protocol):
    """Takes windows of letters."""

    async def start(self) -> None: ...

    async def send(self, window: Sequence[ReceivedLetter], places: Sequence[Partition]) -> None: ...

    async def stop(self) -> None: ...


class _Nowhere:
    """Of a dry run."""

    async def start(self) -> None:
        """Nothing to begin."""

    async def send(self, window: Sequence[ReceivedLetter], places: Sequence[Partition]) -> None:
        """Nothing is sent."""

    async def stop(self) -> None:
        """Nothing to end."""


class _Transactions:
    """Sends each window, with the markers of its letters, in one transaction."""

    def __init__(self, options: KafkaOptions, wanted: Redrive) -> None:
        self._options, self._wanted = options, wanted
        self._marker = [
            ("millrace.redriven", b"these records were sent on"),
            ("millrace.to", wanted.to.encode()),
            ("millrace.name", wanted.model.encode()),
        ]
        self._producer: AIOKafkaProducer | None = None

    async def start(self) -> None:
        """Connect; from then on no other redrive of these letters sends anything, nor leaves anything half sent."""
        async with _explained(self._options):
            self._producer = AIOKafkaProducer(
                **self._options.client_settings(),
                transactional_id=f"millrace-redrive-{self._wanted.letters}",
                acks="all",
                enable_idempotence=True,
                max_request_size=_LARGEST_BYTES,
                linger_ms=5,
            )
            await self._producer.start()

    async def send(self, window: Sequence[ReceivedLetter], places: Sequence[Partition]) -> None:
        """All of them, or none; the markers go to these places."""
        producer = self._producer
        assert producer is not None, "start comes first"
        async with _explained(self._options):
            await producer.begin_transaction()
            try:
                await self._fill(producer, window, places)
            except BaseException:
                # Who reads behind it waits for its end. Where it was ended by others, aiokafka says so by an assertion.
                with contextlib.suppress(KafkaError, TimeoutError, AssertionError):
                    async with asyncio.timeout(_STOP_S):
                        await producer.abort_transaction()
                raise
            await producer.commit_transaction()

    async def _fill(
        self, producer: AIOKafkaProducer, window: Sequence[ReceivedLetter], places: Sequence[Partition]
    ) -> None:
        sent = [
            await producer.send(self._wanted.to, letter.value, letter.key, headers=_headers(letter))
            for letter in window
        ]
        names = "\n".join(map(_origin, window)).encode()
        marked = [await producer.send(at.topic, names, partition=at.number, headers=self._marker) for at in places]
        await asyncio.gather(*sent, *marked)

    async def stop(self) -> None:
        """Close the connections; what is half sent is undone by the next one, or by Kafka after a minute."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError, TimeoutError):  # it flushes first, which may never end
                async with asyncio.timeout(_STOP_S):
                    await producer.stop()


async def _redrive(options: KafkaOptions, wanted: Redrive, sender: _RedriveSender) -> Redriven:
    if wanted.to == wanted.letters:
        raise ConfigError(f"--to: {wanted.to} holds the dead letters themselves; name the topic that should be learnt")
    client = KafkaClient(replace(options, topics=(wanted.letters, wanted.to), isolation_level="read_committed"))
    try:
        await client.connect(_CONNECT_S)
        await sender.start()
        return await _send_on(client, wanted, sender)
    except TimeoutError:
        raise UnreachableError(f"Kafka at {options.servers} gives no more letters; {_KEPT}") from None
    finally:
        await sender.stop()
        await client.close()


async def _send_on(client: KafkaClient, wanted: Redrive, sender: _RedriveSender) -> Redriven:
    places = [partition for partition in client.partitions() if partition.topic == wanted.letters]
    starts, ends = await client.beginnings(places), await client.ends(places)
    went = set() if wanted.again else await _sent_before(client, wanted, starts, ends)
    told, window = Redriven(), list[ReceivedLetter]()
    async for letter in each_letter(client, starts, ends):
        if letter.is_marker:
            continue
        if (why := _why_it_stays(letter, wanted, went, told.sent.total())) is not None:
            told.stayed[why] += 1
            continue
        told.sent[letter.ours["reason"]] += 1
        went.add(_origin(letter))
        window.append(letter)
        if len(window) == _WINDOW:
            await sender.send(window, places)
            window = []
    if window:
        await sender.send(window, places)
    return told


async def _sent_before(client: KafkaClient, wanted: Redrive, starts: Positions, ends: Positions) -> set[str]:
    """Which records the markers name that tell of such a redrive."""
    found = [letter async for letter in each_letter(client, starts, ends) if letter.is_marker]
    markers = [one for one in found if (one.ours.get("to"), one.ours.get("name")) == (wanted.to, wanted.model)]
    return {name for marker in markers for name in (marker.value or b"").decode("utf-8", "replace").splitlines()}


def _why_it_stays(letter: ReceivedLetter, wanted: Redrive, went: Collection[str], sent: int) -> str | None:
    """None for one that goes."""
    reason = letter.ours.get("reason")
    if reason is None or letter.ours.get("name") != wanted.model:
        return "of another model"
    if wanted.reasons and reason not in wanted.reasons:
        return "for another reason"
    if reason in _WITHOUT_RECORD:
        return "without their record"
    if "value_bytes" in letter.ours:
        return "shortened"
    if _origin(letter) in went:
        return "sent before"
    return "beyond the limit" if wanted.limit is not None and sent >= wanted.limit else None


def _origin(letter: ReceivedLetter) -> str:
    """Which record it is about."""
    where = ":".join(letter.ours.get(name, "") for name in ("topic", "partition", "offset"))
    return f"{where}@{letter.ours.get('timestamp', '')}"


def _headers(letter: ReceivedLetter) -> list[tuple[str, bytes | None]]:
    """The record's own, and where it comes from now."""
    return [*letter.headers, ("millrace.redriven_from", f"{letter.place}:{letter.place_offset}".encode())]


@contextlib.asynccontextmanager
async def _explained(options: KafkaOptions) -> AsyncIterator[None]:
    """Bound what Kafka is asked, and say in our words what it refuses."""
    try:
        async with asyncio.timeout(_WINDOW_WITHIN_S):
            yield
    except ProducerFenced:
        raise MillraceError(f"another redrive of these letters has begun and ended this one; {_KEPT}") from None
    except MessageSizeTooLargeError:
        raise ConfigError(
            f"--to: the topic takes no record as large as one of the letters'; raise its max.message.bytes; {_KEPT}"
        ) from None
    except TimeoutError:
        raise UnreachableError(f"Kafka at {options.servers} did not take the records in time; {_KEPT}") from None
    except KafkaError as error:
        text = f"Kafka refuses the records ({type(error).__name__}: {error}); {_KEPT}"
        raise (UnreachableError if error.retriable else SourceError)(text) from error
