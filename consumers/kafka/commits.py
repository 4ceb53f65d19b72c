"""Committing: brings the newest durable positions to Kafka, and repeats that until Kafka accepts them.

Owns the positions that were given last. Runs on the consumer's loop, one attempt at a time. While Kafka refuses, newer
positions replace older ones, so that nothing accumulates. The newest are tried again every few seconds, so that lag
tools see the truth even if no checkpoint follows. It ends when its task is cancelled.
"""

import asyncio
import logging
from collections.abc import Mapping

from millrace.consumers.kafka.client import GroupCommits
from millrace.consumers.kafka.statistics import SourceMeter
from millrace.consumers.log_limit import limit_loggers
from millrace.consumers.records import Partition

log = logging.getLogger(__name__)

Positions = Mapping[Partition, int]
_RETRY_S = 5.0


class Committing:
    """Commits positions of one group."""

    def __init__(
        self,
        commits: GroupCommits,
        meter: SourceMeter,
        group_id: str,
        *,
        lines_per_minute: int,
        again_s: float = _RETRY_S,
    ) -> None:
        limit_loggers(__name__, lines_per_minute)
        self._commits, self._meter, self._group_id, self._again_s = commits, meter, group_id, again_s
        self._newest: Positions | None = None
        """The positions given last; None once Kafka has accepted them."""
        self._logged: str | None = None
        """The error of the refusal that was logged last; None once Kafka has accepted a commit."""
        self._trying = asyncio.Lock()

    async def commit(self, positions: Positions) -> bool:
        """Commit after the attempt under way. Return whether Kafka accepted; False also when newer positions came."""
        self._newest = positions
        async with self._trying:
            if self._newest is not positions:
                return False
            refusal = await self._commits.commit(positions)
            self._meter.committed(refusal)
            # Newer positions may have come during the attempt. They wait for the lock and must stay the newest.
            if refusal is None and self._newest is positions:
                self._newest = None
        # Log the first refusal of a kind, and the commit that ends them; every other one is counted only.
        if refusal is not None and refusal != self._logged:
            log.warning("A commit of group %s was refused: %s; it will be tried again", self._group_id, refusal)
        elif refusal is None and self._logged is not None:
            log.info("Kafka accepts the commits of group %s again", self._group_id)
        self._logged = refusal
        return refusal is None

    async def keep_trying(self) -> None:
        """Retry what was refused, until cancelled. This is the body of a task."""
        while True:
            await asyncio.sleep(self._again_s)
            if self._newest is not None:
                await self.commit(self._newest)
