"""Inspecting one checkpoint: is it what was written, may it be loaded, where does it come from.

Owns the verdict on a single folder; runs on any thread; changes nothing on disk.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from millrace.consumers.durable_files import complaint
from millrace.training.checkpoints.fencing import Terms
from millrace.training.checkpoints.folder import Folder, Lineage
from millrace.training.checkpoints.manifest import FILE_NAME, Manifest, read_manifest
from millrace.training.checkpoints.pins import Pin, Pins
from millrace.training.errors import CorruptError, NewerFormatError


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
        """Whether it may be loaded."""
        return self.deep and self.condition is Condition.GOOD


def inspect(folder: Folder, number: int, terms: Terms, *, deep: bool) -> Inspection:
    """Inspect the checkpoint with this number. A deep inspection reads and hashes all of its files."""
    path = folder.checkpoint(number)
    manifest, lineage, problems = None, Lineage.read(path), []
    condition = Condition.GOOD
    try:
        manifest = read_manifest(path, number)
    except NewerFormatError as error:
        condition, problems = Condition.NEWER, [str(error)]
    except CorruptError as error:
        condition, problems = Condition.CORRUPT, [str(error)]
    if manifest is not None:
        problems = _problems(path, manifest, lineage, deep=deep)
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


def _problems(path: Path, manifest: Manifest, named: Lineage | None, *, deep: bool) -> list[str]:
    problems = []
    # The lineage is stored twice, so manifests that were swapped show here although their seals hold.
    if named != Lineage(manifest.parent, manifest.term):
        problems.append(f"the file that names its parent is missing, or says other than {FILE_NAME}")
    complaints = (complaint(path / name, facts, deep=deep) for name, facts in sorted(manifest.files.items()))
    return problems + [text for text in complaints if text is not None]
