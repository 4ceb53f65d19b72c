"""`millrace dead-letters`: what was set aside, and why. Values are shown only to whoever asks for them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.settings import Settings

dead_letters = typer.Typer(help="Look at the records that were set aside; nothing is changed.", no_args_is_help=True)

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
    from app.cli import letters
    from app.cli.tables import print_table
    from consumers.letter_reader import newest_letters

    settings = _settings(file)
    found = newest_letters(letters.options(settings), last)
    topic = settings.records.dead_letters.topic
    if as_json:
        facts = [letters.facts(letter, values=values) for letter in found.newest]
        typer.echo(json.dumps({"topic": topic, "total": found.total, "letters": facts}, indent=2))
    elif not found.newest:
        typer.echo(f"topic {topic} holds no letters")
    else:
        print_table(letters.headings(values=values), [letters.row(one, values=values) for one in found.newest])
        typer.echo(f"{len(found.newest):,} of {found.total:,} in topic {topic}")


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
    from app.cli import letters
    from consumers.letter_reader import letter_at

    settings = _settings(file)
    options = letters.options(settings)
    partition, offset = letters.parsed(place, options.topics[0])
    letter = letters.present(letter_at(options, partition, offset), place)
    facts = letters.facts(letter, values=values)
    typer.echo(json.dumps(facts, indent=2) if as_json else "\n".join(letters.in_words(facts)))


def _settings(file: Path) -> "Settings":
    import logging

    from app.settings import load

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would say comes back as our one line
    return load(file).settings
