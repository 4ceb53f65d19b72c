"""The store of an archive's place. What a folder does not need is not imported for it."""

from functools import lru_cache
from pathlib import Path

from millrace.consumers.archive.archive_store import ArchiveStore, Place
from millrace.consumers.archive.local_store import LocalStore


def store_at(place: Place) -> ArchiveStore:
    """Return the store of an archive. Raises ConfigError where a URL needs a package that is not installed."""
    if isinstance(place, Path):
        return LocalStore(place)
    return _object_store(place)


@lru_cache
def _object_store(url: str) -> ArchiveStore:
    # One for each URL, because it knows whether this process holds the archive's lock.
    from millrace.consumers.archive.object_store import ObjectStore  # noqa: PLC0415 - loads fsspec, which a folder never needs

    return ObjectStore(url)
