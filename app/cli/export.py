"""`millrace export`: makes a version of the model that others can serve."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.app.cli.config_file import ConfigFile
from millrace.app.cli.options import Json, checkpoint_number, loaded, print_json
from millrace.app.service.logs import configure
from millrace.app.service.native_log import load_tensorflow
from millrace.app.settings.environment import require_tensorflow_backend
from millrace.app.tools.child_process import give_way
from millrace.app.tools.export.export_folder import folder_of

if TYPE_CHECKING:
    from millrace.app.tools.export.export import Exported
_LOOSE = """
checkpoint {} is not pinned, because its folder can only be read here: the trainer may prune it before the version"""


def export(
    which: Annotated[
        str, typer.Argument(metavar="[N|latest]", help="The checkpoint's number; default: the latest.")
    ] = "latest",
    file: ConfigFile = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder for exports, in place of export.path.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a version of the model that others can serve, from a durable checkpoint: a TensorFlow SavedModel.

    With export.formats: [saved_model, onnx] also an ONNX model, or what a class of yours writes. It takes raw features,
    and is published after a fresh process has answered as the model does. May run beside the trainer. Example:
    millrace export latest -c clicks.yaml
    """
    require_tensorflow_backend()
    number = checkpoint_number(which, "N|latest")
    found = loaded(file)
    folder = folder_of(found.settings, to)
    configure(name=found.settings.name, form=found.settings.logs.format, level="error")
    give_way()
    load_tensorflow()
    # This loads TensorFlow.
    from millrace.app.tools.export.export import compute_on_one_thread, export_checkpoint  # noqa: PLC0415

    compute_on_one_thread()
    made = export_checkpoint(found, number, folder)
    answer = {**made.manifest.body(), "folder": str(made.folder), "already": made.already, "pinned": made.pinned}
    if as_json:
        print_json(answer)
    else:
        typer.echo(in_words(made))


def in_words(made: "Exported") -> str:
    """Describe the version."""
    number, proof = made.manifest.number, made.manifest.proof
    if made.already:
        return f"version {number} is there already: {made.folder}"
    by = {"ONNX Runtime": made.manifest.onnx, **made.manifest.formats}
    others = "".join(f" ({found.max_difference:.2g} by {name})" for name, found in by.items() if found is not None)
    memory = made.manifest.memory
    keys = "" if memory is None else f", with the last records of {memory.keys:,} keys"
    if memory is not None and memory.left_out:
        keys += f" ({memory.left_out:,} are left out: export.memory)"
    loose = "" if made.pinned else _LOOSE.format(number)
    return (
        f"version {number} is published: {made.manifest.size:,} bytes in {made.folder}{keys}, proven on {proof.rows} "
        f"records ({proof.records}) with a difference of {proof.max_difference:g}{others}, in {made.seconds:.1f} s"
        f"{loose}"
    )
