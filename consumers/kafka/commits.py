"""Committing: the newest positions that are durable, brought to Kafka sooner or later.

Owns what was asked for last. Runs on the consumer's loop, one try at a time. While Kafka refuses, later calls overtake
earlier ones, so that nothing piles up; the newest is tried again every few seconds until Kafka takes it or another
overtakes it, so that lag tools see the truth though no checkpoint follows. It ends when its task is cancelled.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from consumers.log_limit import limit_loggers
from consumers.records import Partition

log = logging.getLogger(__name__)

Positions = Mapping[Partition, int]
_AGAIN_S = 5.0


class CommitClient(Protocol):
    """Who brings a commit to Kafka."""

    async def commit(self, positions: Positions) -> str | None:
        """None when Kafka took it, else the name of what it refused it with."""


class CommitCounter(Protocol):
    """Who counts what became of a commit."""

    def committed(self, refusal: str | None) -> None:
        """One was taken, or refused with an error of this name."""


class Committing:
    """Commits of one group."""

    def __init__(
        self,
        commits: CommitClient,
        meter: CommitCounter,
        group_id: str,
        *,
        lines_per_minute: int,
        again_s: float = _AGAIN_S,
    ) -> None:
        limit_loggers(__name__, lines_per_minute)
        self._commits, self._meter, self._group_id, self._again_s = commits, meter, group_id, again_s
        self._newest: Positions | None = None
        """What was asked for last, until Kafka has taken it."""
        self._trying = asyncio.Lock()

    async def commit(self, positions: Positions) -> bool:
        """Try it, after what is under way. Whether Kafka took it; False too where another has overtaken it."""
        self._newest = positions
        async with self._trying:
            if self._newest is not positions:
                return False
            refusal = await self._commits.commit(positions)
            self._meter.committed(refusal)
            if refusal is None and self._newest is positions:
                self._newest = None
        if refusal is not None:
            log.warning("A commit of group %s was refused: %s; it will be tried again", self._group_id, refusal)
        return refusal is None

    async def keep_trying(self) -> None:
        """The body of a task: try again what was refused."""
        while True:
            await asyncio.sleep(self._again_s)
            if self._newest is not None:
                await self.commit(self._newest)
