"""Pins: checkpoints that stay whatever `keep` says, until the pin is lifted.

Owns `pins/<number>.<digest>.json`, one file for each number and each holder: who holds it, since when. Runs on any
thread of any process, with or without the folder's lease; nothing is left open. At most 1,000 pins are held.

Only the name of a file decides which checkpoint stays, so a file whose contents are damaged still pins. Pinning and
pruning need no common lock:

1. A pin is durable before it is acknowledged, and afterwards the checkpoint is looked for again.
2. The pruner reads the pins, takes the checkpoint's number away by a rename, and reads them once more before the first
   file goes: a checkpoint that was pinned meanwhile gets its number back.
3. A writer that finds what a dead one was removing gives a pinned checkpoint its number back, if it is whole.

So a pin that was acknowledged holds through a kill of either side at any moment.
"""

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from millrace.consumers.durable_files import replace_durably, sync_folder
from millrace.consumers.errors import ConfigError
from millrace.consumers.rounded import cut_list
from millrace.consumers.suggested_command import suggested_command
from millrace.training.checkpoints.files import read_only, unwritable
from millrace.training.checkpoints.folder import Folder
from millrace.training.errors import CheckpointError, MissingCheckpointError, ReadOnlyError

_MOST = 1_000
_LONGEST = 200
_RETURN_S = 2.0
_POLL_S = 0.02
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """That somebody wants a checkpoint to stay."""

    number: int
    by: str
    """Who holds it; "unknown" where the file is damaged."""
    since: str
    """ISO 8601, UTC; empty where the file is damaged."""


@dataclass(frozen=True, slots=True)
class Pins:
    """The pins of one folder."""

    folder: Folder

    def numbers(self) -> frozenset[int]:
        """Return the numbers that are pinned; OSError or ConfigError where the disk does not tell."""
        return frozenset(number for number, _ in self.folder.pinned())

    def all(self) -> list[Pin]:
        """Return every pin, by number and holder."""
        found = [pin for number, digest in self.folder.pinned() if (pin := self._read(number, digest)) is not None]
        return sorted(found, key=lambda pin: (pin.number, pin.by))

    def of(self, number: int) -> tuple[Pin, ...]:
        return tuple(pin for pin in self.all() if pin.number == number)

    def pin(self, number: int, by: str) -> Pin:
        """Pin a checkpoint for this holder, and return when the pin is durable; the same again changes nothing.

        Raises MissingCheckpointError where there is no such checkpoint, also where it is pruned at this moment, and
        ReadOnlyError where this process may not write.
        """
        if not 0 < len(by) <= _LONGEST or _CONTROL.search(by) or not by.isprintable():
            raise ConfigError(f"{by!r} cannot hold a pin: give one line of at most {_LONGEST} characters")
        digest = _digest(by)
        self._require(number)
        if (held := self._read(number, digest)) is None:
            held = Pin(number=number, by=by, since=datetime.now(UTC).isoformat(timespec="seconds"))
            self._write(held, digest)
        try:
            # The pruner may have taken the number before it could see the pin.
            until = time.monotonic() + _RETURN_S
            while self.folder.removing(number).exists() and time.monotonic() < until:
                time.sleep(_POLL_S)
            self._require(number)
        except MissingCheckpointError:
            self._remove([(number, digest)])
            raise
        return held

    def unpin(self, number: int, by: str | None = None) -> tuple[Pin, ...]:
        """Lift the pins of a checkpoint, or only this holder's; return what was lifted."""
        held = self.of(number)
        lifted = tuple(pin for pin in held if by is None or pin.by == by)
        if not lifted:
            others = ", ".join(pin.by for pin in held)
            pinned = ", ".join(map(str, sorted(self.numbers()))) or "none"
            raise MissingCheckpointError(
                f"checkpoint {number} is not pinned by {by}, but by {others}"
                if others
                else f"checkpoint {number} is not pinned; those that are: {pinned}"
            )
        ours = {_digest(pin.by) for pin in lifted}
        self._remove([one for one in self.folder.pinned() if one[0] == number and (by is None or one[1] in ours)])
        return lifted

    def _write(self, pin: Pin, digest: str) -> None:
        if len(self.folder.pinned()) >= _MOST:
            unpin = suggested_command("checkpoints", "unpin")
            raise CheckpointError(f"{_MOST:,} pins are held already: lift some by `{unpin}`")
        try:
            self.folder.pins.mkdir(exist_ok=True)
            sync_folder(self.folder.root)
            facts = {"number": pin.number, "by": pin.by, "since": pin.since}
            replace_durably(self.folder.pin(pin.number, digest), (json.dumps(facts) + "\n").encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def _remove(self, pinned: Sequence[tuple[int, str]]) -> None:
        try:
            for number, digest in pinned:
                self.folder.pin(number, digest).unlink(missing_ok=True)
            sync_folder(self.folder.pins)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> ConfigError:
        text = unwritable(self.folder.pins, error)
        return ReadOnlyError(text) if read_only(error) else ConfigError(text)

    def _read(self, number: int, digest: str) -> Pin | None:
        """Return one pin; None where there is none."""
        try:
            facts = json.loads(self.folder.pin(number, digest).read_bytes())
            return Pin(number=number, by=str(facts["by"]), since=str(facts["since"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return Pin(number=number, by="unknown", since="")

    def _require(self, number: int) -> None:
        if number not in self.folder.numbers():
            there = ", ".join(map(str, self.folder.numbers()[-5:])) or "none"
            raise MissingCheckpointError(f"no checkpoint has the number {number}; the newest there are: {there}")


def named(pins: Sequence[Pin]) -> str:
    """Return pinned checkpoints with their holders, as in `3 (by ann), 17 (by export)`; at most five."""
    numbers = sorted({pin.number for pin in pins})
    words = [f"{number} (by {', '.join(pin.by for pin in pins if pin.number == number)})" for number in numbers]
    return cut_list(words, 5)


def _digest(by: str) -> str:
    return hashlib.sha256(by.encode()).hexdigest()[:12]
