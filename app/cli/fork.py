"""`millrace fork`: a changed model goes on with what another has learnt, under a name of its own."""

import shlex
from typing import Annotated

import typer

from millrace.app.cli.config_file import ConfigFile, config_file
from millrace.app.cli.notes import note
from millrace.app.cli.options import Json, print_json
from millrace.app.service.logs import configure
from millrace.app.service.native_log import load_tensorflow
from millrace.app.settings import load
from millrace.app.settings.environment import require_tensorflow_backend
from millrace.app.tools.fork.origin import find_origin, loaded_as, parsed
from millrace.consumers.kafka.positions import parse_start


def fork(
    origin: Annotated[
        str, typer.Argument(metavar="NAME@N", help="The model and its checkpoint, as in clicks@37 or clicks@latest.")
    ],
    name: Annotated[str, typer.Option("--as", metavar="NEW", help="The name of the new model.")],
    file: ConfigFile = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="Replay the topics from here: earliest, an age as in -7d, a time; default: its position."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Begin a changed model with what another has learnt, as checkpoint 0 of a new name; the old one goes on untouched.

    The config is that of the new model, or the old one's, read under the new name. Weights are matched by layer; what
    the optimizer knows is kept where it fits. Example: millrace fork clicks@37 --as clicks-wide -c wide.yaml
    """
    require_tensorflow_backend()
    old, number = parsed(origin)
    at = None if start is None else parse_start(start)
    config = config_file(file)
    found = loaded_as(config, old, name)
    for warning in found.warnings:
        note(f"warning: {warning}")
    comes_from = find_origin(found.settings, old, number)
    configure(name=found.settings.name, form=found.settings.logs.format, level="warning")
    load_tensorflow()
    from millrace.app.tools.fork.fork import fork as begin  # noqa: PLC0415 - loads TensorFlow

    forked = begin(found, comes_from, at)
    facts = forked.manifest.provenance["forked_from"]
    if as_json:
        print_json({"name": name, "forked_from": facts, "positions": forked.manifest.positions})
    else:
        positions = ", ".join(f"{partition}={offset}" for partition, offset in forked.manifest.positions.items())
        given = "" if load(config).settings.name == name else f"MILLRACE_NAME={name} "
        typer.echo(
            "\n".join(
                [
                    f"{name}@0 is a fork of {forked.table.summary()}",
                    *forked.table.lines(),
                    f"of the optimizer's variables {forked.slots.kept} go on and {forked.slots.new} start new",
                    f"it reads {facts['reads']}: {positions}",
                    f"start it: {given}millrace run -c {shlex.quote(str(config))}",
                ]
            )
        )
