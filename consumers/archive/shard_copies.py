"""Copies of a bucket's shards in a folder, for readers that come again: each fetched once, and compared with its hash.

    DIR/copies-of                     the URL of the archive
    DIR/clicks/0/<shard>.parquet      a shard of it, under the name that it has there

A copy whose size and SHA-256 are not those of its shard is fetched again. A tenth of the volume stays free: what does
not fit is read from the bucket. Copies of shards that the archive no longer has are removed. Any number of processes
may use a folder: a copy gets its name when it is complete. Runs on any thread.
"""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import get_ident

from millrace.consumers.archive.shard_names import home_of, shard_name
from millrace.consumers.archive.shards import Shard
from millrace.consumers.archive.stores import LocalStore
from millrace.consumers.durable_files import complaint, is_full, replace_durably, write_durably
from millrace.consumers.errors import ArchiveDamagedError, ConfigError, MillraceError

_URL = "copies-of"
_FREE = 0.1
"""The share of the volume that stays free."""
_PIECE = 8 << 20
_ABANDONED_S = 3600.0
"""A copy that is not complete, and to which nothing was written for so long, is no longer being made."""


class ShardCopies:
    """The folder with the copies of one archive's shards."""

    def __init__(self, folder: Path, url: str) -> None:
        """Raise ConfigError if the folder holds anything else, or cannot be written."""
        self._store = LocalStore(folder)
        self._fetched = list[Shard]()  # on several threads
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _mark(folder, url)
        except OSError as error:
            if isinstance(error, MillraceError):
                raise
            raise ConfigError(f"--cache-shards: cannot write to {folder}: {error.strerror or error}") from error

    def copied(self, shard: Shard) -> Shard:
        """Return the shard in the folder, fetched if it is not there; or as it is, if there is no room.

        Raise ArchiveDamagedError if what the bucket gives is not what was written.
        """
        path = self._store.folder / shard.key
        if complaint(path, shard.written, deep=True) is None:
            return replace(shard, store=self._store)
        room = shutil.disk_usage(self._store.folder)
        if room.free - shard.size < _FREE * room.total:
            return shard
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}")
        try:
            with shard.store.open(shard.key, shard.size) as file:
                written = write_durably(new, iter(partial(file.read, _PIECE), b""), mode=0o600)
            if written != shard.written:
                raise ArchiveDamagedError(f"{shard.path} is not what was written: its SHA-256 differs")
            new.replace(path)
        except OSError as error:
            if is_full(error):
                return shard
            raise
        finally:
            new.unlink(missing_ok=True)
        self._fetched.append(shard)
        return replace(shard, store=self._store)

    def told(self, shards: Sequence[Shard]) -> str:
        """Say where these shards are, which `copied` has returned."""
        fetched, here = len(self._fetched), sum(shard.store is self._store for shard in shards)
        text = f"{fetched} shards were fetched to {self._store.folder}, and {here - fetched} were there"
        return f"{text}; for {len(shards) - here} it has no room" if here < len(shards) else text

    def prune(self, shards: Sequence[Shard]) -> None:
        """Remove the copies in these shards' partitions that are of none of them, and what a killed process left."""
        known = {shard.key for shard in shards}
        homes = {home_of(shard.partition) for shard in shards}
        long_ago = time.time() - _ABANDONED_S
        for path in [path for home in homes for path in (self._store.folder / home).glob(".*")]:
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < long_ago:  # of a process that was killed
                    path.unlink()
        names = ((home, name) for home in homes for name in self._store.files(home))
        self._store.remove([key for home, name in names if shard_name(name) and (key := f"{home}/{name}") not in known])


def _mark(folder: Path, url: str) -> None:
    """Write whose copies the folder holds, where that is not written yet; ConfigError where it holds anything else."""
    marker = folder / _URL
    # The marker is not there yet while a process writes it, or where one was killed then.
    others = [path for path in folder.iterdir() if path != marker and not path.name.startswith(f".{_URL}.new-")]
    # Read after the listing: whoever begins at the same time writes it before the first copy.
    held = marker.read_text() if marker.exists() else None
    if held is None and others:
        raise ConfigError(f"--cache-shards: {folder} is not empty, and holds no copies of shards; name another")
    if held and held != url:
        raise ConfigError(f"--cache-shards: {folder} holds copies of {held}, not of {url}; name another folder")
    if not held:  # an empty one was torn by a kill; each copy is compared with its hash, whatever it is of
        replace_durably(marker, url.encode())
    elif not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--cache-shards: cannot write to {folder}")
