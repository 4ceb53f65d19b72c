"""The check of the archive: it can be read, and each shard is described. Reads no records, writes nothing."""

import os
from pathlib import Path

from millrace.app.tools.validate.check import CheckResult, fail, ok, warn
from millrace.consumers.archive.archive_account import by_partition
from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.shards import listing
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.suggested_command import suggested_command


def archive_check(place: Place) -> CheckResult:
    """Check the archive; where its folder is not there yet, that it can be made."""
    name = "archive"
    if isinstance(place, Path) and not place.exists():
        parent = next(path for path in place.parents if path.exists())
        if os.access(parent, os.W_OK):
            return ok(name, f"{place} is not there yet; `{suggested_command('archive')}` makes it")
        return fail(name, ConfigError(f"archive.path: {place} is not there, and {parent} cannot be written"))
    try:
        shards = listing(place)
    except MillraceError as error:
        return fail(name, error)
    lost = sum(gap.offsets for archived in by_partition(shards) for gap in archived.gaps)
    found = f"{place} holds {len(shards):,} shards with {sum(shard.records for shard in shards):,} records"
    return warn(name, f"{found}; {lost:,} offsets are in none of them") if lost else ok(name, found)
