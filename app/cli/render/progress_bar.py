"""The bar of what takes long, on stderr, so that stdout stays for programs; none where that is no terminal."""

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def started_bar() -> Progress | None:
    """Return a bar that is shown from now on, without a task yet; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, *times, console=Console(stderr=True), transient=True)
    bar.start()
    return bar
