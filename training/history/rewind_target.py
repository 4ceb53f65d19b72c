"""Which checkpoint a destination is, read and hashed once.

Reads the store, changes nothing. A number names a checkpoint on any timeline. A time or an offset is looked for on the
present timeline alone: the newest command's checkpoint, its parent, and so on. The newest that fits and verifies is
taken, so that the least is read again. `best` is the best of that timeline by the watched metric that verifies.

A time means event time: the checkpoint has learnt nothing from then or later. Where its history holds no event times
(an older version began it), the time at which it was written decides. An offset means that the partition's position
there is at most that; a checkpoint from before the partition joined fits as well.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from millrace.consumers.errors import ConfigError
from millrace.consumers.suggested_command import suggested_command
from millrace.pipelines.shaping.labels.rules import NAME as LABELS
from millrace.training.checkpoints.inspection import Condition, Inspection
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.part_files import VerifiedCheckpoint
from millrace.training.checkpoints.policies import best_first
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import CorruptError, MissingCheckpointError, NewerFormatError
from millrace.training.history.lineage import ledger_of
from millrace.training.history.rewind_request import Before, Best, Destination, Newest, NotPast, Numbered
from millrace.training.ledger.ledger import NAME

log = logging.getLogger(__name__)


POSITIONS_ALONE = frozenset({NAME, LABELS})
"""The parts that know partitions and offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTarget:
    """The checkpoint to go back to, read and hashed, with its ledger."""

    checkpoint: VerifiedCheckpoint
    why: str | None = None
    """Why it is the best, in words; None where it was not looked for as the best."""


def find(store: CheckpointStore, destination: Destination) -> FoundTarget:
    """Find and verify the checkpoint of a destination.

    Raises MissingCheckpointError where none on the timeline fits.
    """
    if isinstance(destination, Numbered):
        return FoundTarget(checkpoint=verified_target(store, destination.number, POSITIONS_ALONE))
    good = good_on_timeline(store.listing())
    best = best_first(good[::-1], good[0]) if good and isinstance(destination, Best) else []
    fits = _criterion(store, destination)
    for manifest in best if isinstance(destination, Best) else good:
        try:
            if fits(manifest):
                checkpoint = store.load_verified(manifest.number, POSITIONS_ALONE)
                return FoundTarget(checkpoint=checkpoint, why=_why_best(manifest, len(best)) if best else None)
        except (CorruptError, NewerFormatError, MissingCheckpointError) as error:  # damaged, or pruned meanwhile
            log.warning("checkpoint %d is skipped: %s", manifest.number, error)
    raise MissingCheckpointError(
        f"no checkpoint on the present timeline {destination}; there are "
        f"{', '.join(str(manifest.number) for manifest in good) or 'none'}: "
        f"`{suggested_command('checkpoints', 'list')}` tells what they are, and `--to` takes a number"
    )


def good_on_timeline(looks: Sequence[Inspection]) -> list[Manifest]:
    """Return the checkpoints of the present timeline that are good as far as was looked, the newest first."""
    along = timeline(looks)
    return [look.manifest for look in along if look.condition is Condition.GOOD and look.manifest is not None]


def newest_good(looks: Sequence[Inspection]) -> Manifest:
    """Return the newest of the present timeline; MissingCheckpointError where there is none."""
    good = good_on_timeline(looks)
    if not good:
        raise MissingCheckpointError("there are no checkpoints yet; a first start makes number 0")
    return good[0]


def best_good(looks: Sequence[Inspection]) -> Manifest:
    """Return the best of the present timeline by the watched metric; MissingCheckpointError where none counts."""
    good = good_on_timeline(looks)
    best = best_first(good[::-1], good[0]) if good else []
    if not best:
        raise MissingCheckpointError(f"no checkpoint on the present timeline {Best()} yet")
    return best[0]


def verified_target(store: CheckpointStore, number: int, keep: Collection[str] | None = None) -> VerifiedCheckpoint:
    """Read and hash the checkpoint to go back to, and return it with the parts named in `keep`, or all of them."""
    try:
        return store.load_verified(number, keep)
    except CorruptError as error:
        verify = suggested_command("checkpoints", "verify")
        raise CorruptError(f"{error}; choose another one, `{verify}` says which are good") from error


def timeline(listing: Sequence[Inspection]) -> Iterator[Inspection]:
    """Yield the newest checkpoint, then its ancestors as far as they are on disk, damaged ones included."""
    looks = {look.number: look for look in listing if look.number is not None}
    unfenced = [number for number, look in looks.items() if look.condition is not Condition.FENCED]
    look = looks[max(unfenced)] if unfenced else None
    while look is not None:
        yield look
        if look.manifest is not None:
            yield from (looks[number] for number in look.manifest.ancestors if number in looks)
            return
        parent = None if look.lineage is None else look.lineage.parent
        look = looks.get(parent) if parent is not None else None


def _why_best(manifest: Manifest, of: int) -> str:
    """Say by which metric a checkpoint is the best, and on how many records that was measured."""
    measured = manifest.measured
    assert measured is not None, "only what was measured can be the best"
    name = measured.watched
    guess = f", where guessing scores {measured.baseline[name]:.4g}" if name in measured.baseline else ""
    return (
        f"the best of {of} on the present timeline by {name} ({'higher' if measured.higher_is_better else 'lower'} is "
        f"better): {manifest.metrics[name]:.4g}{guess}, over {measured.records:,} records"
    )


def _criterion(store: CheckpointStore, destination: Before | NotPast | Newest | Best) -> Callable[[Manifest], bool]:
    if isinstance(destination, Newest | Best):
        return lambda _manifest: True
    if isinstance(destination, Before):
        return lambda manifest: _learnt_before(store, manifest, destination.time_ms)
    partition = str(destination.partition)
    known = {
        name for look in timeline(store.listing()) if look.manifest is not None for name in look.manifest.positions
    }
    if partition not in known:
        raise ConfigError(
            f"to: {partition} is no partition of this timeline; it has {', '.join(sorted(known)) or 'none'}"
        )
    return lambda manifest: manifest.positions.get(partition, 0) <= destination.offset


def _learnt_before(store: CheckpointStore, manifest: Manifest, time_ms: int) -> bool:
    span = ledger_of(store, manifest.number).statistics().event_span
    if not span.known:
        return manifest.created.timestamp() * 1000 < time_ms
    return span.newest_ms is None or span.newest_ms < time_ms
