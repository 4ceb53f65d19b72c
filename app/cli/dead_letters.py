"""`millrace dead-letters`: lists and shows what was set aside, and sends it again. Values are shown only on request.

Any program may write to the topic, and headers, fields and values come from producers: nothing in them is trusted.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.app.cli.config_file import ConfigFile
from millrace.app.cli.options import Json, loaded, print_json
from millrace.app.cli.tables import print_table
from millrace.app.monitoring.shapes import event_moment
from millrace.app.printable import printable
from millrace.app.settings import Settings
from millrace.app.settings.connection import kafka_options
from millrace.consumers.dead_letters import reader
from millrace.consumers.dead_letters.reader import ReceivedLetter
from millrace.consumers.dead_letters.redrive import Redrive, Redriven, plan_redrive
from millrace.consumers.dead_letters.redrive import redrive as carry_out
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.consumers.suggested_command import suggested_command
from millrace.consumers.units import whole_number

dead_letters = typer.Typer(
    help="List the records that were set aside, show why, and send them again.", no_args_is_help=True
)

Values = Annotated[bool, typer.Option("--values", help="Show keys and values too; they may be personal data.")]

_SHOWN = 200


@dead_letters.command("list")
def listing(
    file: ConfigFile = None,
    last: Annotated[int, typer.Option(min=1, max=10_000, help="How many of the newest to list.")] = 20,
    values: Values = False,
    as_json: Json = False,
) -> None:
    """List the newest dead letters: the reason, the field, where the record came from and when it was written.

    Example: millrace dead-letters list -c clicks.yaml --last 100
    """
    settings = _settings(file)
    found = reader.newest_letters(letter_options(settings), last)
    topic = settings.records.dead_letters.topic
    if as_json:
        facts = [letter_facts(letter, values=values) for letter in found.newest]
        print_json({"topic": topic, "total": found.total, "letters": facts})
    elif not found.newest:
        typer.echo(f"topic {topic} holds no letters")
    else:
        print_table(headings(values=values), [letter_row(one, values=values) for one in found.newest])
        typer.echo(f"{len(found.newest):,} shown; topic {topic} holds up to {found.total:,}")


@dead_letters.command()
def show(
    place: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="The letter's place, as in the list.")],
    file: ConfigFile = None,
    values: Values = False,
    as_json: Json = False,
) -> None:
    """Show everything that is known about one dead letter.

    Example: millrace dead-letters show 0:1203 -c clicks.yaml --values
    """
    settings = _settings(file)
    options = letter_options(settings)
    partition, offset = parsed_place(place, options.topics[0])
    letter = require_letter(reader.letter_at(options, partition, offset), place)
    facts = letter_facts(letter, values=values)
    if as_json:
        print_json(facts)
    else:
        typer.echo("\n".join(letter_in_words(facts)))


@dead_letters.command()
def redrive(
    to: Annotated[str, typer.Option(metavar="TOPIC", help="The topic to send the records to; it has to exist.")],
    file: ConfigFile = None,
    reason: Annotated[
        list[str] | None, typer.Option(help="Only records that were set aside for this reason. May be repeated.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Send at most this many.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also send records that were sent before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """Produce the records of dead letters again, unchanged, to a topic that you name; each of them once.

    Use it after the schema or a producer was repaired. The letters stay where they are, and are marked as sent.
    Example: millrace dead-letters redrive -c clicks.yaml --to clicks --reason missing --dry-run
    """
    settings = _settings(file)
    options = letter_options(settings)
    wanted = Redrive(
        letters=options.topics[0],
        to=to,
        model=settings.name,
        reasons=parsed_reasons(reason or ()),
        limit=limit,
        again=again,
    )
    done = (plan_redrive if dry_run else carry_out)(options, wanted)
    if as_json:
        report = {"from": wanted.letters, "to": to, "dry_run": dry_run, "sent": done.sent, "stayed": done.stayed}
        print_json(report)
    else:
        typer.echo("\n".join(redriven_in_words(done, wanted, dry_run=dry_run)))


def _settings(file: Path | None) -> Settings:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would log becomes our one line
    return loaded(file).settings


def letter_options(settings: Settings) -> KafkaOptions:
    """Return the options for reading the dead letters' topic. ConfigError if no topic is set."""
    topic = settings.records.dead_letters.topic
    if topic is None:
        raise ConfigError(
            "records.dead_letters.topic: none is set, so what is set aside is only counted (`millrace status` tells by "
            "reason); name a topic to keep it"
        )
    return replace(kafka_options(settings.kafka), topics=(topic,))


def parsed_place(place: str, topic: str) -> tuple[Partition, int]:
    """Parse a place such as `0:1203`."""
    partition, offset = map(whole_number, place.partition(":")[::2])
    if partition is None or offset is None:
        raise ConfigError(f"{place!r} is no place of a letter; write PARTITION:OFFSET, as the list has it")
    return Partition(topic, partition), offset


def require_letter(letter: ReceivedLetter | None, place: str) -> ReceivedLetter:
    """Return the letter. ConfigError if there is none."""
    if letter is None:
        raise ConfigError(
            f"there is no letter at {place}, or none any more; `{suggested_command('dead-letters', 'list')}` has them"
        )
    return letter


def headings(*, values: bool) -> list[str]:
    """Return the headings of the list."""
    return ["letter", "reason", "field", "schema", "record", "written", "bytes", *(["value"] if values else [])]


def letter_row(letter: ReceivedLetter, *, values: bool) -> list[str]:
    """Return one row of the list."""
    known = letter_facts(letter, values=values)
    size = "null" if known["value_bytes"] is None else f"{known['value_bytes']:,}"
    what = [known["letter"], known["reason"], known["field"] or "", known["schema"] or ""]
    cells = [*what, known["record"], known["written"] or "", size]
    shown = [*cells, known["value"][:_SHOWN] if known["value"] is not None else "null"] if values else cells
    return [printable(cell) for cell in shown]


def letter_facts(letter: ReceivedLetter, *, values: bool) -> dict[str, Any]:
    """Return everything about a letter; keys and values only on request."""
    headers = letter.ours
    # A letter that carries only the record's origin does not say when that was written.
    written = whole_number(headers.get("timestamp", "0"))
    known: dict[str, Any] = {
        "letter": f"{letter.place.number}:{letter.place_offset}",
        "reason": headers.get("reason", "not one of millrace's"),
        "field": headers.get("field"),
        "schema": headers.get("schema"),
        "detail": headers.get("detail"),
        "record": ":".join(headers.get(key, "?") for key in ("topic", "partition", "offset")),
        "written": event_moment(written) if written else None,
        "without_record": headers.get("without_record"),
        "set_aside": event_moment(letter.sent_ms),
        "set_aside_by": headers.get("name"),
        "value_bytes": _size(letter),
        "key_bytes": None if letter.key is None else len(letter.key),
        "headers": [name for name, _ in letter.headers],
    }
    return {**known, "key": _text(letter.key), "value": _text(letter.value)} if values else known


def letter_in_words(known: Mapping[str, Any]) -> Iterator[str]:
    """Give the facts line by line, for people."""
    for name, value in known.items():
        shown = "none" if value is None or value == [] else ", ".join(value) if isinstance(value, list) else str(value)
        yield f"{name.replace('_', ' '):<13} {printable(shown)}"


def parsed_reasons(names: Iterable[str]) -> list[Reason]:
    """Parse the values of `--reason`."""
    if unknown := [name for name in names if name not in list(Reason)]:
        raise ConfigError(f"--reason: {unknown[0]!r} is none; there are {', '.join(Reason)}")
    return [Reason(name) for name in names]


def redriven_in_words(done: Redriven, wanted: Redrive, *, dry_run: bool) -> Iterator[str]:
    """Give what a redrive has done, or would do, line by line."""
    went = "would go" if dry_run else "went"
    by_reason = f" ({_counted(done.sent)})" if done.sent else ""
    yield f"{done.sent.total():,} records {went} from {wanted.letters} to {wanted.to}{by_reason}"
    if done.stayed:
        yield f"{done.stayed.total():,} letters {'would ' if dry_run else ''}stay: {_counted(done.stayed)}"


def _counted(counts: Mapping[str, int]) -> str:
    return printable(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))


def _size(letter: ReceivedLetter) -> int | None:
    """Return the size of the record's value in bytes; a shortened letter carries the original size."""
    if letter.value is None:
        return None
    shortened = whole_number(letter.ours.get("value_bytes", ""))
    return len(letter.value) if shortened is None else shortened


def _text(value: bytes | None) -> str | None:
    """Return the value as text, or as Python writes bytes where it is not text."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return repr(value)
