"""Which checkpoint a destination is, read and hashed once.

Reads the store, changes nothing. A number names a checkpoint on any timeline. A time or an offset is looked for on the
present timeline alone: the newest command's checkpoint, its parent, and so on. The newest that fits and verifies is
taken, so that the least is read again.

A time means event time: the checkpoint has learnt nothing from then or later. Where its history holds no event times
(an older version began it), the time at which it was written decides. An offset means that the partition's position
there is at most that; a checkpoint from before the partition joined fits as well.
"""

import logging
from collections.abc import Callable, Collection, Iterator

from consumers.errors import ConfigError
from consumers.suggested_command import suggested_command
from training.checkpoints.inspection import Condition, Inspection
from training.checkpoints.manifest import Manifest
from training.checkpoints.part_files import VerifiedCheckpoint
from training.checkpoints.store import CheckpointStore
from training.errors import CorruptError, MissingCheckpointError, NewerFormatError
from training.history.lineage import ledger_of
from training.history.rewind_request import Before, Destination, NotPast, Numbered
from training.ledger.ledger import NAME

log = logging.getLogger(__name__)
LEDGER_ALONE = frozenset({NAME})


def find(store: CheckpointStore, destination: Destination) -> VerifiedCheckpoint:
    """Find and verify the checkpoint of a destination, and return it with its ledger.

    Raises MissingCheckpointError where none on the timeline fits.
    """
    if isinstance(destination, Numbered):
        return verified_target(store, destination.number, LEDGER_ALONE)
    fits = _criterion(store, destination)
    tried: list[int] = []
    for look in timeline(store):
        if look.number is None or look.manifest is None or look.condition is not Condition.GOOD:
            continue
        tried.append(look.number)
        try:
            if fits(look.manifest):
                return store.load_verified(look.number, LEDGER_ALONE)
        except (CorruptError, NewerFormatError, MissingCheckpointError) as error:  # damaged, or pruned meanwhile
            log.warning("checkpoint %s is skipped: %s", look.name, error)
    raise MissingCheckpointError(
        f"no checkpoint on the present timeline {destination}; there are {', '.join(map(str, tried)) or 'none'}: "
        f"`{suggested_command('checkpoints', 'list')}` tells what they are, and `--to` takes a number"
    )


def verified_target(store: CheckpointStore, number: int, keep: Collection[str] | None = None) -> VerifiedCheckpoint:
    """Read and hash the checkpoint to go back to, and return it with the parts named in `keep`, or all of them."""
    try:
        return store.load_verified(number, keep)
    except CorruptError as error:
        verify = suggested_command("checkpoints", "verify")
        raise CorruptError(f"{error}; choose another one, `{verify}` says which are good") from error


def timeline(store: CheckpointStore) -> Iterator[Inspection]:
    """Yield the newest checkpoint, then its ancestors as far as they are on disk, damaged ones included."""
    looks = {look.number: look for look in store.listing() if look.number is not None}
    unfenced = [number for number, look in looks.items() if look.condition is not Condition.FENCED]
    look = looks[max(unfenced)] if unfenced else None
    while look is not None:
        yield look
        if look.manifest is not None:
            yield from (looks[number] for number in look.manifest.ancestors if number in looks)
            return
        parent = None if look.lineage is None else look.lineage.parent
        look = looks.get(parent) if parent is not None else None


def _criterion(store: CheckpointStore, destination: Before | NotPast) -> Callable[[Manifest], bool]:
    if isinstance(destination, Before):
        return lambda manifest: _learnt_before(store, manifest, destination.time_ms)
    partition = str(destination.partition)
    known = {name for look in timeline(store) if look.manifest is not None for name in look.manifest.positions}
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
