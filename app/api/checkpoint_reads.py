"""Checkpoints as they lie on disk, read off the loop: a thread of its own, one look at a time.

Owns no state but a store that only reads, so it answers from the first moment on, and after a failure too. More than
one request wait for each other, but for none that verifies, nor for an order that is planned; what the threads take is
charged to the budget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio

from app.api.offload import Charge, run_on_thread
from app.api.verification import VerificationQueue
from app.monitoring.models import Checkpoint, CheckpointInFull, OtherFolder
from training.checkpoints.fencing import Terms
from training.checkpoints.folder import Folder
from training.checkpoints.inspection import Condition, Inspection, inspect
from training.checkpoints.manifest import Manifest
from training.checkpoints.store import CheckpointStore
from training.errors import MissingCheckpointError
from training.history.lineage import CheckpointLineage, lineage_of
from training.history.rewind import Present, RewindPlan, plan_rewind
from training.history.rewind_request import RewindRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is in the folder."""

    checkpoints: list[Checkpoint]
    """The newest first."""
    others: list[OtherFolder]


class CheckpointReader:
    """Reads the folder of one name."""

    def __init__(self, folder: Folder, charge: Charge) -> None:
        self._folder, self._charge = folder, charge
        self._store = CheckpointStore(folder)
        self._looks, self._plans = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)
        self._verifying = VerificationQueue()

    @property
    def profiles(self) -> Path:
        """Where profiles lie, beside the checkpoints."""
        return self._folder.root / "profiles"

    async def listing(self) -> Listing:
        """Everything that is there, by its manifest and the sizes of its files."""
        return await self._off_the_loop(self._list)

    async def one(self, number: int, *, verify: bool) -> CheckpointLineage:
        """One checkpoint and what is behind it; `verify` reads and hashes all of it."""
        if not verify:
            return await self._off_the_loop(lambda: lineage_of(self._store, self._look(number, deep=False)))
        found = await self._verifying.run(lambda: self._look(number, deep=True))
        return await self._off_the_loop(lambda: lineage_of(self._store, found))

    async def plan(self, request: RewindRequest, present: Present) -> RewindPlan:
        """Find out what a rewind would do; raises where it cannot be carried out."""
        return await run_on_thread(partial(plan_rewind, self._store, request, present), self._plans, self._charge)

    async def _off_the_loop(self, read: Callable[[], T]) -> T:
        return await run_on_thread(read, self._looks, self._charge)

    def _list(self) -> Listing:
        found = [one for one in self._store.listing() if not self._vanished(one)]
        return Listing(
            checkpoints=[_brief(one) for one in found if one.number is not None],
            others=[OtherFolder(name=_text(one.name), condition=one.condition) for one in found if one.number is None],
        )

    def _look(self, number: int, *, deep: bool) -> Inspection:
        if number in self._folder.numbers():
            found = inspect(self._folder, number, Terms.read(self._folder), deep=deep)
            if not self._vanished(found):
                return found
        there = ", ".join(map(str, self._folder.numbers()[-5:])) or "none"
        raise MissingCheckpointError(f"no checkpoint has the number {number}; the newest there are: {there}")

    def _vanished(self, found: Inspection) -> bool:
        """Whether it was pruned while it was looked at: then it is not corrupt, it is gone."""
        return found.condition is Condition.CORRUPT and not (self._folder.checkpoints / found.name).exists()


def in_full(found: Inspection) -> CheckpointInFull:
    """All that is known of it."""
    manifest = found.manifest
    fields: dict[str, Any] = _fields(found)
    if manifest is not None:
        fields |= {
            "ancestors": list(manifest.ancestors),
            "files": {name: {"bytes": facts.size, "sha256": facts.sha256} for name, facts in manifest.files.items()},
            "positions": dict(manifest.positions),
            "metrics": dict(manifest.metrics),
            "provenance": dict(manifest.provenance),
        }
    return CheckpointInFull(**fields, verified=found.verified)


def just_published(manifest: Manifest) -> CheckpointInFull:
    """One that has become durable this moment."""
    name = f"{manifest.number:010d}"
    return in_full(Inspection(name=name, condition=Condition.GOOD, number=manifest.number, manifest=manifest))


def _brief(found: Inspection) -> Checkpoint:
    return Checkpoint(**_fields(found))


def _fields(found: Inspection) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "number": found.number,
        "condition": found.condition.value,
        "complaints": [_text(problem) for problem in found.problems] or None,
    }
    if found.lineage is not None:
        fields |= {"parent": found.lineage.parent, "term": found.lineage.term}
    if (manifest := found.manifest) is not None:
        own = ("parent", "term", "incarnation", "step", "reason", "ordered_by", "note", "created_at")
        fields |= {name: getattr(manifest, name) for name in own} | {"bytes": manifest.size}
    return fields


def _text(name: str) -> str:
    """A name on disk may hold bytes that are no text."""
    return name.encode("utf-8", "replace").decode()
