"""`millrace local`: a Kafka to try things on, and records to put into it."""

from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer(help="A Kafka on this machine, without Java or Docker, to try things on.", no_args_is_help=True)

_PORT = 9092
_ADDRESS = f"127.0.0.1:{_PORT}"


@commands.command()
def broker(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to listen, on loopback; 0 for any free port.")
    ] = _PORT,
    folder: Annotated[Path, typer.Option(help="Holds the data, which the next start finds again.")] = Path(
        ".millrace/broker"
    ),
    repository: Annotated[
        str | None,
        typer.Option(
            envvar="MILLRACE_MAVEN_REPOSITORY", help="A mirror of Maven Central: an address, or a folder laid out so."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say where it is as JSON.")] = False,
) -> None:
    """Run a single-node Kafka until Ctrl-C.

    Example: millrace local broker --port 0 --json
    """
    from app.cli.foreground import serve
    from app.tools.local_broker import LocalBroker

    serve(LocalBroker(folder, port=port, repository=repository), as_json=as_json)


@commands.command()
def produce(
    topic: Annotated[str, typer.Option(help="The topic to write to.")],
    source: Annotated[
        typer.FileBinaryRead, typer.Argument(metavar="[FILE]", help="One record a line; - reads standard input.")
    ] = "-",  # type: ignore[assignment]  # typer opens what the text names
    bootstrap_servers: Annotated[str, typer.Option(help="Where Kafka is.")] = _ADDRESS,
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")] = False,
    partitions: Annotated[int, typer.Option(min=1, help="How many partitions a topic created here has.")] = 1,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Records a second; as fast as it goes by default.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=0, help="Records to write at most.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Write the lines of a file to a topic, one record a line, the partitions in turn.

    Example: millrace local produce --topic clicks --create --partitions 4 clicks.jsonl
    """
    import json
    import logging

    from app.tools.local_broker.produce import ProduceRate, produce_lines
    from app.tools.local_broker.topics import create_topic, partitions_of

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would say comes back as our one line
    if create and partitions_of(bootstrap_servers, topic) == 0:
        create_topic(bootstrap_servers, topic, partitions)
    report = produce_lines(bootstrap_servers, topic, source, ProduceRate(rate=rate, count=count))
    typer.echo(json.dumps(report.as_json()) if as_json else str(report))
