"""Two topics whose records belong together: impressions, and the clicks that come for them later.

What is written is drawn by a seed: records and clicks out of order, clicks before their impression, at the very limits
of what is allowed, twice, for nobody, too late, and an outage after which they come in one burst. Times are event times
in a field of each record, and Kafka's timestamp is when it was appended; both may lie in the past, so that nobody waits
for a click. `read` brings both back by a consumer of its own.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.faults.harness.plain_join import Label, Record
from tests.faults.harness.records import WIDTH

_AT_ONCE = 512 * 1024
_WITHIN_S = 300.0
_CENTURY_MS = 100 * 365 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is drawn. Shares are of impressions or of clicks, as their names say."""

    partitions: int = 4
    label_partitions: int = 3
    each: int
    """Impressions of each partition."""
    began: int
    """The time of the first ones, in milliseconds since 1970."""
    step_ms: int = 20
    """Between two impressions of a partition."""
    within_ms: int = 60_000
    early_ms: int = 4_000
    clicked: float = 0.03
    """Of the impressions."""
    orphans: float = 0.01
    """Clicks for nobody, of the impressions."""
    twice: float = 0.1
    """Of the clicks: those that come again, with another value."""
    held_up: float = 0.05
    """Of the clicks: those that are appended when their clock has passed."""
    at_limits: float = 0.1
    """Of the clicks: those that come in the first or last millisecond of what is allowed, or one beyond."""
    bad: float = 0.002
    """Of impressions and of clicks: those that cannot be read; and clicks from the future."""
    odd: float = 0.0003
    """Of the impressions: those whose time is far ahead of when they were appended, or far behind."""
    calm_at: int = 0
    """Around this offset no impression's time is odd."""
    co_partitioned: bool = False
    """Whether a click lies in the partition of its impression's number; there are as many of both then."""
    users: int | None = None
    """Whose impressions come again and again, in all partitions; None: each impression has a key of its own."""
    outage: bool = True
    """Whether the producer of clicks is down, for half of `within_ms` in the middle."""

    @property
    def last(self) -> int:
        """The time of the last impression."""
        return self.appended(self.each - 1)

    def appended(self, offset: int) -> int:
        """Return when an impression is appended."""
        return self.began + offset * self.step_ms


class Impression(NamedTuple):
    """An impression that is to be written; its offset is its place in the log."""

    appended: int
    event: int
    readable: bool = True


class Click(NamedTuple):
    """A click that is to be written."""

    appended: int
    event: int
    key: str | None
    """None: the record cannot be read."""
    value: float = 1.0


@dataclass(frozen=True, slots=True)
class Drawn:
    """Both topics, by partition, in the order of their offsets."""

    impressions: list[list[Impression]] = field(default_factory=list)
    clicks: list[list[Click]] = field(default_factory=list)


def draw(traffic: Traffic, seed: int) -> Drawn:
    """Draw both topics."""
    random, early, within = Random(seed), traffic.early_ms, traffic.within_ms
    down = (traffic.began + traffic.last) // 2
    up = down + within // 2 if traffic.outage else down
    clicks: list[list[Click]] = [[] for _ in range(traffic.label_partitions)]

    def append(number: int, event: int, key: str | None, value: float = 1.0) -> None:
        at = event + random.randrange(early + 1) + (2 * within if random.random() < traffic.held_up else 0)
        # What could not be sent while the producer was down comes in one burst.
        at = up if down <= at < up else at
        if random.random() < traffic.bad:
            key, event = (None, event) if random.random() < 0.5 else (key, event + _CENTURY_MS)
        place = number if traffic.co_partitioned else random.randrange(traffic.label_partitions)
        clicks[place].append(Click(at, event, key, value))

    drawn = Drawn(clicks=clicks)
    for number in range(traffic.partitions):
        log = list[Impression]()
        for offset in range(traffic.each):
            impression = _impression(traffic, offset, random)
            log.append(impression)
            if random.random() < traffic.clicked:
                event = impression.event + _delay(traffic, random)
                append(number, event, key_of(traffic, number, offset), random.choice((1.0, 1.0, 0.5)))
                if random.random() < traffic.twice:
                    append(number, event + random.randrange(-early, within // 4), key_of(traffic, number, offset), 0.25)
            if random.random() < traffic.orphans:
                append(number, impression.event, f"nobody-{number}-{offset}")
        drawn.impressions.append(log)
    for mine in clicks:
        mine.sort(key=lambda click: (click.appended, click.event) if click.appended == up else (click.appended, 0))
    return drawn


def key_of(traffic: Traffic, partition: int, offset: int) -> str:
    """Return the key of an impression: an id of its own, or that of a user."""
    return f"{partition}-{offset}" if traffic.users is None else f"user-{offset % traffic.users}"


def _impression(traffic: Traffic, offset: int, random: Random) -> Impression:
    appended, early = traffic.appended(offset), traffic.early_ms
    if random.random() < traffic.odd and abs(offset - traffic.calm_at) * traffic.step_ms > 3 * early:
        return Impression(appended, appended + random.choice((2 * early, -3 * early)))
    readable = random.random() >= traffic.bad
    return Impression(appended, appended - random.randrange(early), readable)


def _delay(traffic: Traffic, random: Random) -> int:
    """Draw how long after its impression a click comes."""
    within, early, kind = traffic.within_ms, traffic.early_ms, random.random()
    if kind < traffic.at_limits:
        return random.choice((-early - 1, -early, within, within + 1))
    if kind < 2 * traffic.at_limits:
        return random.randrange(-early, 0)
    return random.randrange(2 * within)


Sent = Iterable[tuple[int, bytes]]
"""Timestamps and values."""


def impressions_of(
    traffic: Traffic, partition: int, log: Sequence[Impression], start: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Return timestamps and values of the impressions of a partition, from an offset on."""
    for offset in range(start, len(log)):
        one = log[offset]
        x = ",".join(f"{(offset * 7 + at) % 13 / 13:.3f}" for at in range(WIDTH))
        key = key_of(traffic, partition, offset)
        told = f'"id":{offset},"partition":{partition},"at":{one.event},"impression_id":"{key}"'
        yield one.appended, f'{{"x":[{x}],{told}{"}" * one.readable}'.encode()


def clicks_of(log: Sequence[Click]) -> Iterator[tuple[int, bytes]]:
    """Return timestamps and values of clicks."""
    for one in log:
        told = {"impression_id": one.key, "clicked": one.value, "at": one.event}
        yield one.appended, b"no object" if one.key is None else json.dumps(told).encode()


def write(bootstrap: str, topic: str, logs: Mapping[int, Sent]) -> None:
    """Append to the partitions of a topic, one after the other."""
    asyncio.run(_write(bootstrap, topic, logs))


async def _write(bootstrap: str, topic: str, logs: Mapping[int, Sent]) -> None:
    async with asyncio.timeout(_WITHIN_S), AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=_AT_ONCE) as to:
        for number, log in logs.items():
            batch = to.create_batch()
            for at, value in log:
                if batch.append(key=None, value=value, timestamp=at) is None:
                    await (await to.send_batch(batch, topic, partition=number))
                    batch = to.create_batch()
                    batch.append(key=None, value=value, timestamp=at)
            if batch.record_count():
                await (await to.send_batch(batch, topic, partition=number))


class Read(NamedTuple):
    """A record as Kafka has it."""

    offset: int
    timestamp: int
    value: bytes


def read(bootstrap: str, topic: str, partitions: int) -> dict[int, list[Read]]:
    """Return everything that a topic holds, by partition."""
    return asyncio.run(_read(bootstrap, topic, partitions))


async def _read(bootstrap: str, topic: str, partitions: int) -> dict[int, list[Read]]:
    every = [TopicPartition(topic, number) for number in range(partitions)]
    found: dict[int, list[Read]] = {number: [] for number in range(partitions)}
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    async with asyncio.timeout(_WITHIN_S), consumer:
        consumer.assign(every)
        ends = await consumer.end_offsets(every)
        for at in every:
            while await consumer.position(at) < ends[at]:
                for one in (await consumer.getmany(at, timeout_ms=500)).get(at, []):
                    found[at.partition].append(Read(one.offset, one.timestamp, one.value or b""))
    return found


def records_in(log: Sequence[Read]) -> list[Record]:
    """Return the impressions of a log that can be read."""
    told = [(one, _object(one.value)) for one in log]
    return [Record(one.offset, told["impression_id"], told["at"], one.timestamp) for one, told in told if told]


def labels_in(log: Sequence[Read]) -> list[Label]:
    """Return the clicks of a log."""
    told = [(one.offset, _object(one.value)) for one in log]
    return [
        Label(offset, told["impression_id"], told["at"], {"clicked": told["clicked"]}) if told else Label(offset, None)
        for offset, told in told
    ]


def _object(value: bytes) -> dict[str, Any]:
    """Return what a value holds; nothing if it cannot be read."""
    try:
        found: dict[str, Any] = json.loads(value)
    except ValueError:
        return {}
    return found
