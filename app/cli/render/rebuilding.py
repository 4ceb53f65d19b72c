"""A rebuild as it goes: a bar in a terminal, and a line at its beginning and at its end."""

from typing import Self

import typer
from rich.progress import Progress, TaskID

from millrace.app.cli.notes import note
from millrace.app.cli.render.progress_bar import started_bar
from millrace.training.history.journal_chain import Chain


class RebuildLines:
    """Hears how the rebuild goes, and shows it."""

    def __init__(self, *, quiet: bool) -> None:
        """`quiet` prints no line, for output that a program reads."""
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        self._bar = started_bar()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def found(self, chain: Chain, remarks: list[str]) -> None:
        """Say what is about to be learnt, and begin the bar."""
        if not self._quiet:
            between = len(chain.numbers) - 1
            on_the_way = f", {between} checkpoint{'s' * (between > 1)} on the way" if between > 0 else ""
            typer.echo(
                f"rebuilding checkpoint {chain.number} from checkpoint {chain.base}: {chain.rows:,} records in "
                f"{chain.blocks:,} blocks{on_the_way}"
            )
        for remark in remarks:
            note(f"warning: {remark}")
        if self._bar is not None:
            self._task = self._bar.add_task(f"from checkpoint {chain.base}", total=max(1, chain.rows))

    def learnt(self, rows: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.advance(self._task, rows)

    def passed(self, number: int) -> None:
        """Say at which checkpoint the rebuild stands."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"checkpoint {number} is equal")
