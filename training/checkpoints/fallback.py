"""Which checkpoint to resume from: the newest, or else the nearest of its ancestors that verifies.

Owns the fallback; runs on any thread; changes nothing on disk.

The highest number that is not fenced is the present timeline's newest. When it does not verify, the fallback follows
the parents and never takes number - 1, which may lie on a timeline that a rewind has abandoned. A sound manifest names
all ancestors, so pruned ones are stepped over. An unreadable manifest is replaced by the empty file that names the
parent. Where both are gone, or that parent is not on disk, the timeline is unknown: then nothing is guessed, and the
error says how to choose a checkpoint.
"""

import logging
from collections.abc import Callable, Collection

from millrace.consumers.suggested_command import suggested_command
from millrace.training.checkpoints.fencing import Terms
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.inspection import Condition, Inspection
from millrace.training.checkpoints.manifest import Manifest, SaveReason
from millrace.training.errors import AllCorruptError, NewerFormatError

log = logging.getLogger(__name__)
Look = Callable[[int], Inspection]
_INTERVENTIONS = frozenset({SaveReason.REWIND, SaveReason.SKIP})


def newest_verified(folder: Folder, terms: Terms, look: Look) -> Manifest | None:
    """Return the manifest to resume from, all of its files hashed; None where nothing was ever published."""
    numbers = folder.numbers()
    found = _newest_unfenced(numbers, look)
    if found is None:
        # Lost checkpoints, or a volume that is not mounted, must not lead to a silent start with new weights.
        if not numbers and terms.published >= 0:
            raise AllCorruptError(
                f"{folder.root} holds no checkpoint, though number {terms.published} was published: bring the "
                f"checkpoints back, or start afresh by an explicit order (`{suggested_command('run', '--start-over')}`)"
            )
        return None
    way: list[int] = []
    while not found.verified:
        if found.condition is Condition.NEWER:
            # Falling back past it would undo what a later version has learnt.
            raise NewerFormatError(found.problems[0])
        log.error("checkpoint %s is %s: %s", found.name, found.condition, "; ".join(found.problems))
        if found.manifest is not None and found.manifest.reason in _INTERVENTIONS:
            log.error(
                "checkpoint %s was a %s: what it ordered must be ordered again", found.name, found.manifest.reason
            )
        way = _way_back(found, way, numbers)
        if not way:
            raise AllCorruptError(_all_corrupt(folder, numbers, look, found))
        log.warning("falling back from checkpoint %s to %d, its ancestor", found.name, way[0])
        found = look(way.pop(0))
    return found.manifest


def _way_back(found: Inspection, way: list[int], numbers: Collection[int]) -> list[int]:
    """Return the ancestors to try, nearest first: from its manifest, a descendant's, or the file that names one."""
    if found.manifest is not None:
        return [number for number in found.manifest.ancestors if number in numbers]
    if way:
        return way
    parent = found.lineage.parent if found.lineage is not None else None
    return [parent] if parent is not None and parent in numbers else []


def _newest_unfenced(numbers: list[int], look: Look) -> Inspection | None:
    # A generator, because each look hashes a whole checkpoint and the first is usually the one.
    looks = (look(number) for number in reversed(numbers))
    return next((found for found in looks if found.condition is not Condition.FENCED), None)


def _all_corrupt(folder: Folder, numbers: list[int], look: Look, last: Inspection) -> str:
    others = [str(number) for number in numbers if look(number).verified]
    if others:
        listed = ", ".join(others)
        rewind = suggested_command("rewind", "--to", others[-1])
        way_out = f"{listed} verify, yet no order leads there: choose one with `{rewind}`"
    else:
        start_over = suggested_command("run", "--start-over")
        way_out = f"bring one back from a copy, or start afresh by an explicit order (`{start_over}`)"
    return (
        f"no checkpoint in {folder.checkpoints} that was last ordered verifies (the last one tried, {last.name}: "
        f"{last.problems[0]}): {way_out}"
    )
