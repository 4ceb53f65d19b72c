"""Rewinding: resuming from an older checkpoint, published as a checkpoint of its own.

Owns all rules of a rewind: what it would do (`plan_rewind`), when it is refused (`prepare_rewind`,
`RewindPlan.refuse_loss`), and what it publishes (`publish_rewind`). A rewind changes the ledger alone: it is the
target's, under all interventions up to now, with the new ranges to skip added, and with an incarnation that never goes
back. The other parts are the target's, linked.

The target is read and hashed once; what was verified is handed on. Runs on the trainer's thread, on a thread of the
HTTP side for planning, or in a process that holds the folder's lease while no trainer runs. TensorFlow is not needed.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic import ConfigDict

from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.options import OutOfRange
from millrace.consumers.metric import SHOWN
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.labels.rules import NAME as LABELS
from millrace.training.checkpoints.inspection import Condition
from millrace.training.checkpoints.manifest import JournalEntry, Manifest, SaveReason, SaveRequest
from millrace.training.checkpoints.part_files import VerifiedCheckpoint
from millrace.training.checkpoints.parts import PartState
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.commands import Rewind
from millrace.training.errors import AllCorruptError, CorruptError, LossyRewindError
from millrace.training.history.lineage import ledger_of
from millrace.training.history.rewind_request import RewindRequest
from millrace.training.history.rewind_target import find
from millrace.training.ledger.account import PartitionAccount
from millrace.training.ledger.interventions import UNPUBLISHED, Interventions, Rewound
from millrace.training.ledger.ledger import NAME, EventSpan, Ledger

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The state of the history before the rewind."""

    positions: Mapping[Partition, int] = field(default_factory=dict)
    orders: Interventions = field(default_factory=Interventions)
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a rewind would do to one partition."""

    __pydantic_config__: ClassVar[ConfigDict] = SHOWN

    position: int
    """The next offset now."""
    back_to: int
    """The next offset after the rewind."""
    replayed: int
    """Offsets that would be read again."""
    skipped: int
    """Offsets on the way that would not be."""
    earliest: int | None = None
    """The first offset that Kafka still has; left out if unknown."""
    gone: int | None = None
    """Offsets on the way that Kafka has no more, skipped or not."""

    def with_earliest(self, earliest: int | None) -> "Replay":
        """Return the same replay, given the first offset that Kafka still has, where that is known."""
        if earliest is None:
            return self
        return replace(self, earliest=earliest, gone=max(0, min(earliest, self.position) - self.back_to))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRewind:
    """A rewind that can be carried out. It is published at most once."""

    command: Rewind
    target: VerifiedCheckpoint
    ledger: Ledger
    """The one that the rewind leads to, under the number UNPUBLISHED until the rewind is published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindPlan:
    """What a rewind would do."""

    prepared: PreparedRewind
    partitions: Mapping[Partition, Replay]
    history: Mapping[Partition, PartitionAccount]
    """What the target has learnt, set aside and skipped."""
    orders: Interventions
    """All interventions, this rewind included."""
    event_span: EventSpan
    """The event times of what the target has learnt."""
    why: str | None = None
    """Why the target is the best; None where it was not looked for as the best."""

    @property
    def to(self) -> Manifest:
        """The target."""
        return self.prepared.target.manifest

    @property
    def replayed(self) -> int:
        """Offsets that would be read again."""
        return sum(replay.replayed for replay in self.partitions.values())

    @property
    def skipped(self) -> int:
        """Offsets on the way that would be skipped."""
        return sum(replay.skipped for replay in self.partitions.values())

    @property
    def gone(self) -> int | None:
        """Offsets on the way that Kafka has no more; None where that is not known of a partition."""
        counts = [replay.gone for replay in self.partitions.values() if replay.gone is not None]
        return sum(counts) if len(counts) == len(self.partitions) else None

    def with_earliest(self, earliest: Mapping[Partition, int] | None) -> "RewindPlan":
        """Return the same plan, given the first offsets that Kafka still has; None where it did not answer."""
        first = earliest or {}
        partitions = {
            partition: replay.with_earliest(first.get(partition)) for partition, replay in self.partitions.items()
        }
        return replace(self, partitions=partitions)

    def advice(self, policy: OutOfRange) -> str | None:
        """Say what to do where Kafka has removed some of what would be read again; None where it has all of it."""
        gone = [
            f"{replay.back_to}..{replay.back_to + replay.gone - 1} of {partition}"
            for partition, replay in self.partitions.items()
            if replay.gone
        ]
        if not gone:
            return None
        what = f"offsets {', '.join(gone)} are gone by retention"
        if policy == "earliest":
            return f"{what}, and would count as lost; a newer checkpoint would lose fewer"
        return (
            f"{what}, so the learning would end there: go back to a newer checkpoint, or set kafka.out_of_range: "
            "earliest to go on without them and count them as lost"
        )

    def refuse_loss(self, policy: OutOfRange) -> None:
        """Raise LossyRewindError where the rewind would lose records and `kafka.out_of_range` does not allow it."""
        if self.gone and policy == "fail":
            raise LossyRewindError(f"this would lose records: {self.advice(policy)}")


def plan_rewind(store: CheckpointStore, request: RewindRequest, present: Present) -> RewindPlan:
    """Find out what a rewind would do, without changing anything. Raises where it cannot be carried out.

    Kafka is not asked: `RewindPlan.with_earliest` takes what it answers.
    """
    found = find(store, request.to)
    target = found.checkpoint
    prepared = prepare_rewind(target, request.command(target.manifest.number), present.orders)
    statistics, skips = prepared.ledger.statistics(), prepared.ledger.skips
    partitions = {}
    for partition, back_to in prepared.ledger.positions().items():
        position = present.positions.get(partition, back_to)
        skipped = sum(skip.overlap(back_to, position) for skip in skips if skip.partition == partition)
        replayed = max(0, position - back_to) - skipped
        partitions[partition] = Replay(position=position, back_to=back_to, replayed=replayed, skipped=skipped)
    return RewindPlan(
        prepared=prepared,
        partitions=partitions,
        history=statistics.partitions,
        orders=statistics.orders,
        event_span=statistics.event_span,
        why=found.why,
    )


def prepare_rewind(target: VerifiedCheckpoint, command: Rewind, orders: Interventions) -> PreparedRewind:
    """Make the ledger that a rewind leads to: the target's under all interventions, this one included.

    `orders` are all interventions up to now. Raises where the rewind cannot be carried out; changes nothing on disk.
    """
    ledger = Ledger()
    ledger.restore(target.parts[NAME])
    ledger.follow(orders.since(ledger.orders).without(command.unskip, UNPUBLISHED))
    known, beside = ledger.positions(), label_partitions(target.parts)
    for skip in command.skips:
        if skip.partition not in known and skip.partition not in beside:
            raise ConfigError(
                f"skip: {skip.partition} is no partition of checkpoint {command.to}; it has "
                f"{', '.join(map(str, [*known, *beside])) or 'none'}"
            )
        ordered = replace(skip, order=f"rewind-{UNPUBLISHED}", number=UNPUBLISHED, by=command.by)
        if skip.partition in known:
            ledger.skip(ordered)
        else:
            ledger.skip_beside(ordered)
    rewound = Rewound(number=UNPUBLISHED, to=command.to, by=command.by, why=command.note)
    ledger.follow(replace(ledger.orders, rewound=rewound))
    return PreparedRewind(command=command, target=target, ledger=ledger)


def label_partitions(parts: Mapping[str, PartState]) -> list[Partition]:
    """Return the partitions of labels that come later, of which a checkpoint knows what was read."""
    about = parts[LABELS].facts.get(LABELS, {}) if LABELS in parts else {}
    return sorted(map(Partition.parse, about.get("partitions", {})))


def publish_rewind(
    store: CheckpointStore,
    prepared: PreparedRewind,
    *,
    incarnation: int,
    provenance: Mapping[str, Any] | None = None,
) -> Manifest:
    """Publish a rewind: a process that starts afterwards, or restores the checkpoint, is on the new timeline.

    Without a provenance the target's stands, because nothing else has been learnt since.
    """
    command, target, ledger = prepared.command, prepared.target, prepared.ledger
    # The ledger of the target has an older incarnation, under which late blocks would count as present ones.
    ledger.raise_incarnation(incarnation)

    # Skips are named after the number of the rewind, which is known only while it is published.
    def under_its_number(number: int) -> dict[str, PartState]:
        ledger.follow(ledger.orders.published_as(number))
        return {NAME: ledger.snapshot()}

    # Asked for once the rewind has its number.
    def entry() -> JournalEntry:
        return JournalEntry(ledger=ledger.snapshot().facts, orders=ledger.orders.facts())

    order = SaveRequest(
        reason=SaveReason.SKIP if command.skips else SaveReason.REWIND,
        parent=command.to,
        step=target.manifest.step,
        incarnation=ledger.incarnation,
        positions=ledger.positions(),
        ordered_by=command.by,
        note=command.note,
        provenance=provenance or {},
        journal=entry,
    )
    manifest = store.publish_linked(target, under_its_number, order)
    facts = {"to": command.to, "number": manifest.number, "by": command.by, "reason": command.note}
    log.info("rewound to checkpoint %d", command.to, extra=facts)
    return manifest


def present_on_disk(store: CheckpointStore) -> Present:
    """Read the present state from the folder, for a rewind while no trainer runs.

    The newest checkpoint that verifies counts, as for a start. Where none verifies, the newest whose manifest can be
    read does: a rewind is the way out of a folder whose newest checkpoints are damaged.
    """
    try:
        last = store.newest()
    except AllCorruptError:
        looks = (look for look in store.listing() if look.condition is not Condition.FENCED)
        last = next((look.manifest for look in looks if look.manifest is not None), None)
    if last is None:
        return Present(orders=_orders_on_disk(store))
    positions = {Partition.parse(name): offset for name, offset in last.positions.items()}
    return Present(positions=positions, orders=_orders_on_disk(store), incarnation=last.incarnation)


def _orders_on_disk(store: CheckpointStore) -> Interventions:
    """Return the interventions in the newest ledger that can be read: it holds all that were given before it."""
    for look in store.listing():
        if look.number is not None and look.condition is not Condition.FENCED:
            with suppress(CorruptError):
                return ledger_of(store, look.number).orders
    return Interventions()
