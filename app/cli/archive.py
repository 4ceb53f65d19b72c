"""`millrace archive`: writes what the topics hold to files; lists, verifies and prunes them."""

import logging
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.app.cli.config_file import ConfigFile, config_file
from millrace.app.cli.options import Json, loaded, print_json
from millrace.app.cli.tables import print_table
from millrace.app.service.logs import configure
from millrace.app.service.process import Signals, spare_the_collector
from millrace.app.settings import load
from millrace.app.tools.archive import archive as run_archiver
from millrace.app.tools.archive import archive_place
from millrace.consumers.archive.archive_account import by_partition, prunable, remove
from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.shard_reader import complaint_about
from millrace.consumers.archive.shards import Shard, Survey, survey
from millrace.consumers.archive.shards import listing as listed
from millrace.consumers.errors import ArchiveDamagedError
from millrace.consumers.kafka.positions import parse_until
from millrace.consumers.rounded import rounded_size
from millrace.consumers.units import parse_duration

log = logging.getLogger(__name__)

archive = typer.Typer(invoke_without_command=True)

HEADINGS = ("partition", "shards", "records", "first offset", "last offset", "size", "oldest", "newest", "gaps")


@archive.callback()
def archiving(
    context: typer.Context,
    file: ConfigFile = None,
    until: Annotated[
        str | None,
        typer.Option(help="Archive up to this point and exit: now, a time, or offsets as in clicks:0=123,clicks:1=77."),
    ] = None,
) -> None:
    """Write what the topics hold to files that outlive Kafka's retention; list, verify and prune them.

    Without a command it archives until it is stopped, and resumes where the last files end. Nothing is committed. On
    Ctrl-C or SIGTERM it closes the open files and exits 0. Example: millrace archive -c clicks.yaml
    """
    if context.invoked_subcommand is not None:
        if file is not None or until is not None:
            raise typer.BadParameter(f"write it after {context.invoked_subcommand}", param_hint="-c, --until")
        return
    signals = Signals()
    signals.install()
    end = None if until is None else parse_until(until)
    notes: list[str] = []
    found = load(config_file(file, notes.append))
    logs = found.settings.logs
    configure(name=found.settings.name, form=logs.format, level=logs.level)
    for text in notes:
        log.info("%s", text)
    for warning in found.warnings:
        log.warning("%s", warning)
    spare_the_collector()
    signals.begin()
    run_archiver(found.settings, end, signals.asked)


@archive.command("list")
def listing(file: ConfigFile = None, as_json: Json = False) -> None:
    """List what the archive holds of each partition, and what Kafka had removed before it was archived.

    Example: millrace archive list -c clicks.yaml
    """
    found = survey(_place(file))
    if as_json:
        print_json(survey_facts(found))
        return
    if found.shards:
        print_table(HEADINGS, survey_rows(found))
    else:
        typer.echo("the archive is empty")
    for line in survey_remarks(found):
        typer.echo(line)


@archive.command()
def verify(file: ConfigFile = None, as_json: Json = False) -> None:
    """Read and hash every byte. Exits 4 if a file is not what was written.

    Example: millrace archive verify -c clicks.yaml
    """
    found = survey(_place(file))
    complaints = [complaint_about(shard, deep=True) for shard in found.shards]
    problems = [*found.problems, *(f"{s.path}: {why}" for s, why in zip(found.shards, complaints, strict=True) if why)]
    if as_json:
        good = sum(complaint is None for complaint in complaints)
        print_json({"verified": good, "problems": problems})
    else:
        for problem in problems:
            typer.echo(problem)
        typer.echo(f"{complaints.count(None):,} shards are what was written; {len(problems):,} are not")
    if problems:
        raise ArchiveDamagedError(
            f"{len(problems)} shards are damaged: restore them from a copy; as they are, their records are not read"
        )


@archive.command()
def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Remove what is older than this, as in 90d.")
    ],
    file: ConfigFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the oldest shards if all of their records are older than an age; an archiver may run meanwhile.

    The last shard of each partition stays: it says where the archiver resumes. Example:
    millrace archive prune -c clicks.yaml --older-than 90d
    """
    place = _place(file)
    try:
        before_ms = round((time.time() - parse_duration(older_than)) * 1000)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--older-than") from None
    found = prunable(listed(place), before_ms)
    if not dry_run:
        remove(found)
    if as_json:
        removed = [shard_facts(one) for one in found]
        print_json({"dry_run": dry_run, "removed": removed})
    else:
        typer.echo(pruned_in_words(found, dry_run=dry_run))


def _place(file: Path | None) -> Place:
    return archive_place(loaded(file).settings)


def survey_rows(found: Survey) -> list[list[str]]:
    """Return a row for each partition."""
    return [
        [
            str(archived.partition),
            f"{len(archived.shards):,}",
            f"{archived.records:,}",
            str(archived.shards[0].first),
            str(archived.shards[-1].next_offset - 1),
            rounded_size(archived.size),
            _moment(min(shard.earliest_ms for shard in archived.shards)),
            _moment(max(shard.latest_ms for shard in archived.shards)),
            f"{sum(gap.offsets for gap in archived.gaps):,}" if archived.gaps else "",
        ]
        for archived in by_partition(found.shards)
    ]


def survey_remarks(found: Survey) -> Iterator[str]:
    """Yield a sentence for each gap and each problem."""
    for archived in by_partition(found.shards):
        for gap in archived.gaps:
            yield (
                f"gap: {gap.partition} has no offsets {gap.first} to {gap.next_offset - 1} ({gap.offsets:,}): Kafka "
                "had removed them before they were archived"
            )
    yield from (f"damaged: {problem}" for problem in found.problems)


def survey_facts(found: Survey) -> dict[str, Any]:
    """Return everything that is known about the archive."""
    partitions = by_partition(found.shards)
    gaps = [gap for archived in partitions for gap in archived.gaps]
    return {
        "shards": [shard_facts(shard) for shard in found.shards],
        "gaps": [{"partition": str(gap.partition), "first": gap.first, "next_offset": gap.next_offset} for gap in gaps],
        "records": sum(archived.records for archived in partitions),
        "missing_offsets": sum(gap.offsets for gap in gaps),
        "bytes": sum(archived.size for archived in partitions),
        "problems": list(found.problems),
    }


def shard_facts(shard: Shard) -> dict[str, Any]:
    """Return the facts of one shard."""
    return {
        "partition": str(shard.partition),
        "first": shard.first,
        "next_offset": shard.next_offset,
        "records": shard.records,
        "earliest_ms": shard.earliest_ms,
        "latest_ms": shard.latest_ms,
        "bytes": shard.size,
        "sha256": shard.sha256,
        "file": shard.path,
    }


def pruned_in_words(shards: Sequence[Shard], *, dry_run: bool) -> str:
    """Say what was removed, or would be."""
    records, size = sum(shard.records for shard in shards), rounded_size(sum(shard.size for shard in shards))
    verb = "would be removed" if dry_run else "were removed"
    return f"{len(shards):,} shards with {records:,} records ({size}) {verb}"


def _moment(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
