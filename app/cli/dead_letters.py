"""`millrace dead-letters`: what was set aside, and why, and the way back. Values are shown to whoever asks alone."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.settings import Settings

dead_letters = typer.Typer(help="Look at the records that were set aside, and send them on.", no_args_is_help=True)

Config = Annotated[Path, typer.Option("--config", "-c", help="The config file.")]
Values = Annotated[bool, typer.Option("--values", help="Show keys and values too, which may be anybody's data.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


@dead_letters.command("list")
def listing(
    file: Config,
    last: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest.")] = 20,
    values: Values = False,
    as_json: Json = False,
) -> None:
    """List the newest dead letters: reason, field, where the record came from and when it was written.

    Example: millrace dead-letters list -c clicks.yaml --last 100
    """
    from app.cli.render import dead_letters
    from app.cli.render.tables import print_table
    from consumers.dead_letters.reader import newest_letters

    settings = _settings(file)
    found = newest_letters(dead_letters.options(settings), last)
    topic = settings.records.dead_letters.topic
    if as_json:
        facts = [dead_letters.facts(letter, values=values) for letter in found.newest]
        typer.echo(json.dumps({"topic": topic, "total": found.total, "letters": facts}, indent=2))
    elif not found.newest:
        typer.echo(f"topic {topic} holds no letters")
    else:
        print_table(
            dead_letters.headings(values=values), [dead_letters.row(one, values=values) for one in found.newest]
        )
        typer.echo(f"{len(found.newest):,} shown; topic {topic} holds up to {found.total:,}")


@dead_letters.command()
def show(
    place: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="Where the letter is, as the list says.")],
    file: Config,
    values: Values = False,
    as_json: Json = False,
) -> None:
    """Tell all that is known of one dead letter.

    Example: millrace dead-letters show 0:1203 -c clicks.yaml --values
    """
    from app.cli.render import dead_letters
    from consumers.dead_letters.reader import letter_at

    settings = _settings(file)
    options = dead_letters.options(settings)
    partition, offset = dead_letters.parsed(place, options.topics[0])
    letter = dead_letters.present(letter_at(options, partition, offset), place)
    facts = dead_letters.facts(letter, values=values)
    typer.echo(json.dumps(facts, indent=2) if as_json else "\n".join(dead_letters.in_words(facts)))


@dead_letters.command()
def redrive(
    to: Annotated[str, typer.Option(metavar="TOPIC", help="Where the records go; it has to exist.")],
    file: Config,
    reason: Annotated[
        list[str] | None, typer.Option(help="Only what was set aside for this reason. May be repeated.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Send so many at most.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Send those too that were sent before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """Produce the records of dead letters again, as they were, to a topic that you name; each of them once.

    For when the schema, or what stands between, was mended. The letters stay where they are, and are marked.
    Example: millrace dead-letters redrive -c clicks.yaml --to clicks --reason missing --dry-run
    """
    from app.cli.render import dead_letters
    from consumers.dead_letters.redrive import Redrive, plan_redrive
    from consumers.dead_letters.redrive import redrive as carry_out

    settings = _settings(file)
    options = dead_letters.options(settings)
    wanted = Redrive(
        letters=options.topics[0],
        to=to,
        model=settings.name,
        reasons=dead_letters.reasons(reason or ()),
        limit=limit,
        again=again,
    )
    done = (plan_redrive if dry_run else carry_out)(options, wanted)
    if as_json:
        told = {"from": wanted.letters, "to": to, "dry_run": dry_run, "sent": done.sent, "stayed": done.stayed}
        typer.echo(json.dumps(told, indent=2))
    else:
        typer.echo("\n".join(dead_letters.redriven_in_words(done, wanted, dry_run=dry_run)))


def _settings(file: Path) -> "Settings":
    import logging

    from app.settings import load

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would say comes back as our one line
    return load(file).settings
