"""The mirror at work: copies what is durable in the background, and brings the newest checkpoint back at a start.

Owns the thread `mirror`. The checkpoint writer's thread only leaves the number of the newest durable checkpoint here;
nothing of the training or of a save waits, and whatever the store does, hanging included, is counted and reported and
changes nothing else. While a copy is under way the newest number replaces those before it, so a slow store gets fewer
checkpoints, each of them whole. What fails is tried again, after 1 s, then ever later up to a minute.

A start, on the trainer's thread: (1) take over the terms, (2) the folder's lock, (3) bring the newest checkpoint back
if the folder has none that is as new, (4) begin the term, (5) restore. While the mirror is away, a folder with
checkpoints of its own is enough; an empty one ends the start, as it does not show what was learnt.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from millrace.consumers.errors import MillraceError, UnreachableError, first_clause
from millrace.training.checkpoints.fencing import NOTHING
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.mirror.figures import MirrorFigures
from millrace.training.checkpoints.mirror.mirror import Mirror, mirror_name
from millrace.training.checkpoints.mirror.target import SETTING, target_at
from millrace.training.checkpoints.pins import Pins
from millrace.training.checkpoints.policies import KeepPolicy
from millrace.training.errors import PassedError

log = logging.getLogger(__name__)
FIRST_RETRY_S = 1.0
NUMBERS = 1_000_000
"""More than a volume has that its mirror lacks: one a second for 11 days."""
_LAST_RETRY_S = 60.0


class Mirroring:
    """The mirror of one trainer's checkpoints, or of none."""

    def __init__(self, place: Path | str | None, name: str, keep: KeepPolicy) -> None:
        """Do nothing where `place`, checkpoints.mirror, is None. `keep` says which copies stay."""
        self._place, self._name, self._keep = place, name, keep
        self._mirror: Mirror | None = None
        self._changed = threading.Condition()
        self._newest: Manifest | None = None
        """The newest durable checkpoint, until its copy is whole."""
        self._later: float | None = None
        """When the first checkpoint came that the copy under way leaves out."""
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._figures = MirrorFigures(place=f"{place}/{name}")

    def figures(self) -> MirrorFigures | None:
        """Return how the copies stand; None where there is no mirror."""
        return None if self._place is None else self._figures

    def pull_terms(self, folder: Folder) -> None:
        """Take over what the mirror says of terms, before the folder's lock is taken."""
        if self._place is not None:
            mirror = Mirror(target_at(self._place, self._name))
            if self._reached(folder, lambda: mirror.pull_terms(folder)):
                self._mirror = mirror

    def bring_back(self, writer: FolderLease, *, wanted: bool = True) -> int:
        """Copy the newest checkpoint of the mirror, if it is wanted, into a folder that has none that is as new.

        Return the number up to which none may be given again: the lost volume may have had newer checkpoints, whose
        numbers exports and people know. Nobody knows how many, so the numbers go on at the next million.
        """
        mirror, floor = self._mirror, NOTHING
        if mirror is None or not wanted:
            return floor

        def bring() -> None:
            nonlocal floor
            manifest = mirror.bring_back(writer)
            if manifest is not None:
                floor = (manifest.number // NUMBERS + 1) * NUMBERS - 1
                self._figures = replace(self._figures, resumed_from=manifest.number)
                log.warning(
                    "checkpoint %d is brought back from %s, as %s has none that is as new: what was learnt after step "
                    "%d and was not copied is learnt again",
                    manifest.number,
                    self._figures.place,
                    writer.folder.root,
                    manifest.step,
                )

        self._reached(writer.folder, bring)
        return floor

    def start(self, writer: FolderLease) -> None:
        """Start the thread of the holder of this folder, if there is a mirror; return at once."""
        if self._place is not None:
            mirror = self._mirror or Mirror(target_at(self._place, self._name))
            # A daemon, because a store that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._work, args=(mirror, writer), name="mirror", daemon=True)
            self._thread.start()

    def durable(self, manifest: Manifest) -> None:
        """Take the newest durable checkpoint; never waits."""
        if self._place is None:
            return
        with self._changed:
            self._newest, self._later = manifest, self._later or time.time()
            if self._figures.waiting_since is None:
                self._figures = replace(self._figures, waiting_since=self._later)
            self._changed.notify_all()

    def stop(self, within_s: float) -> None:
        """Have the newest checkpoint copied, within this time; then end the thread."""
        if self._thread is None:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(within_s)
        if self._newest is not None:
            log.warning(
                "checkpoint %d is not in %s at the end, only on the volume; the next start copies it",
                self._newest.number,
                self._figures.place,
            )

    def _reached(self, folder: Folder, work: Callable[[], None]) -> bool:
        """Do what asks the mirror; return whether it answers. If not, the folder must have checkpoints of its own."""
        try:
            work()
        except UnreachableError as error:
            away: Exception = error
        except MillraceError:
            raise
        except OSError as error:
            away = UnreachableError(f"{SETTING}: {self._figures.place} cannot be read: {error}")
        else:
            return True
        if not folder.numbers():
            raise UnreachableError(
                f"{first_clause(str(away))}. {folder.root} is empty, and only the mirror knows whether this name has "
                "learnt before: start again when it answers, or without checkpoints.mirror"
            ) from away
        log.warning("%s; the start goes by the checkpoints in %s", away, folder.root)
        return False

    def _work(self, mirror: Mirror, writer: FolderLease) -> None:
        """Claim the mirror for this term, then copy what is durable: the body of the thread."""
        claimed, retry_s = False, FIRST_RETRY_S
        while (manifest := self._next()) is not None:
            try:
                if not claimed:
                    mirror.look()
                    mirror.claim(writer)
                    claimed = True
                self._copy(mirror, writer, manifest)
            except PassedError as error:
                self._failed(manifest, error)
                return
            except Exception as error:  # noqa: BLE001 - nothing that goes wrong here may end the thread
                self._failed(manifest, error)
                with self._changed:
                    if self._stopping:
                        return
                    self._changed.wait_for(lambda: self._stopping, retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
            else:
                retry_s = FIRST_RETRY_S

    def _next(self) -> Manifest | None:
        """Wait for a checkpoint; None at a stop, once the newest is copied."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._stopping)
            self._later = None
            return self._newest

    def _copy(self, mirror: Mirror, writer: FolderLease, manifest: Manifest) -> None:
        copied, began = mirror_name(manifest) not in mirror.whole, time.monotonic()
        if copied:
            mirror.put(writer.folder, manifest.number, writer.term)
            log.info("checkpoint %d is mirrored, after %.1f s", manifest.number, time.monotonic() - began)
        self._done(manifest, copied=copied)
        try:
            mirror.prune(writer.folder, manifest, self._keep, Pins(writer.folder).numbers(), writer.term)
        except (MillraceError, OSError) as error:
            log.warning("checkpoint %d is mirrored, and nothing was pruned after it: %s", manifest.number, error)

    def _done(self, manifest: Manifest, *, copied: bool) -> None:
        with self._changed:
            figures = self._figures
            if figures.error is not None:
                log.info("checkpoints are mirrored again")
            newer = self._newest is not manifest
            self._newest = self._newest if newer else None
            self._figures = replace(
                figures,
                number=manifest.number,
                made_at=manifest.created.timestamp(),
                waiting_since=self._later if newer else None,
                copied=figures.copied + copied,
                error=None,
            )

    def _failed(self, manifest: Manifest, error: Exception) -> None:
        why = str(error) or type(error).__name__
        with self._changed:
            first = self._figures.error is None
            self._figures = replace(self._figures, failed=self._figures.failed + 1, error=why)
        if first:
            unforeseen = not isinstance(error, (MillraceError, OSError))
            log.warning(
                "checkpoint %d is not mirrored, which stops nothing else: %s", manifest.number, why, exc_info=unforeseen
            )
