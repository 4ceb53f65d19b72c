"""Where versions come from: a folder of exports, or the HTTP side of the trainer, whose exports are fetched.

Owns, of what is fetched, the folder `versions` below the server's own: each version is unpacked under a temporary name,
compared with the hashes in its manifest, synced, and gets its number by a rename, so that what has a number is whole.
All of it is slow, and runs on the follower's thread.
"""

import contextlib
import json
import logging
import secrets
import shutil
import socket
import ssl
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping
from dataclasses import asdict
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol

from millrace.consumers.durable_files import complaint, sync_file, sync_folder
from millrace.consumers.errors import ConfigError, MillraceError, UnreachableError
from millrace.training.checkpoints.exports.served_markers import RENEWED_AFTER_S, mark_served
from millrace.training.checkpoints.exports.version_folder import FILE_NAME, VersionFolder, read_export
from millrace.training.errors import CorruptError, MissingExportError

log = logging.getLogger(__name__)
_ASK_S, _FETCH_S = 10.0, 60.0
_LARGEST_LIST = 4 << 20
_PIECE = 1 << 20
_MOST_FILES = 10_000


class VersionSource(Protocol):
    """Where versions come from."""

    def numbers(self) -> list[int]:
        """Return the numbers of the versions that there are, ascending. UnreachableError where that is not known."""
        ...

    def place(self, number: int) -> tuple[Path, Mapping[str, Any]]:
        """Return the verified folder of a version, and its manifest. Raises MillraceError where there is none."""
        ...

    def at_hand(self) -> list[int]:
        """Return the numbers of the versions that can be had while the source does not answer, ascending."""
        ...

    def mark(self, numbers: Collection[int]) -> None:
        """Mark these versions as served where others remove versions; removes nothing."""
        ...

    def remove_others(self, numbers: Collection[int]) -> None:
        """Remove all but these versions of what this server has fetched."""
        ...


class FolderSource:
    """A folder of exports, in which others write."""

    def __init__(self, root: Path, server: str) -> None:
        self.root, self._folder, self._server = root, VersionFolder(root), server
        self._marked: tuple[frozenset[int], float] | None = None
        self._cannot_mark = False

    def numbers(self) -> list[int]:
        """Return the numbers of the folders that have one."""
        try:
            return self._folder.numbers()
        except MillraceError as error:
            raise UnreachableError(str(error)) from error

    def at_hand(self) -> list[int]:
        """Return none: what cannot be listed cannot be read."""
        return []

    def place(self, number: int) -> tuple[Path, Mapping[str, Any]]:
        """Return the folder, whose files were hashed; one without a manifest is TF Serving's, and not verified."""
        folder = self._folder.version(number)
        if not folder.is_dir():
            raise MissingExportError(f"there is no export {number} in {self.root}")
        if not (folder / FILE_NAME).exists() and (folder / "saved_model.pb").exists():
            log.warning("%s has no %s, so its files are not verified", folder, FILE_NAME)
            return folder, {}
        problems = self._folder.problems(number)
        if problems:
            raise CorruptError(f"export {number} is damaged: {problems[0]}")
        return folder, asdict(read_export(folder))

    def mark(self, numbers: Collection[int]) -> None:
        """Mark them as served, so that the exporter prunes none of them; again before the marker ends."""
        wanted, now = frozenset(numbers), time.time()
        if not wanted or (self._marked and self._marked[0] == wanted and now - self._marked[1] < RENEWED_AFTER_S):
            return
        try:
            mark_served(self.root, self._server, wanted, now)
        except OSError as error:
            if not self._cannot_mark:
                log.warning(
                    "%s cannot be marked as served (%s): once export.keep newer ones are there, they are pruned; what "
                    "is loaded goes on answering",
                    self.root,
                    error.strerror,
                )
            self._cannot_mark = True
        else:
            self._cannot_mark = False
        self._marked = wanted, now

    def remove_others(self, numbers: Collection[int]) -> None:
        """Remove nothing: the exporter prunes."""


class TrainerSource:
    """The HTTP side of a trainer, `GET /exports`, and what was fetched from it."""

    def __init__(self, url: str, cache: Path, token: str | None, context: ssl.SSLContext | None) -> None:
        self._url, self._cache = url, VersionFolder(cache)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._headers = {"Accept-Encoding": "identity", **headers}
        for name in self._cache.leftovers():  # of a server that was killed
            shutil.rmtree(cache / name, ignore_errors=True)
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _NoRedirect(), urllib.request.ProxyHandler({})
        )

    def numbers(self) -> list[int]:
        """Return the numbers that the trainer lists; where it does not answer, UnreachableError."""
        try:
            with self._open("/exports", _ASK_S) as answer:
                raw = answer.read(_LARGEST_LIST)
        except UnreachableError:
            raise
        except (OSError, HTTPException) as error:
            text = f"{self._url}/exports broke off in the middle of its answer: {_reason(error)}"
            raise UnreachableError(text) from error
        try:
            listed = {int(one["number"]) for one in json.loads(raw)["exports"]}
        except (ValueError, KeyError, TypeError) as error:
            raise UnreachableError(f"what answers at {self._url}/exports is no millrace that exports") from error
        return sorted(listed | set(self.at_hand()))

    def at_hand(self) -> list[int]:
        """Return the numbers of the versions that were fetched."""
        return self._cache.numbers()

    def place(self, number: int) -> tuple[Path, Mapping[str, Any]]:
        """Return the folder of a version that was fetched, now or before."""
        folder = self._cache.version(number)
        if folder.is_dir() and self._cache.problems(number):
            log.warning("%s is damaged, and is fetched again", folder)
            shutil.rmtree(folder)
        if not folder.is_dir():
            self._fetch(number)
        return folder, asdict(read_export(folder))

    def mark(self, numbers: Collection[int]) -> None:
        """Mark nothing: the trainer prunes its exports, and what was fetched is this server's alone."""

    def remove_others(self, numbers: Collection[int]) -> None:
        """Remove what was fetched and is none of these."""
        for number in self._cache.numbers():
            if number not in numbers:
                doomed = self._cache.root / f".gone-{number}-{secrets.token_hex(4)}"
                with contextlib.suppress(FileNotFoundError):  # another server that shares the folder was first
                    self._cache.version(number).rename(doomed)
                    shutil.rmtree(doomed, ignore_errors=True)

    def _fetch(self, number: int) -> None:
        try:
            self._cache.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"serve.path: cannot write to {self._cache.root}: {error.strerror}") from error
        draft = self._cache.draft_folder(number)
        try:
            with self._open(f"/exports/{number}", _FETCH_S) as answer:
                _unpack(answer, draft)
            manifest = read_export(draft)
            if manifest.number != number:
                raise CorruptError(f"export {number} came with the manifest of export {manifest.number}")
            for name, facts in manifest.files.items():
                if (wrong := complaint(draft / name, facts, deep=True)) is not None:
                    raise CorruptError(f"export {number} is not what the trainer wrote: {wrong}")
            for folder in (draft, *(path for path in draft.rglob("*") if path.is_dir())):
                sync_folder(folder)
            if not self._cache.version(number).exists():  # another server that shares the folder may have been first
                draft.rename(self._cache.version(number))
            sync_folder(self._cache.root)
        except (OSError, HTTPException, tarfile.TarError) as error:
            raise UnreachableError(f"export {number} of {self._url} was not fetched: {_reason(error)}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _open(self, path: str, within_s: float) -> Any:
        try:
            return self._opener.open(urllib.request.Request(self._url + path, headers=self._headers), timeout=within_s)  # noqa: S310 - the setting is checked to be http or https
        except urllib.error.HTTPError as error:
            error.close()
            hints = {401: "; name a file with a token by serve.token_file", 404: "; does it export (export.path)?"}
            text = f"{self._url}{path} answers {error.code} {error.reason}{hints.get(error.code, '')}"
            raise UnreachableError(text) from error
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise UnreachableError(f"nothing answers at {self._url} ({why}); does the trainer run there?") from error
        except HTTPException as error:
            text = f"what answers at {self._url} does not speak HTTP; does the trainer run there, or is it https there?"
            raise UnreachableError(text) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is sent to the address in the settings, and nowhere else."""

    def redirect_request(self, *_given: Any) -> None:
        """Follow none."""


def server_name(port: int) -> str:
    """Return the name of this server among those that serve one folder: the same after a restart on this machine."""
    host = "".join(
        char if char.isascii() and (char.isalnum() or char in "-.") else "-" for char in socket.gethostname()
    )
    return f"{host.strip('-.') or 'host'}-{port}"[:200]


def _reason(error: Exception) -> str:
    """Return why something failed, in a line."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _unpack(stream: Any, into: Path) -> None:
    """Write the regular files of a tar below a folder, synced. Raises OSError or TarError, also for other files."""
    into.mkdir()
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for count, member in enumerate(archive):
            if count >= _MOST_FILES:
                raise tarfile.TarError(f"it has more than {_MOST_FILES} files")
            parts = Path(member.name).parts
            if member.isdir():
                continue
            if not member.isreg() or Path(member.name).is_absolute() or ".." in parts:
                raise tarfile.TarError(f"{member.name!r} is no plain file below the version")
            path = into / Path(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                shutil.copyfileobj(archive.extractfile(member), file, _PIECE)  # type: ignore[arg-type] # a regular file
                file.flush()
                sync_file(file.fileno())
