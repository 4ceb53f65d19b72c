"""`millrace run`: the service in the foreground."""

# ruff: noqa: PLC0415 - signals are handled before the slow imports, and a mistyped option is refused before TensorFlow

import logging
from importlib import import_module
from typing import Annotated

import typer

from millrace.app.cli.config_file import ConfigFile, config_file
from millrace.app.service.process import Signals, sparing_imports

log = logging.getLogger(__name__)

SHAPES = tuple(
    f"millrace.app.monitoring.{name}" for name in ("models", "checkpoint_models", "command_models", "data_view")
)
"""The modules of what the HTTP side answers."""


def run(
    file: ConfigFile = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Learn up to this point, save and exit: now, a time, or offsets as in clicks:0=123,clicks:1=77."
        ),
    ] = None,
    max_records: Annotated[int | None, typer.Option(min=1, help="Learn this many records, save and exit.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Start without learning, until `millrace resume`.")] = False,
    start_over: Annotated[
        bool,
        typer.Option("--start-over", help="Start a new history although there are checkpoints; those are kept."),
    ] = False,
) -> None:
    """Learn from the topic until stopped.

    On Ctrl-C or SIGTERM it finishes the call, saves, commits and exits 0; a second signal ends it at once. Example:
    millrace run -c clicks.yaml --until now
    """
    signals = Signals()
    signals.install()
    with sparing_imports():
        from millrace.app.settings import load
        from millrace.app.settings.environment import require_tensorflow_backend
        from millrace.consumers.kafka.positions import parse_until
        from millrace.training.model.export.writers import require_found
        from millrace.training.model.setup.model_file import require_file

        require_tensorflow_backend()
        notes: list[str] = []
        config = config_file(file, notes.append)
        loaded = load(config)
        require_file(loaded.settings.model.build.file)
        if loaded.settings.export.every is not None:
            require_found(loaded.settings.export.writers.values())
        end = None if until is None else parse_until(until)
        from millrace.app.service.logs import configure
        from millrace.app.service.native_log import load_tensorflow

        logs = loaded.settings.logs
        configure(name=loaded.settings.name, form=logs.format, level=logs.level)
        # Before TensorFlow, because Pydantic searches all modules for the source of each shape.
        for shapes in SHAPES:
            import_module(shapes)
        load_tensorflow()
        from millrace.app.run import run_service
        from millrace.app.service.service import RunOptions
        from millrace.app.tools.export.child_process import ExportProcess

    for text in notes:
        log.info("%s", text)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    options = RunOptions(
        until=end, max_records=max_records, paused=paused, start_over=start_over, run_export=ExportProcess(config)
    )
    raise typer.Exit(run_service(loaded, options, signals))
