"""Where a checkpoint comes from: its manifest, the outcome of every offset from its ledger, and the chain before it.

Reads only, with or without a trainer; TensorFlow is not needed for it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar

from pydantic import ConfigDict

from millrace.consumers.metric import SHOWN
from millrace.consumers.records import Partition
from millrace.training.checkpoints.inspection import Condition, Inspection
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import CorruptError, MissingCheckpointError
from millrace.training.ledger.account import PartitionAccount
from millrace.training.ledger.interventions import Interventions
from millrace.training.ledger.ledger import NAME, EventSpan, Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Checkpoints in a row that were made for the same reason, by the same code and settings."""

    __pydantic_config__: ClassVar[ConfigDict] = SHOWN

    first: int
    """The nearest of them."""
    last: int
    """The one furthest back."""
    count: int
    """How many of them the chain knows; others between them were pruned before."""
    reason: str | None = None
    """Left out, with all that follows, if they are not on disk or cannot be read."""
    ordered_by: str | None = None
    note: str | None = None
    config_sha256: str | None = None
    model_sha256: str | None = None
    version: str | None = None
    """Of millrace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLineage:
    """All that is known of one checkpoint."""

    found: Inspection
    partitions: Mapping[Partition, PartitionAccount]
    """The outcome of the offsets; empty where the checkpoint may not be read."""
    orders: Interventions
    """The skipped ranges, and the last rewind."""
    event_span: EventSpan
    """The event times of what was learnt."""
    chain: tuple[Link, ...]
    """Its parents, nearest first, as far as is known; the last is the beginning."""


def ledger_of(store: CheckpointStore, number: int) -> Ledger:
    """Load the ledger of a checkpoint; raises where it may not be loaded."""
    ledger = Ledger()
    ledger.restore(store.load(number, only={NAME})[NAME])
    return ledger


def lineage_of(store: CheckpointStore, found: Inspection) -> CheckpointLineage:
    """Return the lineage of an inspected checkpoint; of a damaged one, as far as it can be read."""
    ledger, known = Ledger(), False
    if found.condition is Condition.GOOD and found.number is not None:
        try:
            ledger, known = ledger_of(store, found.number), True
        except CorruptError as error:
            found = replace(found, condition=Condition.CORRUPT, problems=(*found.problems, str(error)))
    statistics = ledger.statistics()
    return CheckpointLineage(
        found=found,
        partitions=statistics.partitions,
        orders=ledger.orders,
        event_span=statistics.event_span if known else EventSpan(known=False),
        chain=() if found.manifest is None else tuple(_chain(store, found.manifest)),
    )


def _chain(store: CheckpointStore, manifest: Manifest) -> Iterator[Link]:
    links = (_link(store, number) for number in manifest.ancestors)
    # Every link has numbers of its own; without them, links of one reason and code are equal.
    for _, run in groupby(links, key=lambda link: replace(link, first=0, last=0)):
        row = list(run)
        yield replace(row[0], last=row[-1].last, count=len(row))


def _link(store: CheckpointStore, number: int) -> Link:
    manifest = None
    with suppress(CorruptError, MissingCheckpointError):  # damaged, or pruned since
        manifest = store.manifest(number)
    made: Mapping[str, Any] = {} if manifest is None else manifest.provenance
    return Link(
        first=number,
        last=number,
        count=1,
        reason=None if manifest is None else manifest.reason,
        ordered_by=None if manifest is None else manifest.ordered_by,
        note=None if manifest is None else manifest.note,
        config_sha256=made.get("config_sha256"),
        model_sha256=made.get("model_sha256"),
        version=made.get("millrace"),
    )
