"""`millrace local`: runs a Kafka or a whole group of workers to try things on, and writes records."""

import json
import logging
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.app.cli.config_file import ConfigFile, config_file
from millrace.app.cli.notes import note
from millrace.app.settings.environment import require_tensorflow_backend
from millrace.app.tools.local_broker import LocalBroker, LocalBrokerError
from millrace.app.tools.local_broker.jars import KAFKA_VERSION, in_cache
from millrace.app.tools.local_broker.produce import ProduceRate, produce_lines
from millrace.app.tools.local_broker.topics import create_topic, partitions_of

if TYPE_CHECKING:
    from millrace.app.tools.local_group import Place

local = typer.Typer(
    help="Run a Kafka on this machine, without Java or Docker, write records to it, and run a group of workers.",
    no_args_is_help=True,
)

_PORT = 9092
_ADDRESS = f"127.0.0.1:{_PORT}"
_LOOK_EVERY_S = 0.5


@local.command()
def broker(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on, on loopback; 0 for any free port.")
    ] = _PORT,
    folder: Annotated[Path, typer.Option(help="The folder for the data, which the next start finds again.")] = Path(
        ".millrace/broker"
    ),
    repository: Annotated[
        str | None,
        typer.Option(
            envvar="MILLRACE_MAVEN_REPOSITORY",
            help="A mirror of Maven Central: an address, or a folder with the same layout.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Run a single-node Kafka until Ctrl-C.

    Example: millrace local broker --port 0 --json
    """
    if not in_cache():
        typer.echo(f"Getting Kafka {KAFKA_VERSION}, once: about 44 MB.", err=True)
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    with LocalBroker(folder, port=port, repository=repository) as running:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        address, place = running.bootstrap_servers, str(running.folder)
        if as_json:
            typer.echo(json.dumps({"bootstrap_servers": address, "folder": place, "pid": running.pid}))
        else:
            typer.echo(
                f"Kafka {KAFKA_VERSION} serves on {address} (process {running.pid}, data in {place}). Ctrl-C stops it."
            )
        while not stopping.wait(_LOOK_EVERY_S):
            if not running.running():
                raise LocalBrokerError(f"the broker ended by itself: {running.last_words()}")


@local.command()
def produce(
    topic: Annotated[str, typer.Option(help="The topic to write to.")],
    source: Annotated[
        typer.FileBinaryRead,
        typer.Argument(metavar="[FILE]", help="A file with one record a line; - reads standard input."),
    ] = "-",  # type: ignore[assignment]  # typer opens what the text names
    bootstrap_servers: Annotated[
        str, typer.Option(envvar="MILLRACE_KAFKA__BOOTSTRAP_SERVERS", help="Kafka's address, host:port.")
    ] = _ADDRESS,
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")] = False,
    partitions: Annotated[
        int, typer.Option(min=1, help="The number of partitions of a topic created by --create.")
    ] = 1,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Records per second; default: as fast as possible.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=0, help="Write at most this many records.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Write the lines of a file to a topic, one record a line, the partitions in turn.

    Example: millrace local produce --topic clicks --create --partitions 4 clicks.jsonl
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would log becomes our one line
    if create and partitions_of(bootstrap_servers, topic) == 0:
        create_topic(bootstrap_servers, topic, partitions)
    report = produce_lines(bootstrap_servers, topic, source, ProduceRate(rate=rate, count=count))
    typer.echo(json.dumps(report.as_json()) if as_json else str(report))


@local.command()
def group(
    file: ConfigFile = None,
    workers: Annotated[int, typer.Option(min=2, max=256, help="How many processes learn the model together.")] = 2,
    until: Annotated[
        str | None,
        typer.Option(
            help="Learn up to this point, save and exit: now, a time, or offsets as in clicks:0=123,clicks:1=77."
        ),
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Start without learning, until `millrace resume`.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each start as JSON, one a line.")] = False,
) -> None:
    """Learn one model by a group of workers on this machine, until Ctrl-C.

    Each worker is a process of its own, as in a cluster, and is started again if it ends by itself. The chief has the
    `api.listen` of the config, the others the next free ports; the config's scale.workers does not count. TensorFlow
    lets the workers meet on ports that all networks of this machine reach, and whoever reaches one can run code here:
    only behind a firewall. Example: millrace local group -c clicks.yaml --workers 2
    """
    require_tensorflow_backend()
    config = config_file(file)
    from millrace.app.tools.local_group import run_locally  # noqa: PLC0415 - loads the settings

    def started(place: "Place", pid: int) -> None:
        said = {"worker": place.name, "pid": pid, "page": place.page}
        typer.echo(json.dumps(said) if as_json else f"{place.name}: process {pid}, {place.page}")

    note(
        "warning: a program that reaches the ports on which the workers meet can run code here; have a firewall "
        "before them"
    )
    code = run_locally(
        config,
        workers,
        until,
        paused=paused,
        in_terminal=sys.stderr.isatty(),
        started=started,
        write=lambda line: typer.echo(line, err=True),
    )
    raise typer.Exit(code)
