"""Inspecting one checkpoint: is it what was written, may it be loaded, where does it come from.

Owns the verdict on a single folder; runs on any thread; changes nothing on disk.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum

from millrace.consumers.durable_files import complaint
from millrace.consumers.suggested_command import suggested_command
from millrace.training.checkpoints.fencing import Terms
from millrace.training.checkpoints.folder import Folder, Lineage
from millrace.training.checkpoints.manifest import FILE_NAME, Manifest, SaveReason, read_manifest
from millrace.training.checkpoints.pins import Pin, Pins
from millrace.training.errors import AllCorruptError, CorruptError, NewerFormatError

log = logging.getLogger(__name__)


class Condition(StrEnum):
    """What a folder among the checkpoints is."""

    GOOD = "good"
    """All that was read is what was written."""
    CORRUPT = "corrupt"
    """Something is not what was written. Never loaded, never pruned."""
    FENCED = "fenced"
    """Published by a writer after a later one had begun. Never loaded, never pruned."""
    NEWER = "newer"
    """Written by a later version of millrace. Never loaded, never pruned."""
    TEMPORARY = "temporary"
    """Half written or half removed: torn, unless its writer is still working on it."""
    UNKNOWN = "unknown"
    """Not millrace's. Left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was found under one name."""

    name: str
    condition: Condition
    number: int | None = None
    manifest: Manifest | None = None
    """None unless its seal holds and it is the manifest of this number."""
    lineage: Lineage | None = None
    """From the manifest, or else from the name of the empty file."""
    problems: tuple[str, ...] = field(default=())
    """What is wrong, one sentence each."""
    pins: tuple[Pin, ...] = ()
    """Who wants it to stay."""
    deep: bool = False
    """Whether the contents of all files were read and hashed, rather than only their sizes compared."""

    @property
    def verified(self) -> bool:
        return self.deep and self.condition is Condition.GOOD


def inspect(folder: Folder, number: int, terms: Terms, *, deep: bool) -> Inspection:
    """Inspect the checkpoint with this number. A deep inspection reads and hashes all of its files."""
    path = folder.checkpoint(number)
    manifest, lineage, problems = None, Lineage.read(path), list[str]()
    condition = Condition.GOOD
    try:
        manifest = read_manifest(path, number)
    except NewerFormatError as error:
        condition, problems = Condition.NEWER, [str(error)]
    except CorruptError as error:
        condition, problems = Condition.CORRUPT, [str(error)]
    if manifest is not None:
        # The lineage is stored twice, so manifests that were swapped show here although their seals hold.
        if lineage != Lineage(manifest.parent, manifest.term):
            problems.append(f"the file that names its parent is missing, or says other than {FILE_NAME}")
        for name, facts in sorted(manifest.files.items()):
            if (text := complaint(path / name, facts, deep=deep)) is not None:
                problems.append(text)
        lineage = Lineage(manifest.parent, manifest.term)
        condition = Condition.CORRUPT if problems else Condition.GOOD
    # Last, so that fenced wins over corrupt: what is fenced is on no timeline, so its damage must not stop a fallback.
    if lineage is not None and terms.fences(lineage.term, number):
        condition = Condition.FENCED
        problems = [f"term {lineage.term} published it after a greater term had begun", *problems]
    return Inspection(
        name=path.name,
        condition=condition,
        number=number,
        manifest=manifest,
        lineage=lineage,
        problems=tuple(problems),
        pins=Pins(folder).of(number),
        deep=deep,
    )


# Which checkpoint to resume from: the newest, or else the nearest of its ancestors that verifies.
#
# The highest number that is not fenced is the present timeline's newest. When it does not verify, the fallback follows
# the parents and never takes number - 1, which may lie on a timeline that a rewind has abandoned. A sound manifest
# names all ancestors, so pruned ones are stepped over. An unreadable manifest is replaced by the empty file that names
# the parent. If both are gone, or that parent is not on disk, the timeline is unknown: then nothing is guessed, and the
# error says how to choose a checkpoint.
Look = Callable[[int], Inspection]
_INTERVENTIONS = frozenset({SaveReason.REWIND, SaveReason.SKIP})


def newest_verified(folder: Folder, terms: Terms, look: Look) -> Manifest | None:
    """Return the manifest to resume from, all of its files hashed; None where nothing was ever published."""
    numbers = folder.numbers()
    # A generator, because each look hashes a whole checkpoint and the first is usually the one.
    looks = (look(number) for number in reversed(numbers))
    found = next((found for found in looks if found.condition is not Condition.FENCED), None)
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
