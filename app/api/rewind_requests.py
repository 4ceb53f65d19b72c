"""Planning a rewind: what it would do, and whether anything speaks against it, before the trainer hears of it.

Runs on the HTTP side's loop; what reads the disk or asks Kafka does so on threads. It may take as long as the disk
takes to read the checkpoint; Kafka is waited for a few seconds at most.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import anyio

from app.api.checkpoint_reads import CheckpointShelf
from app.api.offload import on_a_thread
from app.api.problem_documents import ProblemError
from app.monitoring.rewind_plan import advice_on
from app.monitoring.snapshot import Snapshot
from consumers.records import Partition
from training.checkpoints.manifest import Manifest
from training.commands import Rewind
from training.history.rewind import Present, RewindPlan
from training.history.rewind_target import Destination
from training.ledger.skips import Skip

Beginnings = Callable[[], Mapping[Partition, int] | None]
"""Asks Kafka for the first offset that it still has of each partition; may take its time."""
KAFKA_WITHIN_S = 4.0
_MOST_ASKING = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindRequest:
    """A rewind, as it is asked for."""

    to: Destination
    skips: Sequence[Skip]
    unskip: Sequence[str]
    by: str
    note: str | None
    answer: "Future[Manifest]" = field(default_factory=Future)
    """What the order is answered by, once it is given."""


class Planner:
    """Looks ahead."""

    def __init__(self, shelf: CheckpointShelf, beginnings: Beginnings) -> None:
        self._shelf, self._beginnings = shelf, beginnings
        self._asking = anyio.CapacityLimiter(_MOST_ASKING)

    async def plan(self, wanted: RewindRequest, snapshot: Snapshot) -> RewindPlan:
        """What it would do; raises where it cannot be carried out."""
        _, plan = await self._look(wanted, snapshot)
        return plan

    async def order(self, wanted: RewindRequest, snapshot: Snapshot) -> Rewind:
        """The order; raises where something speaks against it."""
        order, plan = await self._look(wanted, snapshot)
        policy = snapshot.settings.kafka.out_of_range
        if plan.gone and policy == "fail":
            raise ProblemError(
                409,
                "Conflict",
                f"This would lose records: {advice_on(plan, policy)}.",
                fix="Ask with dry_run what a newer checkpoint comes to.",
            )
        return order

    async def _look(self, wanted: RewindRequest, snapshot: Snapshot) -> tuple[Rewind, RewindPlan]:
        order = Rewind(
            to=await self._shelf.find(wanted.to),
            skips=wanted.skips,
            unskip=wanted.unskip,
            by=wanted.by,
            note=wanted.note,
            answer=wanted.answer,
        )
        return order, await self._shelf.plan(order, _present(snapshot), await self._earliest(snapshot))

    async def _earliest(self, snapshot: Snapshot) -> Mapping[Partition, int] | None:
        """What Kafka still has; None where it did not answer a moment ago, or takes long now."""
        if snapshot.source is None or not snapshot.source.connected:
            return None
        with anyio.move_on_after(KAFKA_WITHIN_S):
            return await on_a_thread(self._beginnings, self._asking)
        return None


def _present(snapshot: Snapshot) -> Present:
    settled = snapshot.ledger.partitions
    positions = {partition: facts.position for partition, facts in settled.items()}
    return Present(positions=positions, orders=snapshot.ledger.orders)
