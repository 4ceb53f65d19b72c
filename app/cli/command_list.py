"""The `millrace` command: the list of its verbs, and nothing of what they do.

A verb's module is imported when the verb is used, and only then. So `millrace --help` answers at once, and a module can
import at its top what its verb needs, except TensorFlow: that takes seconds, and a mistyped config is refused before.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # not among the names that it exports
from typer.core import CompletionItem, TyperGroup  # type: ignore[attr-defined]  # as above

from millrace.app.cli.notes import report_failure, report_usage_error

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Verb:
    """A function that is one command, or a Typer that is a family of them."""

    place: str
    """The module and its name for the verb, as in app.cli.run:run."""
    help: str
    """The first sentence of the verb's own help; a test compares them."""


VERBS: Mapping[str, Verb] = {
    "init": Verb(
        "millrace.app.cli.init:init",
        "Read some of a topic's records, and write a millrace.yaml and a model.py that learn from it.",
    ),
    "validate": Verb("millrace.app.cli.validate:validate", "Check everything that a start needs, and change nothing."),
    "pretrain": Verb(
        "millrace.app.cli.pretrain:pretrain",
        "Train the model on the archive, a range of the topics, or files, and publish it as checkpoint 0 of a live "
        "model.",
    ),
    "run": Verb("millrace.app.cli.run:run", "Learn from the topic until stopped."),
    "status": Verb(
        "millrace.app.cli.status:status",
        "Show how a running service is doing: the verdict, live metrics, lag, throughput, and problems with a way out.",
    ),
    "pause": Verb(
        "millrace.app.cli.pause_resume:pause",
        "Pause learning in a running service; the service stays up and keeps its position.",
    ),
    "resume": Verb("millrace.app.cli.pause_resume:resume", "Resume learning in a paused service."),
    "checkpoints": Verb(
        "millrace.app.cli.checkpoints:checkpoints",
        "List, show, compare, verify, pin and export checkpoints, also while a trainer runs; save one now.",
    ),
    "export": Verb(
        "millrace.app.cli.export:export",
        "Make a version of the model that others can serve, from a durable checkpoint: a TensorFlow SavedModel.",
    ),
    "rewind": Verb(
        "millrace.app.cli.rewind:rewind",
        "Go back to a checkpoint and resume from there; the records after it are read again.",
    ),
    "fork": Verb(
        "millrace.app.cli.fork:fork",
        "Begin a changed model with what another has learnt, as checkpoint 0 of a new name; the old one goes on "
        "untouched.",
    ),
    "rebuild": Verb(
        "millrace.app.cli.rebuild:rebuild",
        "Learn a checkpoint again, from number 0, archive and topic, and compare it bit for bit.",
    ),
    "serve": Verb(
        "millrace.app.cli.serve:serve",
        "Answer TF Serving's REST requests with the newest export of the model, and swap to each newer one, until "
        "stopped.",
    ),
    "archive": Verb(
        "millrace.app.cli.archive:archive",
        "Write what the topics hold to files that outlive Kafka's retention; list, verify and prune them.",
    ),
    "data-service": Verb(
        "millrace.app.cli.data_service:data_service",
        "Run the dispatcher or a worker of a tf.data service, for `millrace pretrain --service`.",
    ),
    "dead-letters": Verb(
        "millrace.app.cli.dead_letters:dead_letters",
        "List the records that were set aside, show why, and send them again.",
    ),
    "produce": Verb(
        "millrace.app.cli.produce:produce", "Send the files of a folder to a topic, each once, also over restarts."
    ),
    "demo": Verb(
        "millrace.app.cli.demo:demo",
        "Show a model that learns from a stream whose rule changes: a local Kafka, a trainer, and a live view.",
    ),
    "bench": Verb(
        "millrace.app.cli.bench:bench",
        "Learn the topic's records at full speed for a while; report the rate, what limits it, and the headroom.",
    ),
    "prove": Verb(
        "millrace.app.cli.prove:prove",
        "Kill a trainer of your model again and again while it learns; show that no record is lost or learnt twice.",
    ),
    "config": Verb(
        "millrace.app.cli.config:config", "Show the effective settings, or the JSON Schema of a config file."
    ),
    "local": Verb(
        "millrace.app.cli.local:local",
        "Run a Kafka on this machine, without Java or Docker, write records to it, and run a group of workers.",
    ),
    "completion": Verb(
        "millrace.app.cli.completion:completion", "Print the script that lets a shell complete verbs and options."
    ),
    "version": Verb(
        "millrace.app.cli.version:version", "Print the versions of millrace, Python and the libraries that it runs on."
    ),
}
"""In the order in which --help lists them."""


class LazyCommands(Mapping[str, Any]):
    """The commands by name; each is imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = VERBS[name].place.partition(":")
        verb = getattr(import_module(module), attribute)
        if isinstance(verb, typer.Typer):
            return typer.main.get_group(verb)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name)(verb)
        return typer.main.get_command(single)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class LazyGroup(TyperGroup):
    """A group whose help is written from the list, without an import of any verb."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the list."""
        return list(VERBS)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the verbs that begin so, without an import of any; a verb completes its own options."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=verb.help) for name, verb in VERBS.items() if name.startswith(incomplete)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        """Write each verb with the first sentence of its help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


application = typer.Typer(
    name="millrace",
    cls=LazyGroup,
    help="A Kafka topic goes in; a Keras model that never stops learning comes out.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from millrace.app.version import version  # noqa: PLC0415 - reads the metadata of packages, which few invocations need

        typer.echo(f"millrace {version()}")
        raise typer.Exit


@application.callback()
def millrace(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command in this process's arguments and exit with its code."""
    _ready_streams()
    completion_init()
    # Not standalone: typer leaves errors to us, which have a form of their own under --json.
    raise SystemExit(ending(lambda: application(prog_name="millrace", standalone_mode=False)))


def _ready_streams() -> None:
    """Open the standard streams that are closed, and have stdout show what its encoding lacks as Python writes it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # It takes the number that is free, so that no file of a verb does, into which others would print.
            setattr(sys, name, Path(os.devnull).open("w" if number else "r", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def ending(command: Callable[[], object]) -> int:
    """Run a command to its end and give the exit code: the one place where an error becomes a line and a code.

    0 well; 1 failed; 2 usage or configuration; 3 unreachable; 4 refused because data would be lost or repeated; 130
    after Ctrl-C. An error that a user can repair is one line on stderr, or under `--json` one JSON object there. When
    the reader of a pipe closes it early (`| head`), the command exits 1 without a message; of a full disk it says so.
    Any other error is a defect of ours, and keeps its traceback.
    """
    try:
        code = _code_of(command)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        if error.filename is not None or _takes_output():
            raise
        _drop_output()
        report_failure([f"the output cannot be written: {error.strerror}"], 1)
        return 1
    return code


def _takes_output() -> bool:
    """Return whether stdout takes more: what it did not take may not be buffered any longer."""
    try:
        print(flush=True)
    except OSError:
        return False
    return True


def _drop_output() -> None:
    """Send what is still buffered to /dev/null, so that the interpreter's last flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _code_of(command: Callable[[], object]) -> int:
    try:
        code = command()
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as leaving:  # typer's own way to end, usage errors included
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except typer.TyperException as error:
        report_usage_error(error)
        return error.exit_code
    except typer.Abort:  # the end of the input to a question
        return 1
    except Exception as error:
        from millrace.consumers.errors import MillraceError  # noqa: PLC0415 - --help loads no stage

        if not isinstance(error, MillraceError):
            raise
        report_failure(getattr(error, "problems", (str(error),)), error.exit_code)  # settings can have several
        return error.exit_code
    return code if isinstance(code, int) else 0
