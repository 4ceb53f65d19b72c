"""`millrace checkpoints`: lists, shows, compares, verifies, pins and exports what was saved; has one saved now."""

import getpass
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from millrace.app.api.checkpoint_reads import best_number
from millrace.app.cli.checkpoint_texts import (
    VARIABLES,
    as_row,
    comparison_facts,
    comparison_in_words,
    comparison_summary,
    described,
    headings,
    in_words,
    listed,
    variable_rows,
    watched_in,
)
from millrace.app.cli.config_file import ConfigFile
from millrace.app.cli.options import Json, ServiceOptions, grouped, loaded, named_checkpoint, print_json
from millrace.app.cli.tables import print_table
from millrace.app.printable import printable
from millrace.app.service.native_log import load_tensorflow
from millrace.app.settings import Settings
from millrace.app.settings.environment import require_tensorflow_backend
from millrace.app.tools.service_client import saved
from millrace.consumers.suggested_command import suggested_command
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.inspection import Condition
from millrace.training.checkpoints.parts import PartState
from millrace.training.checkpoints.pins import Pins
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import CorruptError, MissingCheckpointError
from millrace.training.history.comparison import compare
from millrace.training.history.lineage import lineage_of
from millrace.training.history.rewind_target import best_good

checkpoints = typer.Typer(
    help="List, show, compare, verify, pin and export checkpoints, also while a trainer runs; save one now.",
    no_args_is_help=True,
)

Which = Annotated[
    str,
    typer.Argument(
        metavar="latest|best|N", help="The latest, the best by the watched metric, or a checkpoint's number."
    ),
]


_CORRECTED = "its last bias is corrected: the model predicts the stream as it is, not the balanced one"
_UNCORRECTED = (
    "it predicts rare classes too often, because it was learnt with balance: correct it as docs/shaping.md says, with "
    "training.classes of /status"
)


@checkpoints.command()
@grouped
def save(
    note: Annotated[str | None, typer.Option(help="A note that is kept with the checkpoint.")] = None,
    *,
    service: ServiceOptions,
    as_json: Json = False,
) -> None:
    """Have a running service save a checkpoint now, and wait until it is durable.

    Example: millrace checkpoints save -c clicks.yaml --note "before the new schema"
    """
    body = {} if note is None else {"note": " ".join(note.split())}
    answer = saved(service.client(), body)
    made = answer["checkpoint"]
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"checkpoint {made['number']} is durable, at step {made['step']:,}")


@checkpoints.command("list")
def listing(file: ConfigFile = None, as_json: Json = False) -> None:
    """List all checkpoints, the newest first, with the value of the watched metric when each was made.

    Example: millrace checkpoints list -c clicks.yaml
    """
    found = _store(_settings(file)).listing()
    if as_json:
        print_json(listed(found))
    elif not found:
        typer.echo("there are no checkpoints yet")
    else:
        watched, best = watched_in(found), best_number(found)
        print_table(headings(watched), [as_row(one, watched, best=best, now_s=time.time()) for one in found])


@checkpoints.command()
def show(which: Which, file: ConfigFile = None, as_json: Json = False) -> None:
    """Show where a checkpoint comes from.

    The offsets in it and their outcome, their event times, what was skipped, when, why, by whom and with which versions
    it was made, and its ancestors back to the first checkpoint. Example:
    millrace checkpoints show latest -c clicks.yaml
    """
    store = _store(_settings(file))
    lineage = lineage_of(store, store.look(_chosen(store, which)))
    if as_json:
        print_json(described(lineage))
    else:
        typer.echo("\n".join(map(printable, in_words(lineage))))


@checkpoints.command()
def diff(
    first: Annotated[int, typer.Argument(min=0, metavar="A", help="A checkpoint's number.")],
    second: Annotated[int, typer.Argument(min=0, metavar="B", help="Another checkpoint's number.")],
    file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two checkpoints: offsets, commands, settings, code, and each variable's numbers.

    Example: millrace checkpoints diff 36 37 -c clicks.yaml
    """
    found = compare(_store(_settings(file)), first, second)
    if as_json:
        print_json(comparison_facts(found))
        return
    typer.echo("\n".join(map(printable, comparison_in_words(found))) + "\n")
    print_table(VARIABLES, variable_rows(found))
    typer.echo(comparison_summary(found))


@checkpoints.command()
def verify(
    file: ConfigFile = None,
    number: Annotated[int | None, typer.Argument(min=0, help="The checkpoint's number; default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Read and hash every byte. Exits 4 if a checkpoint is corrupt, or if the one with NUMBER cannot be loaded.

    Example: millrace checkpoints verify 37 -c clicks.yaml
    """
    store = _store(_settings(file))
    found = store.listing(deep=True) if number is None else [store.verify(number)]
    if as_json:
        print_json(listed(found))
    else:
        print_table(
            ["number", "condition", "problems"],
            [
                [one.name if one.number is None else str(one.number), one.condition.value, "; ".join(one.problems)]
                for one in found
            ],
        )
    bad = [one for one in found if one.condition is Condition.CORRUPT or (number is not None and not one.verified)]
    if bad:
        named = [one.name if one.number is None else f"checkpoint {one.number} is {one.condition}" for one in bad]
        raise CorruptError(
            f"{', '.join(named)}: it must not be loaded; restore it from a copy, or resume "
            f"from another one by `{suggested_command('rewind', '--to')} NUMBER`"
        )


Number = Annotated[int, typer.Argument(min=0, metavar="N", help="The checkpoint's number.")]


@checkpoints.command()
def pin(
    number: Number,
    by: Annotated[str | None, typer.Option(help="Who wants it to stay; default: your user's name.")] = None,
    file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Keep a checkpoint whatever checkpoints.keep says, until it is unpinned; a running trainer heeds it at once.

    Example: millrace checkpoints pin 37 -c clicks.yaml --by ann
    """
    store = _store(_settings(file))
    held = store.pin(number, _user() if by is None else by)
    if as_json:
        print_json({"number": number, "pins": _pins(store, number)})
    else:
        typer.echo(printable(f"checkpoint {number} is pinned by {held.by} since {held.since}"))


@checkpoints.command()
def unpin(
    number: Number,
    by: Annotated[str | None, typer.Option(help="Lift only the pin of this holder; default: all of them.")] = None,
    file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Lift the pins of a checkpoint, so that checkpoints.keep applies to it again.

    Example: millrace checkpoints unpin 37 -c clicks.yaml
    """
    store = _store(_settings(file))
    lifted = store.unpin(number, by)
    left = _pins(store, number)
    if as_json:
        print_json({"number": number, "pins": left})
    else:
        still = "" if not left else f"; still pinned by {', '.join(pin['by'] for pin in left)}"
        typer.echo(
            printable(f"checkpoint {number} is no longer pinned by {', '.join(pin.by for pin in lifted)}{still}")
        )


def _pins(store: CheckpointStore, number: int) -> list[dict[str, str]]:
    return [{"by": pin.by, "since": pin.since} for pin in Pins(store.folder).of(number)]


def _user() -> str:
    """Return the name of the user that types; a number where the system has no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return f"user {os.getuid()}"


@checkpoints.command()
def weights(
    which: Which,
    out: Annotated[Path, typer.Argument(metavar="OUT.weights.h5", help="The file to write.")],
    file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint's weights as a Keras .weights.h5 file, for `model.load_weights` without millrace.

    Example: millrace checkpoints weights 37 clicks.weights.h5 -c clicks.yaml
    """
    require_tensorflow_backend()
    load_tensorflow()
    # These load TensorFlow, which the other verbs of the family do without.
    from millrace.app.service.kept_sample import RecordSamples  # noqa: PLC0415
    from millrace.app.service.model_setup import load_model  # noqa: PLC0415
    from millrace.training.model.call.class_balance import NAME as SHAPING  # noqa: PLC0415
    from millrace.training.model.call.class_balance import correct_last_layer  # noqa: PLC0415
    from millrace.training.model.call.running_scale import NAME as SCALE  # noqa: PLC0415
    from millrace.training.model.call.running_scale import constants_of  # noqa: PLC0415
    from millrace.training.model.weights.weights import PART, checked_target, model_with_weights, write_weights  # noqa: PLC0415

    settings = _settings(file)
    checked_target(out)
    store = _store(settings)
    number = _chosen(store, which)
    balance = settings.balance.for_rows(settings.row_schema)
    schema = settings.row_schema
    state = store.load(number, only={PART, SHAPING, SCALE})
    kept = RecordSamples(settings, Folder(settings.checkpoints.path / settings.name)).kept
    model = model_with_weights(load_model(settings), schema, state[PART], (kept,))
    corrected = balance is not None and correct_last_layer(model, balance, state.get(SHAPING, PartState()))
    written = write_weights(model, out)
    answer = {"checkpoint": number, "bytes": written, "file": str(out)}
    if balance is not None:
        answer["corrected"] = corrected
    constants = constants_of(schema, state.get(SCALE))
    scale = {name: {"mean": mean.tolist(), "factor": factor.tolist()} for name, (mean, factor) in constants.items()}
    if scale:
        answer["scale"] = scale
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"wrote {written:,} bytes of checkpoint {number} to {out}")
        if balance is not None:
            typer.echo(_CORRECTED if corrected else _UNCORRECTED)
        for name, by in scale.items():
            typer.echo(f"it takes {name} less {by['mean']}, times {by['factor']}, cut at -10 and 10")


def _settings(file: Path | None) -> "Settings":

    return loaded(file).settings


def _store(settings: "Settings") -> "CheckpointStore":

    return CheckpointStore(Folder(settings.checkpoints.path / settings.name))


def _chosen(store: "CheckpointStore", which: str) -> int:
    """Return the number of a checkpoint; latest is the one that a start would resume from."""
    named = named_checkpoint(which, "latest|best|N")
    if isinstance(named, int):
        return named
    if named == "best":
        return best_good(store.listing()).number
    newest = store.newest()
    if newest is None:
        raise MissingCheckpointError("there are no checkpoints yet; a first start makes number 0")
    return newest.number
