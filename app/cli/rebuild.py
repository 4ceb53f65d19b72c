"""`millrace rebuild`: learns a checkpoint again of its records, and compares the bits."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.app.cli.config_file import ConfigFile
from millrace.app.cli.notes import note
from millrace.app.cli.options import Json, loaded, print_json
from millrace.app.cli.tables import BarLines
from millrace.app.service.logs import configure
from millrace.app.service.native_log import load_tensorflow
from millrace.app.settings.environment import require_tensorflow_backend
from millrace.app.tools.rebuild.plan import require_rebuildable
from millrace.training.history.journal import Chain

if TYPE_CHECKING:
    from millrace.app.tools.rebuild.rebuild import Rebuilt


def rebuild(
    number: Annotated[
        int | None, typer.Argument(min=0, metavar="[N]", help="The checkpoint's number; default: the newest.")
    ] = None,
    file: ConfigFile = None,
    into: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the files of the rebuilt checkpoint there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn a checkpoint again, from number 0, archive and topic, and compare it bit for bit.

    Shows which records made these weights. It needs training.deterministic, changes nothing, and may run beside the
    trainer. Exits 1 where a bit differs. Example: millrace rebuild 17 -c clicks.yaml
    """
    require_tensorflow_backend()
    found = loaded(file)
    require_rebuildable(found.settings, into)
    configure(name=found.settings.name, form=found.settings.logs.format, level="error")
    load_tensorflow()
    # This loads TensorFlow.
    from millrace.app.tools.rebuild.rebuild import rebuild as learn_again  # noqa: PLC0415

    with RebuildLines(quiet=as_json) as lines:
        result = learn_again(found, number, into, lines)
    if as_json:
        print_json({**asdict(result), "equal": True})
    else:
        typer.echo(in_words(result))


def in_words(result: "Rebuilt") -> str:
    """Describe what was shown."""
    settings = "" if result.settings is None else f"; settings that differ without an effect: {result.settings}"
    by = "" if result.compared_with == "its files" else ", by the hashes in the journal"
    return (
        f"checkpoint {result.number} rebuilt from {result.records:,} records of {result.blocks:,} blocks, from "
        f"checkpoint {result.base} ({result.base_from}) on, in {result.seconds:.1f} s: equal, bit for "
        f"bit{by}{settings}"
    )


class RebuildLines(BarLines):
    """Hears how the rebuild goes, and shows it."""

    def found(self, chain: Chain, remarks: list[str]) -> None:
        """Say what is about to be learnt, and begin the bar."""
        between = len(chain.numbers) - 1
        on_the_way = f", {between} checkpoint{'s' * (between > 1)} on the way" if between > 0 else ""
        self.say(
            f"rebuilding checkpoint {chain.number} from checkpoint {chain.base}: {chain.rows:,} records in "
            f"{chain.blocks:,} blocks{on_the_way}"
        )
        for remark in remarks:
            note(f"warning: {remark}")
        self.begin(f"from checkpoint {chain.base}", max(1, chain.rows))

    def learnt(self, rows: int) -> None:
        """Move the bar."""
        self.advance(rows)

    def passed(self, number: int) -> None:
        """Say at which checkpoint the rebuild stands."""
        self.describe(f"checkpoint {number} is equal")
