"""The mirror of one name's checkpoints: what is in it, how a checkpoint gets into it, and out of it.

    <checkpoints.mirror>/<name>/
        terms/0000000007.json                   which writer began when, as in the folder of the checkpoints
        checkpoints/0000000042-0000000007/      a checkpoint and the term that published it: its files, as there
            labels.jumps …                      what else a resume needs of that folder
            whole.json                          its manifest; sealed, put last, removed first

A checkpoint is in the mirror if `whole.json` is. It gets there in this order:

1. Its files are opened, so that pruning the volume meanwhile changes nothing.
2. No greater term is in the mirror.
3. Each file is put, read back, and compared with its size and SHA-256 by the manifest.
4. No greater term is in the mirror, still.
5. `whole.json` is put.

Terms go to the mirror before what is published under them. The rule of the fence is that of the folder: a checkpoint is
never brought back if a greater term had begun before it was published. So a writer that was cut off, with its volume,
and puts more later, changes nothing.

Owns no thread. Failures are OSErrors and CorruptErrors; what was half put has no `whole.json`, and is removed later.
"""

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millrace.consumers.durable_files import FileFacts, replace_durably, sync_folder, write_durably
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.failpoints import failpoint
from millrace.training.checkpoints.fencing import Terms
from millrace.training.checkpoints.files import require_space
from millrace.training.checkpoints.folder import Folder, Lineage
from millrace.training.checkpoints.inspection import Condition, inspect
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.checkpoints.manifest import FILE_NAME, Manifest, parsed_manifest
from millrace.training.checkpoints.mirror.target import MirrorTarget
from millrace.training.checkpoints.policies import KeepPolicy
from millrace.training.checkpoints.sealed_json import seal, unseal
from millrace.training.errors import (
    AllCorruptError,
    CheckpointError,
    CorruptError,
    MissingCheckpointError,
    NewerFormatError,
    PassedError,
)

log = logging.getLogger(__name__)

FORMAT = 1
MARKER = "whole.json"
_CHECKPOINTS, _TERMS = "checkpoints", "terms"
_KEY = re.compile(r"(\d{10,})-(\d{10,})")
_TERM = re.compile(r"(\d{10,})\.json")
_BESIDE = ("labels/jumps", "labels/rival_jumps")
"""Files of the folder that a resume needs beside the checkpoint; they only grow, and may be ahead of it."""
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredCheckpoint:
    """A checkpoint that is whole in the mirror, as its marker says."""

    manifest: Manifest
    raw: bytes
    """The bytes of its manifest."""
    beside: Mapping[str, FileFacts]
    """The files beside it, by their path in the folder."""

    @property
    def name(self) -> str:
        """Its folder in the mirror."""
        return mirror_name(self.manifest)

    def key(self, file: str) -> str:
        """Return the key of one of its files."""
        return f"{_CHECKPOINTS}/{self.name}/{file}"

    def contents(self) -> Mapping[str, FileFacts]:
        """Return what each of its objects but the marker must hold, by key."""
        files = {self.key(name): facts for name, facts in self.manifest.files.items()}
        return files | {self.key(_object(name)): facts for name, facts in self.beside.items()}


class Mirror:
    """All checkpoints of one name in the mirror."""

    def __init__(self, target: MirrorTarget) -> None:
        self.target = target
        self.whole: dict[str, MirroredCheckpoint] = {}
        """Those that are whole, by their folder, as far as this process knows."""
        self.unreadable: dict[str, MillraceError] = {}
        """Why a marker cannot be read: it is damaged, or of a later version. Its checkpoint is left alone."""

    def pull_terms(self, folder: Folder) -> None:
        """Take over the records of terms that are greater than those of a folder. Needs no lock: no record changes."""
        known = max([0, *folder.recorded_terms()])
        newer = [term for term in self._terms() if term > known]
        if newer:
            folder.create()
        for term in newer:
            (raw,) = self.target.read([_term_key(term)])
            if isinstance(raw, OSError):
                raise raw
            replace_durably(folder.term(term), raw)

    def look(self) -> None:
        """Read what is in the mirror."""
        names = [name for name in self.target.folders(_CHECKPOINTS) if _KEY.fullmatch(name)]
        found = self.target.read([f"{_CHECKPOINTS}/{name}/{MARKER}" for name in names])
        self.whole, self.unreadable = {}, {}
        for name, raw in zip(names, found, strict=True):
            if isinstance(raw, FileNotFoundError):
                continue  # half put, or half removed
            if isinstance(raw, OSError):
                raise raw
            try:
                self.whole[name] = self._parsed(name, raw)
            except (CorruptError, NewerFormatError) as error:
                log.warning("%s", error)
                self.unreadable[name] = error

    def bring_back(self, writer: FolderLease) -> Manifest | None:
        """Copy the newest checkpoint of the mirror into the folder, if that has none that is as new; return it.

        It falls back along the parents, as a start does. Raises AllCorruptError where none is what was written, and the
        error of a marker that cannot be read where its checkpoint may be the newest.
        """
        folder, terms = writer.folder, Terms.read(writer.folder)
        self.look()
        there = [one for one in self.whole.values() if not terms.fences(one.manifest.term, one.manifest.number)]
        newest = max(there, key=lambda one: one.manifest.number, default=None)
        looks = (inspect(folder, number, terms, deep=False) for number in reversed(folder.numbers()))
        own = next((look.number for look in looks if look.condition is not Condition.FENCED), None)
        least = max(-1 if own is None else own, -1 if newest is None else newest.manifest.number)
        for name, error in self.unreadable.items():
            number, term = map(int, name.split("-"))
            if number > least and not terms.fences(term, number):
                raise error
        if newest is None or (own is not None and own >= newest.manifest.number):
            return None
        by_number = {one.manifest.number: one for one in there}
        way = [newest, *(by_number[number] for number in newest.manifest.ancestors if number in by_number)]
        for one in way:
            try:
                self._copy_back(one, folder, writer.term)
            except CorruptError as error:
                log.error("the mirror's checkpoint %s is corrupt: %s", one.name, error)  # noqa: TRY400 - one line
                continue
            return one.manifest
        raise AllCorruptError(
            f"checkpoints.mirror: neither {newest.name} in {self.target.path(_CHECKPOINTS)} nor one that led to it is "
            "what was written: bring one back from a copy, or start afresh with --start-over"
        )

    def claim(self, writer: FolderLease) -> None:
        """Put the record of the writer's term, before anything that it publishes. Raises PassedError where it is late.

        The records of smaller terms go that the folder no longer has, as the newest holds what they say.
        """
        raw = writer.folder.term(writer.term).read_bytes()
        key = _term_key(writer.term)
        try:
            self.target.create(key, raw)
        except OSError:
            # An answer may be lost, and a store may refuse in its own words: what is there says whose it is.
            (found,) = self.target.read([key])
            if isinstance(found, OSError):
                raise
            if found != raw:
                raise PassedError(self._passed(writer.term)) from None
        self.require(writer.term)
        kept = writer.folder.recorded_terms()
        self.target.remove([_term_key(term) for term in self._terms() if term < writer.term and term not in kept])

    def require(self, term: int) -> None:
        """Raise PassedError where a greater term is in the mirror."""
        newest = max(self._terms(), default=0)
        if newest > term:
            raise PassedError(self._passed(newest))

    def put(self, folder: Folder, number: int, term: int) -> MirroredCheckpoint:
        """Copy a checkpoint into the mirror, and return when it is whole there.

        Raises MissingCheckpointError where the volume has it no more, PassedError where `term` is not the greatest, and
        CheckpointError where what was put is not what was read.
        """
        home = folder.checkpoint(number)
        with ExitStack() as opened:  # (1)
            try:
                raw = (home / FILE_NAME).read_bytes()
                manifest = parsed_manifest(raw, number, str(home / FILE_NAME))
                handles = {name: _opened(opened, home / name) for name in manifest.files}
            except FileNotFoundError as error:
                raise MissingCheckpointError(f"checkpoint {number} was pruned before it was copied") from error
            self.require(term)  # (2)
            beside = dict[str, FileFacts]()
            for name in _BESIDE:
                if (folder.root / name).exists():
                    held = (folder.root / name).read_bytes()
                    beside[name] = FileFacts(len(held), hashlib.sha256(held).hexdigest())
                    self.target.put(f"{_CHECKPOINTS}/{mirror_name(manifest)}/{_object(name)}", held)
            one = MirroredCheckpoint(manifest=manifest, raw=raw, beside=beside)
            for name, handle in handles.items():  # (3)
                # By the open file, which is there even when its name is pruned meanwhile.
                self.target.put_file(one.key(name), f"/dev/fd/{handle}", replace=True)
        for key, facts in one.contents().items():
            if (problem := self.target.complaint(key, facts, deep=True)) is not None:
                raise CheckpointError(f"checkpoint {number} in {self.target.path(_CHECKPOINTS)}: {problem}")
        failpoint("mirror.before_marker")
        self.require(term)  # (4)
        listed = {name: {"size": facts.size, "sha256": facts.sha256} for name, facts in beside.items()}
        marker = seal({"format": FORMAT, "manifest": raw.decode(), "beside": listed})
        self.target.put(one.key(MARKER), marker)  # (5)
        self.whole[one.name] = one
        return one

    def prune(self, folder: Folder, newest: Manifest, keep: KeepPolicy, pinned: Collection[int], term: int) -> None:
        """Remove what no policy keeps of what is whole, and what is half put. What is fenced stays.

        Raises PassedError where `term` is not the greatest: only the writer of that one may remove anything.
        """
        terms = Terms.read(folder)
        good = [one.manifest for one in self.whole.values() if not terms.fences(one.manifest.term, one.manifest.number)]
        good.sort(key=lambda one: one.number)
        present = {manifest.number for manifest in good}
        kept = keep.keep(good, newest) | {*pinned} | {one.number for one in good if one.parent is None}
        # The newest, and the one to fall back to.
        kept |= {newest.number, *[number for number in newest.ancestors if number in present][:1]}
        unkept = [self.whole[mirror_name(manifest)] for manifest in good if manifest.number not in kept]
        if unkept:
            self.require(term)
        for one in unkept:
            self.target.remove([one.key(MARKER)])
            del self.whole[one.name]
        failpoint("mirror.before_files_go")
        known = self.whole.keys() | self.unreadable.keys()
        # A later writer may begin after `require`, so what was published under a greater term is never touched.
        unmarked = [
            name
            for name in self.target.folders(_CHECKPOINTS)
            if (match := _KEY.fullmatch(name)) and name not in known and int(match[2]) <= term
        ]
        if unmarked:
            self.require(term)
        for name in unmarked:
            home = f"{_CHECKPOINTS}/{name}"
            self.target.remove([f"{home}/{file}" for file in self.target.files(home) if file != MARKER])

    def _copy_back(self, one: MirroredCheckpoint, folder: Folder, term: int) -> None:
        """Give a checkpoint of the mirror its number in the folder, with what is beside it; CorruptError if damaged."""
        number = one.manifest.number
        published, temporary = folder.checkpoint(number), folder.saving(number, term)
        if published.exists():
            raise ConfigError(
                f"{published} was published by another writer than the checkpoint of that number in "
                f"{self.target.path(_CHECKPOINTS)}, and is fenced: move {folder.root} away and start again"
            )
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            require_space(temporary, one.manifest.size)
            for name, facts in one.manifest.files.items():
                self._fetch(one.key(name), facts, partial(write_durably, temporary / name))
            beside = {name: self._read(one.key(_object(name)), facts) for name, facts in one.beside.items()}
            write_durably(temporary / Lineage(one.manifest.parent, one.manifest.term).file_name, [])
            write_durably(temporary / FILE_NAME, [one.raw])
            sync_folder(temporary)
            for name, held in beside.items():
                (folder.root / name).parent.mkdir(exist_ok=True)
                replace_durably(folder.root / name, held)
            failpoint("mirror.before_rename")
            temporary.rename(published)
            sync_folder(folder.checkpoints)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _read(self, key: str, facts: FileFacts) -> bytes:
        held = list[bytes]()

        def keep(pieces: Iterator[bytes]) -> FileFacts:
            held[:] = pieces
            return FileFacts(sum(map(len, held)), hashlib.sha256(b"".join(held)).hexdigest())

        self._fetch(key, facts, keep)
        return b"".join(held)

    def _fetch(self, key: str, facts: FileFacts, take: Callable[[Iterator[bytes]], FileFacts]) -> None:
        """Read an object piece by piece; CorruptError where it is not what was put."""
        if (problem := self.target.complaint(key, facts, deep=False)) is not None:
            raise CorruptError(problem)
        if facts.size:
            with self.target.open(key, facts.size) as file:
                found = take(iter(lambda: file.read(_PIECE), b""))
        else:
            found = take(iter(()))
        if found != facts:
            raise CorruptError(f"{self.target.path(key)} is not what was written: its size or SHA-256 differs")

    def _parsed(self, name: str, raw: bytes) -> MirroredCheckpoint:
        path = self.target.path(f"{_CHECKPOINTS}/{name}/{MARKER}")
        try:
            body = unseal(raw)
            if body["format"] > FORMAT:
                raise NewerFormatError(f"{path} has format {body['format']}: run the version that wrote it")
            manifest = body["manifest"].encode()
            beside = {
                file: FileFacts(facts["size"], facts["sha256"])
                for file, facts in body["beside"].items()
                if file in _BESIDE
            }
            number = int(name.partition("-")[0])
            one = MirroredCheckpoint(manifest=parsed_manifest(manifest, number, path), raw=manifest, beside=beside)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, NewerFormatError):
                raise
            raise CorruptError(
                f"checkpoints.mirror: {path} is not what was written ({error}): bring it back from a copy, or remove "
                "it and learn again what was learnt last"
            ) from error
        if one.name != name:
            raise CorruptError(
                f"checkpoints.mirror: {path} is that of {one.name}: bring the right one back from a copy"
            )
        return one

    def _terms(self) -> list[int]:
        matches = (_TERM.fullmatch(name) for name in self.target.files(_TERMS))
        return sorted(int(match[1]) for match in matches if match)

    def _passed(self, term: int) -> str:
        return (
            f"checkpoints.mirror: another trainer writes to {self.target.path('')} under term {term}: stop one of the "
            "two, or give it another name or checkpoints.mirror"
        )


def mirror_name(manifest: Manifest) -> str:
    """Return the name of a checkpoint's folder in the mirror."""
    return f"{manifest.number:010d}-{manifest.term:010d}"


def _object(beside: str) -> str:
    """Return the name in the mirror of a file beside the checkpoints; no part of a checkpoint has such a name."""
    return beside.replace("/", ".")


def _term_key(term: int) -> str:
    return f"{_TERMS}/{term:010d}.json"


def _opened(opened: ExitStack, path: Path) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    opened.callback(os.close, handle)
    return handle
