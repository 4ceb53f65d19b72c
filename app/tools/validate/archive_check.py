"""The check of the archive: its folder can be read, and each shard is described. Reads no records, writes nothing."""

import os
from pathlib import Path

from app.tools.validate.check import CheckResult, fail, ok, warn
from consumers.archive.archive_account import by_partition
from consumers.archive.shards import listing
from consumers.errors import ConfigError, MillraceError


def archive_check(folder: Path) -> CheckResult:
    """Check the archive's folder; where there is none yet, that it can be made."""
    name = "archive"
    if not folder.exists():
        parent = next(path for path in folder.parents if path.exists())
        if os.access(parent, os.W_OK):
            return ok(name, f"{folder} is not there yet; `millrace archive` makes it")
        return fail(name, ConfigError(f"archive.path: {folder} is not there, and {parent} cannot be written"))
    try:
        shards = listing(folder)
    except MillraceError as error:
        return fail(name, error)
    lost = sum(gap.offsets for archived in by_partition(shards) for gap in archived.gaps)
    found = f"{folder} holds {len(shards):,} shards with {sum(shard.records for shard in shards):,} records"
    return warn(name, f"{found}; {lost:,} offsets are in none of them") if lost else ok(name, found)
