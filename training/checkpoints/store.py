"""The store: checkpoints on disk, published in order, verified before anything is loaded, pruned by policy.

Owns the `checkpoints` folder of one name. Publishing and pruning need the folder's lease: saves run on the checkpoint
writer's thread, a rewind on the trainer's, one at a time. Reading needs no lease and runs on any thread. A full disk
fails a save and nothing else. The store holds nothing open, so it needs no closing.

Numbers only grow: the next is one more than the highest that is on disk, of any condition, or that a term has recorded.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from threading import Lock

from millrace.consumers.errors import ConfigError, DataLossError
from millrace.consumers.failpoints import failpoint
from millrace.training.checkpoints.fencing import Terms
from millrace.training.checkpoints.files import link_durably
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.inspection import Condition, Inspection, inspect, newest_verified
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.checkpoints.manifest import Manifest, SaveRequest, read_manifest
from millrace.training.checkpoints.part_files import VerifiedCheckpoint, part_sources, read_checkpoint, read_parts
from millrace.training.checkpoints.parts import PartState
from millrace.training.checkpoints.pins import Pin, Pins
from millrace.training.checkpoints.policies import KeepLast, KeepPolicy
from millrace.training.checkpoints.pruning import SLACK_BYTES, Pruner
from millrace.training.checkpoints.publication import (
    FileSource,
    SaveGates,
    UnpublishedCheckpoint,
    publish_draft,
    wall_clock,
)
from millrace.training.errors import (
    CheckpointError,
    CorruptError,
    MissingCheckpointError,
    NewerFormatError,
    NoRoomError,
)

log = logging.getLogger(__name__)


_TORN = "torn, unless its writer is still working on it"
Replaced = Mapping[str, PartState] | Callable[[int], Mapping[str, PartState]]


def _never_cancel() -> None:
    """Let the save pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What the store keeps, and what it calls around a save."""

    keep: KeepPolicy = field(default_factory=lambda: KeepLast(5))
    before_manifest: Callable[[SaveRequest], None] = lambda _request: None
    """Returns when the dead letters before the request's positions are acknowledged; CheckpointError fails the save."""
    before_publishing: Callable[[SaveRequest, Manifest], None] = lambda _request, _manifest: None
    """Called with the manifest of each checkpoint right before it gets its number; what it raises fails the save."""
    on_durable: Callable[[Manifest], None] = lambda _manifest: None
    """Called with the manifest of each checkpoint that is durable: its positions may be committed."""
    now: Callable[[], datetime] = wall_clock


class CheckpointStore:
    """All checkpoints of one name."""

    def __init__(self, folder: Folder, writer: FolderLease | None = None, options: StoreOptions | None = None) -> None:
        self.folder = folder
        self._writer = writer
        self._options = options or StoreOptions()
        # A rewind publishes on the trainer's thread, while the writer's thread may still be ending a cancelled save.
        self._publishing = Lock()
        self._verified: dict[int, Manifest] = {}
        self._pruner = Pruner(
            folder=folder, keep=self._options.keep, verified=self._verified, look=self._look, removed=self._forget
        )
        if writer is not None:
            self._pruner.remove_leftovers(writer)

    def publish(
        self,
        request: SaveRequest,
        parts: Mapping[str, PartState],
        *,
        start_over: bool = False,
        gate: Callable[[], None] = _never_cancel,
    ) -> Manifest:
        """Write a checkpoint, and return when it is durable.

        `request.parent` is None for a beginning, which needs `start_over` where checkpoints exist. `gate` is called
        last before the manifest; what it raises ends the save.
        """
        with self._publishing:
            if request.parent is None and not start_over:
                terms = Terms.read(self.folder)
                looks = (inspect(self.folder, number, terms, deep=False) for number in self.folder.numbers())
                # What is fenced is never loaded, so it is nothing to resume from.
                if any(look.condition is not Condition.FENCED for look in looks):
                    raise DataLossError(
                        f"{self.folder.checkpoints} holds checkpoints, and a new beginning would forget what they have "
                        "learnt: resume from the newest, or ask for a new beginning explicitly"
                    )
            return self._publish(request, part_sources(parts), _bytes(parts), gate)

    def publish_linked(
        self,
        target: VerifiedCheckpoint,
        replaced: Replaced,
        request: SaveRequest,
        *,
        gate: Callable[[], None] = _never_cancel,
    ) -> Manifest:
        """Publish an older checkpoint again as a child of itself: some parts replaced, the others linked.

        This is how a rewind or a skip is published. `replaced` may be a function that returns the parts, given the
        number that they are published as. The bytes of the target are not read again: its manifest and the sizes of
        its files are, so that a target which was pruned, fenced or cut short since it was verified is refused.
        """
        with self._publishing:
            number = target.manifest.number
            if self._loadable(number) != target.manifest:
                raise CorruptError(f"checkpoint {number} has changed since it was verified: give the command again")
            self._verified[number] = target.manifest  # pruning need not read it once more
            parts = replaced(self._next_number()) if callable(replaced) else replaced
            folder = self.folder.checkpoint(number)
            links = {
                name: partial(link_durably, folder / name, facts)
                for name, facts in target.manifest.files.items()
                if name.partition(".")[0] not in parts
            }
            files: dict[str, FileSource] = {**links, **part_sources(parts)}
            # What the request does not state about the state is the target's.
            child = replace(
                request,
                parent=target.manifest.number,
                provenance=request.provenance or target.manifest.provenance,
                metrics=request.metrics or target.manifest.metrics,
                measured=request.measured or target.manifest.measured,
                golden=request.golden or target.manifest.golden,
            )
            return self._publish(child, files, _bytes(parts), gate)

    def newest(self) -> Manifest | None:
        """Return the checkpoint to resume from, all of its bytes verified; None where nothing was ever published.

        Falls back along the parents and logs each step. Raises AllCorruptError where no ancestor verifies, and
        NewerFormatError where a later version wrote the checkpoint.
        """
        while True:
            terms = Terms.read(self.folder)
            try:
                return newest_verified(self.folder, terms, partial(self._look_while_there, terms=terms))
            except MissingCheckpointError:
                log.info("looking for the newest checkpoint again: one was pruned while it was read")

    def verify(self, number: int) -> Inspection:
        """Read and hash all files of one checkpoint, and return the verdict."""
        return self._look_while_there(number, Terms.read(self.folder))

    def look(self, number: int) -> Inspection:
        """Inspect one checkpoint by its manifest and the sizes of its files."""
        self._require(number)
        found = inspect(self.folder, number, Terms.read(self.folder), deep=False)
        self._require(number)
        return found

    def manifest(self, number: int) -> Manifest:
        """Return the manifest of one checkpoint; its other files are not inspected."""
        with self._there(number):
            return read_manifest(self.folder.checkpoint(number), number)

    def load(self, number: int, only: Collection[str] | None = None) -> dict[str, PartState]:
        """Return the parts of one checkpoint, all or some, out of the very bytes that were verified.

        Raises for a fenced checkpoint, and for one that is damaged as far as it was read.
        """
        with self._there(number):
            return read_parts(self.folder.checkpoint(number), self._loadable(number), only)

    def load_verified(self, number: int, keep: Collection[str] | None = None) -> VerifiedCheckpoint:
        """Read and hash every file of one checkpoint once, and return the parts named in `keep`, or all of them.

        The parts come out of the very bytes that were hashed. Raises where the checkpoint may not be loaded.
        """
        manifest = self._loadable(number)
        try:
            with self._there(number):
                checkpoint = read_checkpoint(self.folder.checkpoint(number), manifest, keep)
        except CorruptError as error:
            self._verified.pop(number, None)
            raise CorruptError(f"checkpoint {number} is {Condition.CORRUPT}: {error}") from error
        self._verified[number] = manifest
        return checkpoint

    def listing(self, *, deep: bool = False) -> list[Inspection]:
        """Inspect everything in the folder. Only a deep listing reads the contents of all files.

        The checkpoints come first, the greatest number first; then what is half written, half removed, or unknown.
        """
        terms = Terms.read(self.folder)
        looks = [inspect(self.folder, number, terms, deep=deep) for number in reversed(self.folder.numbers())]
        numbered = [look for look in looks if (self.folder.checkpoints / look.name).exists()]  # not pruned meanwhile
        temporary = [
            Inspection(name=path.name, condition=Condition.TEMPORARY, problems=(_TORN,))
            for path, _ in self.folder.temporaries()
        ]
        return numbered + temporary + [Inspection(name=n, condition=Condition.UNKNOWN) for n in self.folder.unknown()]

    def pin(self, number: int, by: str) -> Pin:
        """Keep a checkpoint whatever the policy says, until it is unpinned; needs no lease. Durable on return."""
        self._loadable(number)
        return Pins(self.folder).pin(number, by)

    def unpin(self, number: int, by: str | None = None) -> tuple[Pin, ...]:
        """Lift the pins of a checkpoint, or only this holder's; return what was lifted."""
        return Pins(self.folder).unpin(number, by)

    def room(self) -> tuple[int, int]:
        """Return how many bytes a save could have after pruning, and how many all checkpoints could have together."""
        return self._pruner.attainable_bytes(), self._pruner.free_bytes() + self._pruner.bytes_of_all()

    def no_room(self, state_bytes: int) -> NoRoomError:
        """Return the error of a save of a state of this size that finds no room, with what to do about it."""
        return self._pruner.no_room(state_bytes + SLACK_BYTES)

    def remove_some(self) -> bool:
        """Remove what may go next on a full volume; return whether anything was removed."""
        return self._pruner.remove_some(self._require_writer(), None)

    def require_room(self, state_bytes: int) -> None:
        """Make room for one checkpoint of a state of this size; NoRoomError where that cannot be done."""
        needed = state_bytes + SLACK_BYTES
        self._pruner.make_room(self._require_writer(), needed, None)
        if self._pruner.free_bytes() < needed:
            raise self._pruner.no_room(needed)

    def _publish(
        self, request: SaveRequest, files: Mapping[str, FileSource], state_bytes: int, gate: Callable[[], None]
    ) -> Manifest:
        writer = self._require_writer()
        try:
            writer.check()
            self._pruner.make_room(writer, state_bytes + SLACK_BYTES, request.parent)
            draft = UnpublishedCheckpoint(
                number=self._next_number(),
                request=request,
                ancestors=self._ancestors(request.parent),
                files=files,
                created=self._options.now(),
            )
        except CheckpointError:
            raise
        except (OSError, CorruptError) as error:
            # A record that is damaged stays so; one that the disk does not give now may be there at the next save.
            if isinstance(error, CorruptError) and not isinstance(error.__cause__, OSError):
                raise
            raise CheckpointError(f"{self.folder.root} cannot be read ({error}); the next save tries again") from error
        manifest = self._publish_with_room(writer, draft, state_bytes + SLACK_BYTES, gate)  # (1) to (4)
        self._verified[manifest.number] = manifest
        log.info("checkpoint %d is durable: step %d, %s", manifest.number, manifest.step, manifest.reason)
        try:  # (5)
            self._options.on_durable(manifest)
        except Exception:  # the checkpoint is durable, whatever its listener raises
            log.exception("checkpoint %d is durable, and what was to follow failed", manifest.number)
        failpoint("save.before_prune")
        try:
            self._pruner.prune(writer, manifest)  # (6)
        except (OSError, ConfigError, CorruptError) as error:
            log.warning("checkpoint %d is durable, and nothing was pruned after it: %s", manifest.number, error)
        return manifest

    def _publish_with_room(
        self, writer: FolderLease, draft: UnpublishedCheckpoint, needed: int, gate: Callable[[], None]
    ) -> Manifest:
        """Publish; where the volume is full, remove what may go and try again."""
        passed: list[bool] = []

        def note_passing() -> None:
            gate()
            passed.append(True)

        while True:
            try:
                options = self._options
                gates = SaveGates(
                    before_manifest=options.before_manifest,
                    passing=note_passing,
                    before_publishing=options.before_publishing,
                )
                return publish_draft(writer, draft, gates)
            except NoRoomError as error:
                # Whoever cancels a save after its gate waits for a rename only, so it is not written again then.
                if not self._pruner.remove_some(writer, draft.request.parent) or passed:
                    raise (self._pruner.no_room(needed) if self._pruner.free_bytes() < needed else error) from error

    def _next_number(self) -> int:
        terms = Terms.read(self.folder)
        return max([terms.published, terms.floor, *self.folder.numbers()]) + 1

    def _forget(self, number: int) -> None:
        self._verified.pop(number, None)

    def _look(self, number: int, terms: Terms) -> Inspection:
        found = inspect(self.folder, number, terms, deep=True)
        if found.verified and found.manifest is not None:
            self._verified[number] = found.manifest
        else:
            self._verified.pop(number, None)
        return found

    def _ancestors(self, parent: int | None) -> tuple[int, ...]:
        if parent is None:
            return ()
        present = set(self.folder.numbers())
        known = self._verified.get(parent) or self.manifest(parent)
        return (parent, *(number for number in known.ancestors if number in present))

    def _loadable(self, number: int) -> Manifest:
        """Return the manifest of a checkpoint that may be loaded, as far as its manifest and file sizes tell."""
        found = self.look(number)
        if found.condition is Condition.NEWER:
            raise NewerFormatError(found.problems[0])
        if found.manifest is None or found.condition is not Condition.GOOD:
            raise CorruptError(f"checkpoint {number} is {found.condition}: {'; '.join(found.problems)}")
        return found.manifest

    def _look_while_there(self, number: int, terms: Terms) -> Inspection:
        self._require(number)
        found = self._look(number, terms)
        self._require(number)
        return found

    @contextmanager
    def _there(self, number: int) -> Iterator[None]:
        """Read a checkpoint. One that a trainer prunes meanwhile is not corrupt but gone: MissingCheckpointError."""
        self._require(number)
        try:
            yield
        except (CorruptError, OSError):
            self._require(number)
            raise

    def _require(self, number: int) -> None:
        if number not in self.folder.numbers():
            there = ", ".join(map(str, self.folder.numbers()[-5:])) or "none"
            raise MissingCheckpointError(f"no checkpoint has the number {number}; the newest there are: {there}")

    def _require_writer(self) -> FolderLease:
        if self._writer is None:
            raise CheckpointError(f"{self.folder.root} was opened for reading only: acquire a Writer to publish")
        return self._writer


def _bytes(parts: Mapping[str, PartState]) -> int:
    """Return the bytes of all arrays."""
    return sum(array.nbytes for state in parts.values() for array in state.arrays.values())
