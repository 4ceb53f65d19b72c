"""Rows in columns: formatted by rich in a terminal, else one line per row that other programs can read; and a bar."""

import sys
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from millrace.app.printable import printable

_GAP = 2
_UNBOUNDED = 100_000
"""The width of output that is not a terminal: no row is ever folded."""


def console() -> Console:
    """Return the console for rows: as wide as the terminal, or unbounded where there is none."""
    return Console(width=None if sys.stdout.isatty() else _UNBOUNDED, highlight=False, emoji=False)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], to: Console | None = None) -> None:
    """Print rows under their headings; the last column folds."""
    to = to or console()
    # A name on disk, or a header, may hold anything.
    rows = [[printable(cell) for cell in row] for row in rows]
    if to.width >= _UNBOUNDED:
        lines = [headings, *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for cells in lines:
            line = "".join(cell.ljust(width + _GAP) for cell, width in zip(cells, widths, strict=True))
            to.print(Text(line.rstrip()))
        return
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading is not headings[-1])
    for row in rows:
        table.add_row(*map(Text, row))
    to.print(table)


def print_line(widths: Sequence[int], cells: Sequence[Text], to: Console) -> None:
    """Print one row of a table that grows; all columns but the last have these widths."""
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    for width in widths:
        grid.add_column(width=width, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(*cells)
    to.print(grid)


class BarLines:
    """Lines on stdout, and a bar on stderr while it is entered, so that stdout stays for programs.

    There is no bar where stderr is no terminal. `quiet` prints no line, for output that a program reads.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._bar = Progress(*columns, *times, console=console, transient=True, disable=not sys.stderr.isatty())
        self._task = self._bar.add_task("", visible=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Print a line, unless it is quiet."""
        if not self._quiet:
            print(line)

    def begin(self, description: str, total: int) -> None:
        """Show the bar from its beginning."""
        self._bar.reset(self._task, total=total, description=description, visible=True)

    def advance(self, by: int) -> None:
        """Move the bar."""
        self._bar.advance(self._task, by)

    def describe(self, description: str) -> None:
        """Replace the text before the bar."""
        self._bar.update(self._task, description=description)
