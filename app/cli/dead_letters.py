"""`millrace dead-letters`: lists and shows what was set aside, and sends it again. Values are shown only on request."""

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from millrace.app.cli.config_file import ConfigFile
from millrace.app.cli.options import Json, loaded
from millrace.app.cli.render import dead_letters as rendered
from millrace.app.cli.render.tables import print_table
from millrace.app.settings import Settings
from millrace.consumers.dead_letters import reader
from millrace.consumers.dead_letters.redrive import Redrive, plan_redrive
from millrace.consumers.dead_letters.redrive import redrive as carry_out

dead_letters = typer.Typer(
    help="List the records that were set aside, show why, and send them again.", no_args_is_help=True
)

Values = Annotated[bool, typer.Option("--values", help="Show keys and values too; they may be personal data.")]


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
    found = reader.newest_letters(rendered.options(settings), last)
    topic = settings.records.dead_letters.topic
    if as_json:
        facts = [rendered.facts(letter, values=values) for letter in found.newest]
        typer.echo(json.dumps({"topic": topic, "total": found.total, "letters": facts}, indent=2))
    elif not found.newest:
        typer.echo(f"topic {topic} holds no letters")
    else:
        print_table(rendered.headings(values=values), [rendered.row(one, values=values) for one in found.newest])
        typer.echo(f"{len(found.newest):,} shown; topic {topic} holds up to {found.total:,}")


@dead_letters.command()
def show(
    place: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="Where the letter is, as in the list.")],
    file: ConfigFile = None,
    values: Values = False,
    as_json: Json = False,
) -> None:
    """Show everything that is known about one dead letter.

    Example: millrace dead-letters show 0:1203 -c clicks.yaml --values
    """
    settings = _settings(file)
    options = rendered.options(settings)
    partition, offset = rendered.parsed(place, options.topics[0])
    letter = rendered.present(reader.letter_at(options, partition, offset), place)
    facts = rendered.facts(letter, values=values)
    typer.echo(json.dumps(facts, indent=2) if as_json else "\n".join(rendered.in_words(facts)))


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
    options = rendered.options(settings)
    wanted = Redrive(
        letters=options.topics[0],
        to=to,
        model=settings.name,
        reasons=rendered.reasons(reason or ()),
        limit=limit,
        again=again,
    )
    done = (plan_redrive if dry_run else carry_out)(options, wanted)
    if as_json:
        report = {"from": wanted.letters, "to": to, "dry_run": dry_run, "sent": done.sent, "stayed": done.stayed}
        typer.echo(json.dumps(report, indent=2))
    else:
        typer.echo("\n".join(rendered.redriven_in_words(done, wanted, dry_run=dry_run)))


def _settings(file: Path | None) -> Settings:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would log becomes our one line
    return loaded(file).settings
