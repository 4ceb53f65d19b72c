"""The folder of one name: where each file lies, and which names millrace uses.

    <checkpoints.path>/<name>/
        checkpoints/0000000042/     manifest.json, one or two files a part, and an empty file whose name is the lineage
        checkpoints/.saving-0000000043-0000000007/      being written by term 7; torn if no process writes it
        checkpoints/.removing-0000000017/               being pruned
        terms/0000000007.json       which writer began when, and after which number
        lock.0000000007             held by the writer of term 7, which touches it every 2 s
        starts/0000000007           what the writer of term 7 has in flight, for the process that starts after its death
        pins/0000000042.1f3a….json  that somebody wants checkpoint 42 to stay, whatever `keep` says
        journal/0000000007          what the writer of term 7 has published in deterministic mode, block by block
        history/0000000007          the curves and events of the page, as the writer of term 7 kept them last
        schemas/                    schemas of the registry, and which were reported; no part of a checkpoint
        range/                      while a range of the topics is pretrained on: its records
        sample.json                 some records of the topic, decoded, to try the model on; readable by its owner only
        proof.json                  hashes of what the last proof of the model depended on

The lineage is stored twice: in the manifest, and as `parent-0000000041.term-0000000007` (or `parent-none.…`), an empty
file that consists of its name alone. No damage to contents can remove it, so the parents are known even when a manifest
is unreadable. Owns names only; runs on any thread. Files of other names are left alone.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from millrace.consumers.durable_files import sync_folder
from millrace.consumers.errors import ConfigError
from millrace.training.checkpoints.files import unwritable

_NUMBER = re.compile(r"(\d{10,})")
_LOCK = re.compile(r"lock\.(\d{10,})")
_TERM = re.compile(r"(\d{10,})\.json")
_SAVING = re.compile(r"\.saving-(\d{10,})-(\d{10,})")
_REMOVING = re.compile(r"\.removing-(\d{10,})")
_PIN = re.compile(r"(\d{10,})\.([0-9a-f]{12})\.json")
_LINEAGE = re.compile(r"parent-(none|\d{10,})\.term-(\d{10,})")


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a checkpoint comes from, as the name of its empty file says."""

    parent: int | None
    term: int

    @property
    def file_name(self) -> str:
        return f"parent-{'none' if self.parent is None else _digits(self.parent)}.term-{_digits(self.term)}"

    @classmethod
    def read(cls, path: Path) -> "Lineage | None":
        """Read the lineage of the checkpoint in this folder; None where no file names it, or several do."""
        matches = [match for name in _names(path) if (match := _LINEAGE.fullmatch(name))]
        if len(matches) != 1:
            return None
        parent, term = matches[0].groups()
        return cls(None if parent == "none" else int(parent), int(term))


@dataclass(frozen=True, slots=True)
class Folder:
    """Paths below one root. Each of them is made of whole numbers, so none leads out of the root."""

    root: Path

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def terms(self) -> Path:
        return self.root / "terms"

    @property
    def starts(self) -> Path:
        """Where starts leave what they have in flight."""
        return self.root / "starts"

    @property
    def journal(self) -> Path:
        """Where the journal of a deterministic run is."""
        return self.root / "journal"

    @property
    def history(self) -> Path:
        """Where the curves and events of the page are kept."""
        return self.root / "history"

    @property
    def label_jumps(self) -> Path:
        """The moments up to which quiet topics of labels counted as read."""
        return self.root / "labels" / "jumps"

    @property
    def pins(self) -> Path:
        return self.root / "pins"

    @property
    def sample(self) -> Path:
        """Where the sample of real records is."""
        return self.root / "sample.json"

    @property
    def proof(self) -> Path:
        """Where the last proof of the model is remembered."""
        return self.root / "proof.json"

    def checkpoint(self, number: int) -> Path:
        return self.checkpoints / _digits(number)

    def saving(self, number: int, term: int) -> Path:
        """Return the folder of a checkpoint that is being written."""
        return self.checkpoints / f".saving-{_digits(number)}-{_digits(term)}"

    def removing(self, number: int) -> Path:
        """Return the folder of a checkpoint that is being pruned."""
        return self.checkpoints / f".removing-{_digits(number)}"

    def lock(self, term: int) -> Path:
        return self.root / f"lock.{_digits(term)}"

    def term(self, term: int) -> Path:
        return self.terms / f"{_digits(term)}.json"

    def start(self, term: int) -> Path:
        """Return the path of the file that says what a term's process has in flight."""
        return self.starts / _digits(term)

    def journal_of(self, term: int) -> Path:
        """Return the path of a term's part of the journal."""
        return self.journal / _digits(term)

    def history_of(self, term: int) -> Path:
        """Return the path of what a term's process keeps of the page's curves and events."""
        return self.history / _digits(term)

    def pin(self, number: int, digest: str) -> Path:
        """Return the path of the pin that the holder with this digest has on a checkpoint."""
        return self.pins / f"{_digits(number)}.{digest}.json"

    def pinned(self) -> list[tuple[int, str]]:
        """Return the numbers that are pinned, each with the digest of a holder, ascending."""
        matches = (_PIN.fullmatch(name) for name in _names(self.pins))
        return sorted((int(match[1]), match[2]) for match in matches if match and match[1] == _digits(int(match[1])))

    def create(self) -> None:
        """Make the folders, durably; ConfigError where they cannot be."""
        try:
            for path in (self.checkpoints, self.terms):
                path.mkdir(parents=True, exist_ok=True)
            sync_folder(self.root)
            # A folder has to be opened for reading to be synced, and the parent may belong to someone else.
            if os.access(self.root.parent, os.R_OK):
                sync_folder(self.root.parent)
        except OSError as error:
            raise ConfigError(unwritable(self.root, error)) from error

    def numbers(self) -> list[int]:
        """Return the numbers of all published checkpoints, of any condition, ascending."""
        return sorted(_numbered(self.checkpoints, _NUMBER))

    def temporaries(self) -> list[tuple[Path, int | None]]:
        """Return the folders that are half written (with the term of the writer) or half removed (with None)."""
        found: list[tuple[Path, int | None]] = []
        for name in sorted(_names(self.checkpoints)):
            if saving := _SAVING.fullmatch(name):
                found.append((self.checkpoints / name, int(saving[2])))
            elif _REMOVING.fullmatch(name):
                found.append((self.checkpoints / name, None))
        return found

    def unknown(self) -> list[str]:
        """Return the names among the checkpoints that are not millrace's."""
        known = (_NUMBER, _SAVING, _REMOVING)
        return sorted(
            name for name in _names(self.checkpoints) if not any(pattern.fullmatch(name) for pattern in known)
        )

    def locks(self) -> list[int]:
        """Return the terms that have a lock file, ascending."""
        return sorted(_numbered(self.root, _LOCK))

    def recorded_terms(self) -> list[int]:
        """Return the terms that have a record, ascending."""
        return sorted(_numbered(self.terms, _TERM))

    def started_terms(self) -> list[int]:
        """Return the terms whose processes have left a record of what was in flight, ascending."""
        return sorted(_numbered(self.starts, _NUMBER))

    def journal_terms(self) -> list[int]:
        """Return the terms that have a part of the journal, ascending."""
        return sorted(_numbered(self.journal, _NUMBER))

    def history_terms(self) -> list[int]:
        """Return the terms whose processes have kept the page's curves and events, ascending."""
        return sorted(_numbered(self.history, _NUMBER))

    def highest_term(self) -> int:
        """Return the greatest term that was ever claimed; 0 where none was."""
        return max([0, *self.locks(), *self.recorded_terms()])


def _digits(number: int) -> str:
    return f"{number:010d}"


def _names(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        raise ConfigError(f"checkpoints.path: cannot read {path}: {error.strerror}") from error


def _numbered(path: Path, pattern: re.Pattern[str]) -> list[int]:
    matches = (pattern.fullmatch(name) for name in _names(path))
    # A number has one spelling: with more zeros it is not a name of ours, and would stand for the same number twice.
    return [int(match[1]) for match in matches if match and match[1] == _digits(int(match[1]))]
