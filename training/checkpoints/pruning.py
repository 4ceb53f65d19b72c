"""Pruning: which checkpoints may go, and making room on a volume that is full.

Owns the removal of checkpoints, for the writer of the folder; runs on the checkpoint writer's thread, and on the
trainer's at a start and in a rewind. After every save, what no policy keeps is removed. Where a save lacks room, this
may go too, in this order, until there is enough:

1. what dead writers left half written, the records of starts that count for nothing any more, and what no policy
   keeps any more;
2. the checkpoint to fall back to, if no policy keeps it, after every byte of the newest was read and verified again.

What stays is what `keep` asks for, what is pinned, the newest checkpoint that verifies, every beginning, and whatever
may not be judged (corrupt, fenced, newer, unknown). The pins are read before each removal, and again before its first
file goes (`pins` says why). The newest holds every command in its ledger, so none is forgotten with an older one.
"""

import logging
import os
import shutil
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from millrace.consumers.durable_files import sync_folder
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.failpoints import failpoint
from millrace.consumers.rounded import rounded_size
from millrace.consumers.suggested_command import suggested_command
from millrace.training.checkpoints.fencing import Terms
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.in_flight import deaths
from millrace.training.checkpoints.inspection import Condition, Inspection, inspect, newest_verified
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.pins import Pins, named
from millrace.training.checkpoints.policies import KeepPolicy
from millrace.training.errors import NoRoomError, PassedError

log = logging.getLogger(__name__)


SLACK_BYTES = 256 * 1024
"""Room for what a save holds beside its arrays: ledger, manifest, and rounding up to the blocks of the file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruner:
    """Removes checkpoints of one folder."""

    folder: Folder
    keep: KeepPolicy
    verified: Container[int]
    """The checkpoints that this process has verified or written."""
    look: Callable[[int, Terms], Inspection]
    """Reads and hashes all files of a checkpoint."""
    removed: Callable[[int], None]
    """Called with the number of each checkpoint that is removed."""

    def remove_leftovers(self, writer: FolderLease) -> bool:
        """Remove what writers that died or were passed left half done; return whether anything was removed."""
        # A greater term belongs to a writer that has passed this one and may be at work.
        left = [path for path, term in self.folder.temporaries() if term is None or term <= writer.term]
        left = [path for path in left if not self._bring_back(path)]
        for path in left:
            log.info("removing %s, left by a writer that ended in the middle of a save", path)
            shutil.rmtree(path, ignore_errors=True)
        return any(not path.exists() for path in left)

    def _bring_back(self, doomed: Path) -> bool:
        """Give a pinned checkpoint that a dead writer was removing its number back; return whether it has it."""
        pinned = [number for number in Pins(self.folder).numbers() if self.folder.removing(number) == doomed]
        if not pinned or self.folder.checkpoint(number := pinned[0]).exists():
            return False
        doomed.rename(self.folder.checkpoint(number))
        # The pin was acknowledged only if the checkpoint was seen whole after it.
        if inspect(self.folder, number, Terms.read(self.folder), deep=False).condition is Condition.CORRUPT:
            self.folder.checkpoint(number).rename(doomed)
            log.warning("checkpoint %d was pinned when it was half removed, and is gone", number)
            return False
        sync_folder(self.folder.checkpoints)
        log.info("checkpoint %d is back: it was pinned while it was being removed", number)
        return True

    def prune(self, writer: FolderLease, newest: Manifest) -> bool:
        """Remove what no policy keeps; return whether anything was removed.

        A failure leaves too many checkpoints, and the next save tries again.
        """
        terms = Terms.read(self.folder)
        good = self._good(terms)
        return self._remove_all_but(writer, good, self._needed(newest, good) | self._fallback(newest, good, terms))

    def make_room(self, writer: FolderLease, needed: int, parent: int | None) -> None:
        """Remove what may go until this many bytes are free, or nothing more may go.

        `parent` is the checkpoint that the next one will be a child of; it stays.
        """
        while self.free_bytes() < needed and self.remove_some(writer, parent):
            pass

    def remove_some(self, writer: FolderLease, parent: int | None) -> bool:
        """Remove what may go next on a full volume; return whether anything was removed."""
        try:
            return self.remove_leftovers(writer) or self._remove_some(writer, parent)
        except PassedError:
            raise
        except (MillraceError, OSError) as error:
            log.warning("nothing is pruned although the volume is full: %s", error)
            return False

    def _remove_some(self, writer: FolderLease, parent: int | None) -> bool:
        terms = Terms.read(self.folder)
        newest = newest_verified(self.folder, terms, lambda number: self.look(number, terms))
        if newest is None:
            return False
        # Remove what dead starts had in flight, unless they resumed from the newest checkpoint, as this one will.
        before = self.folder.started_terms()
        deaths(self.folder, newest.number, before_term=writer.term)
        if self.folder.started_terms() != before:
            return True
        good = self._good(terms)
        needed = self._needed(newest, good) | ({parent} if parent is not None else set())
        spared = needed | self._fallback(newest, good, terms)
        return self._remove_all_but(writer, good, spared) or self._remove_all_but(writer, good, needed)

    def free_bytes(self) -> int:
        """Return how many bytes this process may still write to the volume."""
        return shutil.disk_usage(self.folder.checkpoints).free

    def bytes_of_all(self) -> int:
        """Return the bytes of all checkpoints that are good as far as their manifests tell."""
        return self._bytes_of(self._good(Terms.read(self.folder)))

    def attainable_bytes(self) -> int:
        """Return how many bytes could be free for a save; nothing is removed, and only manifests are read."""
        good = self._good(Terms.read(self.folder))
        kept = self._needed(good[-1], good) if good else set()
        return self.free_bytes() + self._bytes_of(one for one in good if one.number not in kept)

    def no_room(self, needed: int) -> NoRoomError:
        """Return the error of a save that needs this many bytes, with what to do about it."""
        free = self.free_bytes()
        pins = Pins(self.folder).all()
        pinned = {pin.number for pin in pins}
        good = [
            manifest
            for manifest in self._good(Terms.read(self.folder))
            if manifest.parent is not None and manifest.number not in pinned
        ]
        lacking = max(needed - free, 1)
        ways = [f"make the volume larger, or remove other files from it (at least {rounded_size(lacking)})"]
        if (fitting := self._fitting(good, needed)) is not None and fitting < len(good):
            ways.insert(0, f"set checkpoints.keep so that it keeps no more than {fitting} (a start prunes first)")
        if pins:
            unpin = suggested_command("checkpoints", "unpin")
            ways.insert(0, f"lift pins by `{unpin} NUMBER`: pinned are {named(pins)}")
        beside = f", beside {len(good)} checkpoints that checkpoints.keep keeps" if good else ""
        return NoRoomError(
            f"a checkpoint needs {rounded_size(needed)}, and the volume of {self.folder.checkpoints} has "
            f"{rounded_size(free)} free{beside}: {'; or '.join(ways)}; or move checkpoints.path, with what is in it"
        )

    def _fitting(self, good: list[Manifest], needed: int) -> int | None:
        """Return how many checkpoints the volume holds beside one more; None where it does not hold a single one."""
        if not good:
            return None
        room = self.free_bytes() + self._bytes_of(good) - needed
        fitting = room // max(1, *(one.size for one in good))
        return fitting if fitting >= 1 else None

    def _bytes_of(self, manifests: Iterable[Manifest]) -> int:
        """Return the bytes of all files of these checkpoints; one with several names counts once."""
        sizes: dict[tuple[int, int], int] = {}
        for manifest in manifests:
            for entry in os.scandir(self.folder.checkpoint(manifest.number)):
                facts = entry.stat(follow_symlinks=False)
                sizes[facts.st_dev, facts.st_ino] = facts.st_size
        return sum(sizes.values())

    def _good(self, terms: Terms) -> list[Manifest]:
        looks = (inspect(self.folder, number, terms, deep=False) for number in self.folder.numbers())
        return [look.manifest for look in looks if look.condition is Condition.GOOD and look.manifest is not None]

    def _needed(self, newest: Manifest, good: list[Manifest]) -> set[int]:
        """Return what the policy keeps, what is pinned, the newest, and the beginnings."""
        beginnings = {manifest.number for manifest in good if manifest.parent is None}
        return self.keep.keep(good, newest) | Pins(self.folder).numbers() | beginnings | {newest.number}

    def _fallback(self, newest: Manifest, good: list[Manifest], terms: Terms) -> set[int]:
        """Return the nearest ancestor to fall back to."""
        present = {manifest.number for manifest in good}
        ancestors = (number for number in newest.ancestors if number in present)
        # Hashing reads a whole checkpoint, so an ancestor is not verified again at every save.
        return set(next(([n] for n in ancestors if n in self.verified or self.look(n, terms).verified), []))

    def _remove_all_but(self, writer: FolderLease, good: list[Manifest], kept: set[int]) -> bool:
        removed = False
        for manifest in good:
            if manifest.number not in kept:
                writer.check()  # a writer that was passed while it slept must not prune by an old view
                removed |= self._remove(manifest.number)
        return removed

    def _remove(self, number: int) -> bool:
        # Renamed, and the new name synced, before the first file goes: no folder with a number is ever half removed.
        doomed = self.folder.removing(number)
        try:
            if number in Pins(self.folder).numbers():
                return False
            failpoint("pins.before_rename")
            self.folder.checkpoint(number).rename(doomed)
            failpoint("pins.before_second_look")
            if self._pinned_meanwhile(number):
                doomed.rename(self.folder.checkpoint(number))
                log.info("checkpoint %d stays: it was pinned when it was to be removed", number)
                return False
            self.removed(number)
            sync_folder(self.folder.checkpoints)
            failpoint("prune.before_files")
            shutil.rmtree(doomed)
        except (OSError, ConfigError) as error:
            log.warning("checkpoint %d was not pruned: %s", number, error)
            return False
        return True

    def _pinned_meanwhile(self, number: int) -> bool:
        try:
            return number in Pins(self.folder).numbers()
        except (OSError, ConfigError) as error:
            log.warning("checkpoint %d was not pruned: %s", number, error)
            return True
