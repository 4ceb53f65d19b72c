"""Plan a rewind before the trainer gets the command: what it would do, and whether it must be refused.

Runs on the HTTP side's loop; threads read the disk and ask Kafka. Planning takes as long as the disk takes to read the
checkpoint; it waits for Kafka a few seconds at most.
"""

from collections.abc import Callable, Mapping

import anyio

from millrace.app.api.checkpoint_reads import CheckpointReader
from millrace.app.api.offload import run_on_thread
from millrace.app.monitoring.snapshot import Snapshot
from millrace.consumers.records import Partition
from millrace.training.commands import Rewind
from millrace.training.history.rewind import Present, RewindPlan
from millrace.training.history.rewind_request import RewindRequest

Beginnings = Callable[[], Mapping[Partition, int] | None]
"""Asks Kafka for the first offset that it still has of each partition. May take long, so it runs on a thread."""
KAFKA_TIMEOUT_S = 4.0
_MAX_ASKING = 8


class RewindPlanner:
    """Plans rewinds ahead of the trainer."""

    def __init__(self, reader: CheckpointReader, beginnings: Beginnings) -> None:
        self._reader, self._beginnings = reader, beginnings
        self._asking = anyio.CapacityLimiter(_MAX_ASKING)

    async def plan(self, request: RewindRequest, snapshot: Snapshot) -> RewindPlan:
        """Return what a rewind would do. Raises MillraceError if it cannot be carried out."""
        plan = await self._reader.plan(request, _present(snapshot))
        return plan.with_earliest(await self._earliest(snapshot))

    async def command(self, request: RewindRequest, snapshot: Snapshot) -> Rewind:
        """Return the command for the trainer. Raises MillraceError if the rewind must be refused."""
        plan = await self.plan(request, snapshot)
        plan.refuse_loss(snapshot.settings.kafka.out_of_range)
        return plan.prepared.command

    async def _earliest(self, snapshot: Snapshot) -> Mapping[Partition, int] | None:
        """Return the first offset that Kafka still has of each partition; None if Kafka is away, or takes too long."""
        if not snapshot.source.connected:
            return None
        with anyio.move_on_after(KAFKA_TIMEOUT_S):
            return await run_on_thread(self._beginnings, self._asking)
        return None


def _present(snapshot: Snapshot) -> Present:
    settled = snapshot.ledger.partitions
    positions = {partition: facts.position for partition, facts in settled.items()}
    return Present(positions=positions, orders=snapshot.ledger.orders)
