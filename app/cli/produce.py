"""`millrace produce`: sends the files of a folder to a topic, also of a folder that grows."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from millrace.app.cli.config_file import ConfigFile
from millrace.app.cli.options import Json, loaded, print_json
from millrace.app.printable import printable
from millrace.app.service.process import Signals
from millrace.app.settings.connection import kafka_options
from millrace.app.tools.folder_producer import FolderOptions, FolderProducer, SentFiles
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.topic_writer import TopicWriter


def produce(
    folder: Annotated[Path, typer.Argument(help="The folder; the folders in it are read too.")],
    file: ConfigFile = None,
    topic: Annotated[
        str | None, typer.Option(help="The topic, which has to exist; default: the one of kafka.topics.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with files that come, until stopped.")] = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="Send each line as a record, as of JSON Lines and CSV; default: each file.")
    ] = False,
    header: Annotated[
        bool, typer.Option("--header", help="Leave out the first line of each file; only with --lines.")
    ] = False,
    quiet: Annotated[
        float, typer.Option(min=0, help="Send a file when nothing has changed it for this many seconds.")
    ] = 2.0,
    state: Annotated[
        Path | None, typer.Option(help="The file that remembers what was sent; default: in the folder itself.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send the files of a folder to a topic, each once, also over restarts.

    A file becomes a record, with its path as the key and its folder's name in the header `label`. Names that begin with
    a dot or an underscore, or end in .tmp or .part, are left out. With --follow, Ctrl-C or SIGTERM ends it after the
    file that it is at, and it exits 0.
    Example: millrace produce ./photos --follow -c photos.yaml
    """
    if header and not lines:
        raise ConfigError("--header: only lines can be left out; add --lines")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; name the one whose files are sent")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would log becomes our one line
    kafka = loaded(file).settings.kafka
    if topic is None:
        if len(kafka.topics) != 1:
            raise ConfigError(f"--topic: kafka.topics has {', '.join(kafka.topics)}; name one of them")
        topic = kafka.topics[0]
    options = replace(kafka_options(kafka), topics=(topic,))
    sent_files = SentFiles(state or folder / f".millrace-{topic}.sqlite")
    writer = TopicWriter(options, topic, setting="--topic", thread="produce")
    choice = FolderOptions(folder=folder, lines=lines, header=header, quiet_s=quiet)
    producer = FolderProducer(choice, sent_files, writer, lambda line: typer.echo(printable(line), err=True))
    with producer:
        try:
            if follow:
                signals = Signals()
                signals.install()
                signals.begin()
                producer.follow(signals.asked)
            else:
                producer.send_all()
        finally:
            done = producer.sent
            if as_json:
                print_json({"topic": topic, "files": done.files, "records": done.records, "bad": done.bad})
            else:
                bad = "".join(f", {count:,} {reason}" for reason, count in sorted(done.bad.items()))
                typer.echo(f"{done.files:,} files, {done.records:,} records to {topic}{bad}")
