"""Rewinding: an order to go on from an older checkpoint, published as a checkpoint of its own.

Owns what the order changes, which is the ledger alone: the target's, with the ranges that are to be skipped added, and
an incarnation that never goes back. The other parts are the target's, linked. Runs on the trainer's thread, or in a
process that holds the Writer while no trainer runs; TensorFlow is not needed for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consumers.errors import ConfigError
from consumers.records import Partition
from training.checkpoints.inspection import Condition
from training.checkpoints.manifest import Manifest, SaveOrder, SaveReason
from training.checkpoints.store import CheckpointStore
from training.commands import Rewind
from training.errors import AllCorruptError, CorruptError
from training.ledger import NAME, Ledger
from training.skips import Skip


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


def check_rewind(store: CheckpointStore, command: Rewind) -> Ledger:
    """The ledger that the rewind comes to; raises where it cannot be carried out, and changes nothing."""
    found = store.verify(command.to)
    if not found.verified:
        raise CorruptError(
            f"checkpoint {command.to} is {found.condition}: {'; '.join(found.problems)}; choose another one, "
            "`millrace checkpoints verify` says which are good"
        )
    ledger = Ledger()
    ledger.restore(store.load(command.to, only={NAME})[NAME])
    known = ledger.positions()
    for skip in command.skips:
        if skip.partition not in known:
            raise ConfigError(
                f"skip: {skip.partition} is no partition of checkpoint {command.to}; it has "
                f"{', '.join(map(str, known)) or 'none'}"
            )
        ledger.skip(skip)
    return ledger


def publish_rewind(
    store: CheckpointStore, command: Rewind, *, incarnation: int, provenance: Mapping[str, Any] | None = None
) -> Manifest:
    """Publish the order; whoever starts afterwards, or restores what is published, is on the ordered timeline.

    Without a provenance the target's stands: nothing has been learnt since by anybody else.
    """
    ledger = check_rewind(store, command)
    ledger.raise_incarnation(incarnation)
    order = SaveOrder(
        reason=SaveReason.SKIP if command.skips else SaveReason.REWIND,
        parent=command.to,
        step=store.manifest(command.to).step,
        incarnation=ledger.incarnation,
        positions=ledger.positions(),
        ordered_by=command.by,
        note=command.note,
        provenance=provenance or {},
    )
    return store.publish_linked(command.to, {NAME: ledger.snapshot()}, order)


def plan_rewind(store: CheckpointStore, command: Rewind) -> dict[Partition, Replay]:
    """What the rewind would do, were it ordered while no trainer runs. Raises where it cannot be carried out."""
    ledger = check_rewind(store, command)
    last = last_ordered(store)
    now = {} if last is None else {Partition.parse(name): offset for name, offset in last.positions.items()}
    return {
        partition: _replay(now.get(partition, back_to), back_to, partition, ledger.skips)
        for partition, back_to in ledger.positions().items()
    }


def last_ordered(store: CheckpointStore) -> Manifest | None:
    """The checkpoint that a start would go on from; where none verifies, the newest whose manifest does.

    A rewind is the way out of a folder whose newest checkpoints are damaged, so damage is no obstacle here.
    """
    try:
        return store.newest()
    except AllCorruptError:
        looks = (found for found in store.listing() if found.condition is not Condition.FENCED)
        return next((found.manifest for found in looks if found.manifest is not None), None)


def _replay(position: int, back_to: int, partition: Partition, skips: Sequence[Skip]) -> Replay:
    skipped = sum(skip.overlap(back_to, position) for skip in skips if skip.partition == partition)
    return Replay(position=position, back_to=back_to, replayed=max(0, position - back_to) - skipped, skipped=skipped)
