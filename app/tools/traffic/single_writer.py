"""A topic with one writer, which knows the offset of every record before it is sent, and checks it afterwards.

The writer's thread is `producing`; it is the only one to write, in order, so a record's offset is known in advance. It
writes on request, or continuously at a rate until it is stopped; what was acknowledged stands in its account.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, Self

from aiokafka import AIOKafkaProducer

from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.loop_thread import LoopThread
from millrace.consumers.reasons import Reason
from millrace.training.ledger.offset_checksum import Evidence

Verdict = Reason | None
"""Why a record must be set aside; None where it can be learnt, as far as its writer knows."""
_WITHIN_S = 120.0
_MOST_AT_ONCE = 1000
_TURN_S = 0.1


@dataclass(frozen=True, slots=True)
class ExpectedPosition:
    """Where a record is about to be."""

    partition: int
    offset: int


class Draws(Protocol):
    """What a stream is made of."""

    def draw(self, place: ExpectedPosition, random: Random) -> tuple[bytes | None, Verdict]:
        """Return one record for this position, and its verdict."""
        ...


class SingleWriter:
    """The topic, its writer and the account. A context manager: created and connected inside."""

    def __init__(self, bootstrap: str, name: str, partitions: int, draws: Draws, seed: int) -> None:
        self.name, self.partitions, self.bootstrap = name, partitions, bootstrap
        self.verdicts: list[list[Verdict]] = [[] for _ in range(partitions)]
        """By partition and offset; every record that the broker has acknowledged."""
        self._draws, self._random = draws, Random(seed)  # noqa: S311 - the same records for the same seed
        self._loop = LoopThread("producing")
        self._producer: AIOKafkaProducer | None = None
        self._flow: Future[None] | None = None
        self._flowing = False

    def __enter__(self) -> Self:
        create_topic(self.bootstrap, self.name, self.partitions)
        self._loop.start()
        self._loop.run(self._connect(), _WITHIN_S)
        return self

    def __exit__(self, *_raised: object) -> None:
        try:
            with contextlib.suppress(Exception):  # `still` has reported what ended the flow
                self.still()
            assert self._producer is not None
            self._loop.run(self._producer.stop(), _WITHIN_S)
        finally:
            self._loop.stop(_WITHIN_S)

    def write(self, records: int, draws: Draws | None = None) -> None:
        """Write `records` to each partition, and return when the broker has them."""
        self._loop.run(self._write(records, draws or self._draws), _WITHIN_S)

    def flow(self, records_per_s: float, wanted: Callable[[], bool] = lambda: True) -> None:
        """Write continuously, spread over the partitions, while more is wanted, until `still`."""
        assert self._flow is None
        self._flowing = True
        self._flow = self._loop.submit(self._keep_writing(records_per_s, wanted))

    def still(self) -> None:
        """End the flow; return when all its records are acknowledged, and raise what went wrong with it."""
        flow, self._flow = self._flow, None
        if flow is not None:
            self._flowing = False
            flow.result(_WITHIN_S)

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(map(len, self.verdicts))

    def learnable(self, partition: int) -> Iterator[int]:
        """Give the offsets that must be learnt."""
        return (offset for offset, verdict in enumerate(self.verdicts[partition]) if verdict is None)

    def evidence(self, partition: int) -> Evidence:
        """Return the evidence of a model that has learnt each of them once."""
        return Evidence.of(self.learnable(partition))

    def set_aside(self, partition: int) -> Counter[Reason]:
        """Count the records that must be set aside, by reason."""
        return Counter(verdict for verdict in self.verdicts[partition] if verdict is not None)

    async def _connect(self) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, max_batch_size=1024 * 1024)
        await self._producer.start()

    async def _keep_writing(self, records_per_s: float, wanted: Callable[[], bool]) -> None:
        share = max(1, int(records_per_s * _TURN_S / self.partitions))
        while self._flowing:
            await asyncio.gather(self._write(share if wanted() else 0, self._draws), asyncio.sleep(_TURN_S))

    async def _write(self, records: int, draws: Draws) -> None:
        for first in range(0, records, _MOST_AT_ONCE):
            count = min(_MOST_AT_ONCE, records - first)
            await asyncio.gather(*(self._send(number, count, draws) for number in range(self.partitions)))

    async def _send(self, partition: int, count: int, draws: Draws) -> None:
        assert self._producer is not None
        account = self.verdicts[partition]
        batch, verdicts, first = self._producer.create_batch(), list[Verdict](), len(account)
        for offset in range(first, first + count):
            value, verdict = draws.draw(ExpectedPosition(partition, offset), self._random)
            added: Any = batch.append(key=None, value=value, timestamp=None)
            assert added is not None, "the batch has room"
            verdicts.append(verdict)
        sent = await (await self._producer.send_batch(batch, self.name, partition=partition))
        assert sent.offset == first, f"{self.name}:{partition} has offset {sent.offset} where {first} comes next"
        account.extend(verdicts)
