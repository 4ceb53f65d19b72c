"""Rows in columns: formatted by rich in a terminal, else one line per row that other programs can read."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_GAP = 2
_UNBOUNDED = 100_000
"""The width of output that is not a terminal: no row is ever folded."""


def console() -> Console:
    """Return the console for rows: as wide as the terminal, or unbounded where there is none."""
    return Console(width=None if sys.stdout.isatty() else _UNBOUNDED, highlight=False, emoji=False)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], to: Console | None = None) -> None:
    """Print rows under their headings; the last column folds."""
    to = to or console()
    if to.width >= _UNBOUNDED:
        _print_plain([headings, *rows], to)
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


def _print_plain(rows: Sequence[Sequence[str]], to: Console) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "".join(cell.ljust(width + _GAP) for cell, width in zip(row, widths, strict=True))
        to.print(Text(line.rstrip()))
