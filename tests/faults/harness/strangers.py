"""Others who take what is ours: a consumer in our group, a trainer that was frozen while another took its folder."""

import asyncio
import os
import signal
from concurrent.futures import Future
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer

from millrace.consumers.loop_thread import LoopThread
from tests.faults.harness.broker_disturbances import freeze
from tests.faults.harness.process import Run

_WITHIN_S = 60.0


@dataclass(slots=True)
class StrangerInGroup:
    """A consumer that joins our group, is given all partitions, stays a while, leaves, and comes again."""

    bootstrap: str
    group: str
    topic: str
    every_s: float = 1.5
    hits: int = 0
    """How often it was a member with partitions."""
    _loop: LoopThread = field(default_factory=lambda: LoopThread("stranger"), repr=False)
    _over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _visits: Future[None] | None = field(default=None, repr=False)

    def begin(self) -> None:
        """Come and go from now on."""
        self._loop.start()
        self._visits = self._loop.submit(self._come_and_go())

    def heal(self) -> None:
        """Leave for good."""
        self._loop.call(self._over.set)
        try:
            if self._visits is not None:
                self._visits.result(_WITHIN_S)
        finally:
            self._loop.stop(_WITHIN_S)

    async def _come_and_go(self) -> None:
        while not self._over.is_set():
            stranger = AIOKafkaConsumer(
                self.topic, bootstrap_servers=self.bootstrap, group_id=self.group, enable_auto_commit=False
            )
            async with stranger:
                self.hits += bool(stranger.assignment())
                await self._wait()
            await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self.every_s):
                await self._over.wait()
        except TimeoutError:
            return


@dataclass(slots=True)
class ZombieTrainer:
    """A trainer that is frozen in the middle of what it does, and goes on with it when another has its folder."""

    run: Run
    hits: int = 0

    def begin(self) -> None:
        """SIGSTOP; one that has frozen itself at a failpoint stays so."""
        freeze(self.run.pid)
        self.hits += 1

    def heal(self) -> None:
        """SIGCONT."""
        os.kill(self.run.pid, signal.SIGCONT)
