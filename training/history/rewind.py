"""Rewinding: an order to go on from an older checkpoint, published as a checkpoint of its own.

Owns what the order changes, which is the ledger alone: the target's, under all orders that were given since and with
the ranges that are to be skipped added, and an incarnation that never goes back. The other parts are the target's,
linked. Runs on the trainer's thread, or in a process that holds the Writer while no trainer runs; TensorFlow is not
needed for it.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from consumers.errors import ConfigError
from consumers.records import Partition
from training.checkpoints.inspection import Condition
from training.checkpoints.manifest import Manifest, SaveReason, SaveRequest
from training.checkpoints.parts import PartState
from training.checkpoints.store import CheckpointStore
from training.commands import Rewind
from training.errors import AllCorruptError, CorruptError
from training.history.lineage import ledger_of
from training.ledger.account import PartitionAccount
from training.ledger.event_span import EventSpan
from training.ledger.interventions import Interventions, Rewound
from training.ledger.ledger import NAME, Ledger
from training.ledger.skips import Skip

log = logging.getLogger(__name__)
UNPUBLISHED = 0
"""Stands for the number of an order that is only looked at: number 0 is always a beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """How it stands before the rewind."""

    positions: Mapping[Partition, int] = field(default_factory=dict)
    orders: Interventions = field(default_factory=Interventions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a rewind does to one partition."""

    position: int
    """The next offset now."""
    back_to: int
    """The next offset afterwards."""
    replayed: int
    """Offsets on the way back to the present position that are read again."""
    skipped: int
    """Offsets on that way that an order cuts out."""
    earliest: int | None = None
    """The first offset that Kafka still has; None where it was not asked."""
    gone: int | None = None
    """Offsets on that way that Kafka has no more, skipped or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindPlan:
    """What a rewind would do."""

    to: Manifest
    partitions: Mapping[Partition, Replay]
    history: Mapping[Partition, PartitionAccount]
    """What the target has learnt, set aside and passed over."""
    orders: Interventions
    """All that would have been ordered then."""
    event_span: EventSpan
    """The event times of what the target has learnt."""

    @property
    def replayed(self) -> int:
        """Offsets that would be read again."""
        return sum(replay.replayed for replay in self.partitions.values())

    @property
    def skipped(self) -> int:
        """Offsets on the way that would not be."""
        return sum(replay.skipped for replay in self.partitions.values())

    @property
    def gone(self) -> int | None:
        """Offsets on the way that Kafka has no more; None where that is not known of a partition."""
        counts = [replay.gone for replay in self.partitions.values() if replay.gone is not None]
        return sum(counts) if len(counts) == len(self.partitions) else None


def check_rewind(store: CheckpointStore, command: Rewind, orders: Interventions) -> Ledger:
    """The ledger that the rewind comes to; raises where it cannot be carried out, and changes nothing.

    `orders` are all that were given up to now.
    """
    found = store.verify(command.to)
    if not found.verified:
        raise CorruptError(
            f"checkpoint {command.to} is {found.condition}: {'; '.join(found.problems)}; choose another one, "
            "`millrace checkpoints verify` says which are good"
        )
    return _ledger_after(store, command, orders, UNPUBLISHED)


def publish_rewind(
    store: CheckpointStore,
    command: Rewind,
    *,
    incarnation: int,
    orders: Interventions,
    provenance: Mapping[str, Any] | None = None,
) -> Manifest:
    """Publish the order; whoever starts afterwards, or restores what is published, is on the ordered timeline.

    Without a provenance the target's stands: nothing has been learnt since by anybody else.
    """
    ledger = check_rewind(store, command, orders)
    ledger.raise_incarnation(incarnation)

    def under_its_number(number: int) -> dict[str, PartState]:
        after = _ledger_after(store, command, orders, number)
        after.raise_incarnation(incarnation)
        return {NAME: after.snapshot()}

    order = SaveRequest(
        reason=SaveReason.SKIP if command.skips else SaveReason.REWIND,
        parent=command.to,
        step=store.manifest(command.to).step,
        incarnation=ledger.incarnation,
        positions=ledger.positions(),
        ordered_by=command.by,
        note=command.note,
        provenance=provenance or {},
    )
    manifest = store.publish_linked(command.to, under_its_number, order)
    facts = {"to": command.to, "number": manifest.number, "by": command.by, "reason": command.note}
    log.info("rewound to checkpoint %d", command.to, extra=facts)
    return manifest


def plan_rewind(
    store: CheckpointStore, command: Rewind, present: Present, earliest: Mapping[Partition, int] | None = None
) -> RewindPlan:
    """What the rewind would do. Raises where it cannot be carried out."""
    ledger = check_rewind(store, command, present.orders)
    statistics = ledger.statistics()
    return RewindPlan(
        to=store.manifest(command.to),
        partitions={
            partition: _replay(
                partition,
                back_to,
                present.positions.get(partition, back_to),
                ledger.skips,
                None if earliest is None else earliest.get(partition),
            )
            for partition, back_to in ledger.positions().items()
        },
        history=statistics.partitions,
        orders=statistics.orders,
        event_span=statistics.event_span,
    )


def present_on_disk(store: CheckpointStore) -> Present:
    """How it stands by what was last ordered; for an order that is given while no trainer runs."""
    last = last_ordered(store)
    positions = {} if last is None else {Partition.parse(name): offset for name, offset in last.positions.items()}
    return Present(positions=positions, orders=_orders_on_disk(store))


def last_ordered(store: CheckpointStore) -> Manifest | None:
    """The checkpoint that a start would go on from; where none verifies, the newest whose manifest does.

    A rewind is the way out of a folder whose newest checkpoints are damaged, so damage is no obstacle here.
    """
    try:
        return store.newest()
    except AllCorruptError:
        looks = (found for found in store.listing() if found.condition is not Condition.FENCED)
        return next((found.manifest for found in looks if found.manifest is not None), None)


def _orders_on_disk(store: CheckpointStore) -> Interventions:
    """Those that the newest ledger knows which can be read: it knows all that were given before it."""
    for found in store.listing():
        if found.number is not None and found.condition is not Condition.FENCED:
            with suppress(CorruptError):
                return ledger_of(store, found.number).orders
    return Interventions()


def _ledger_after(store: CheckpointStore, command: Rewind, orders: Interventions, number: int) -> Ledger:
    """The target's ledger under all orders, this one included as what it is published as."""
    ledger = ledger_of(store, command.to)
    ledger.follow(orders.since(ledger.orders).without(command.unskip, number))
    known = ledger.positions()
    for skip in command.skips:
        if skip.partition not in known:
            raise ConfigError(
                f"skip: {skip.partition} is no partition of checkpoint {command.to}; it has "
                f"{', '.join(map(str, known)) or 'none'}"
            )
        ledger.skip(replace(skip, order=f"rewind-{number}", number=number, by=command.by))
    rewound = Rewound(number=number, to=command.to, by=command.by, why=command.note)
    ledger.follow(replace(ledger.orders, rewound=rewound))
    return ledger


def _replay(partition: Partition, back_to: int, position: int, skips: Sequence[Skip], earliest: int | None) -> Replay:
    skipped = sum(skip.overlap(back_to, position) for skip in skips if skip.partition == partition)
    return Replay(
        position=position,
        back_to=back_to,
        replayed=max(0, position - back_to) - skipped,
        skipped=skipped,
        earliest=earliest,
        gone=None if earliest is None else max(0, min(earliest, position) - back_to),
    )
