"""Read checkpoints from disk for the routes, and pin them, on threads.

Owns a store without the folder's lease, so it answers from the start of the service on, and after the trainer has
failed too. Listings and pins wait for each other, plans for each other, and verifications for each other, so that none
of the three kinds delays another. Verifications have a share of a core, on average.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio

from millrace.app.api.offload import run_on_thread
from millrace.app.api.problem_documents import ProblemError
from millrace.app.monitoring.checkpoint_models import Checkpoint, CheckpointInFull, OtherFolder, PinView
from millrace.consumers.suggested_command import suggested_command
from millrace.training.checkpoints.fencing import Terms
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.inspection import Condition, Inspection, inspect
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.pins import Pin, Pins
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import MissingCheckpointError
from millrace.training.history.lineage import CheckpointLineage, lineage_of
from millrace.training.history.rewind import Present, RewindPlan, plan_rewind
from millrace.training.history.rewind_request import RewindRequest
from millrace.training.history.rewind_target import best_good, newest_good

T = TypeVar("T")
MAX_VERIFICATIONS = 4
"""One that runs, and those that wait for it."""
_SHARE = 0.1
"""How much of a core verifications may take, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The content of a folder of checkpoints."""

    checkpoints: list[Checkpoint]
    """The newest first."""
    others: list[OtherFolder]
    best: int | None
    """The best on the present timeline; None if none counts."""


class CheckpointReader:
    """Reads the folder of one model."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._store = CheckpointStore(folder)
        self._reads, self._plans = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)
        self._verifications = VerificationQueue()

    @property
    def profiles(self) -> Path:
        """The folder of profiles, beside the checkpoints."""
        return self._folder.root / "profiles"

    async def listing(self) -> Listing:
        """Return everything in the folder, judged by manifests and file sizes alone."""

        def read() -> Listing:
            folders = [folder for folder in self._store.listing() if not self._was_pruned(folder)]
            return Listing(
                checkpoints=[Checkpoint(**_fields(folder)) for folder in folders if folder.number is not None],
                others=[
                    OtherFolder(name=_printable(folder.name), condition=folder.condition)
                    for folder in folders
                    if folder.number is None
                ],
                best=best_number(folders),
            )

        return await self._off_the_loop(read)

    async def read(self, number: int, *, verify: bool) -> CheckpointLineage:
        """Return one checkpoint with its ancestors; `verify` reads and hashes all of its files.

        Raises MissingCheckpointError if there is none of this number, ProblemError if too many verifications wait.
        """
        if not verify:
            return await self._off_the_loop(lambda: lineage_of(self._store, self._inspect(number, deep=False)))
        inspection = await self._verifications.run(lambda: self._inspect(number, deep=True))
        return await self._off_the_loop(lambda: lineage_of(self._store, inspection))

    async def named(self, name: Literal["latest", "best"]) -> int:
        """Return the number of the newest or the best checkpoint. Raises MissingCheckpointError if there is none."""
        choose = newest_good if name == "latest" else best_good
        return (await self._off_the_loop(lambda: choose(self._store.listing()))).number

    async def pin(self, number: int, by: str) -> list[PinView]:
        """Pin a checkpoint and return all of its pins. Raises MissingCheckpointError if there is none."""

        def pin() -> list[PinView]:
            self._store.pin(number, by)
            return pin_views(Pins(self._folder).of(number))

        return await self._off_the_loop(pin)

    async def unpin(self, number: int, by: str | None) -> list[PinView]:
        """Lift the pins of a checkpoint, or this holder's, and return those that are left."""

        def unpin() -> list[PinView]:
            self._store.unpin(number, by)
            return pin_views(Pins(self._folder).of(number))

        return await self._off_the_loop(unpin)

    async def plan(self, request: RewindRequest, present: Present) -> RewindPlan:
        """Return what a rewind would do. Raises MillraceError if it cannot be carried out."""
        return await run_on_thread(partial(plan_rewind, self._store, request, present), self._plans)

    async def _off_the_loop(self, read: Callable[[], T]) -> T:
        return await run_on_thread(read, self._reads)

    def _inspect(self, number: int, *, deep: bool) -> Inspection:
        if number in self._folder.numbers():
            inspection = inspect(self._folder, number, Terms.read(self._folder), deep=deep)
            if not self._was_pruned(inspection):
                return inspection
        newest = ", ".join(map(str, self._folder.numbers()[-5:])) or "none"
        raise MissingCheckpointError(f"no checkpoint has the number {number}; the newest there are: {newest}")

    def _was_pruned(self, inspection: Inspection) -> bool:
        """Return whether the checkpoint was removed during the inspection: then it looks corrupt, but is gone."""
        return inspection.condition is Condition.CORRUPT and not (self._folder.checkpoints / inspection.name).exists()


class VerificationQueue:
    """Reads and hashes whole checkpoints one after the other, with a rest after each.

    That takes a core and the disk for as long as a checkpoint is large, and any client may ask for it. So the next one
    waits until the average is a small share of a core. A few requests wait; more are refused. No result is kept: what
    was whole an hour ago may be damaged now. A verification that has begun is finished, even if its client has left.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limiter = anyio.CapacityLimiter(1)
        self._queue = asyncio.Lock()
        self._requests = 0
        self._rests_until = clock()

    async def run(self, read: Callable[[], T]) -> T:
        """Return what `read` returns, once it has had its turn. Raises ProblemError (503) if too many wait already."""
        if self._requests >= MAX_VERIFICATIONS:
            raise ProblemError(
                503,
                "Too Many Verifications",
                f"{MAX_VERIFICATIONS} checkpoints are being verified, or wait for it, already.",
                fix=f"Ask again later; `{suggested_command('checkpoints', 'verify')}` does it in a process of its own.",
                headers={"retry-after": "30"},
            )
        spent_s = 0.0

        def timed() -> T:
            nonlocal spent_s
            began = time.thread_time()
            try:
                return read()
            finally:
                spent_s = time.thread_time() - began

        self._requests += 1
        try:
            async with self._queue:
                await asyncio.sleep(max(0.0, self._rests_until - self._clock()))
                try:
                    return await run_on_thread(timed, self._limiter)
                finally:
                    self._rests_until = self._clock() + spent_s * (1 / _SHARE - 1)
        finally:
            self._requests -= 1


def best_number(looks: Sequence[Inspection]) -> int | None:
    """Return the number of the best checkpoint on the present timeline; None if none counts."""
    with suppress(MissingCheckpointError):
        return best_good(looks).number
    return None


def pin_views(pins: Sequence[Pin]) -> list[PinView]:
    """Return pins as they are answered."""
    return [PinView(by=pin.by, since=pin.since) for pin in pins]


def in_full(inspection: Inspection) -> CheckpointInFull:
    """Return all that is known of a checkpoint, as an answer."""
    manifest = inspection.manifest
    fields: dict[str, Any] = _fields(inspection)
    if manifest is not None:
        fields |= {
            **{name: getattr(manifest, name) for name in ("ancestors", "positions", "provenance")},
            "files": {name: {"bytes": facts.size, "sha256": facts.sha256} for name, facts in manifest.files.items()},
        }
    return CheckpointInFull(**fields, verified=inspection.verified)


def just_published(manifest: Manifest) -> CheckpointInFull:
    """Return a checkpoint that has just become durable, without reading it again."""
    name = f"{manifest.number:010d}"
    return in_full(Inspection(name=name, condition=Condition.GOOD, number=manifest.number, manifest=manifest))


def _fields(inspection: Inspection) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "number": inspection.number,
        "condition": inspection.condition.value,
        "pins": pin_views(inspection.pins) or None,
        "complaints": [_printable(problem) for problem in inspection.problems] or None,
    }
    if inspection.lineage is not None:
        fields |= {"parent": inspection.lineage.parent, "term": inspection.lineage.term}
    if (manifest := inspection.manifest) is not None:
        own = ("parent", "term", "incarnation", "step", "reason", "ordered_by", "note", "created_at")
        fields |= {name: getattr(manifest, name) for name in own} | {"bytes": manifest.size}
        fields |= {"metrics": manifest.metrics, "measured": manifest.measured, "golden": manifest.golden}
    return fields


def _printable(name: str) -> str:
    """Return the name as valid Unicode: a name on disk may hold any bytes."""
    return name.encode("utf-8", "replace").decode()
