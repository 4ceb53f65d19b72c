"""Epochs as they go: a bar in a terminal, else a line when each ends. The lines go to stdout, the bar to stderr."""

from collections.abc import Iterator
from typing import Self

import typer
from rich.progress import Progress, TaskID

from millrace.app.cli.render.progress_bar import started_bar
from millrace.app.tools.pretrain.shard_sources import ShardSource
from millrace.training.pretraining.epochs import Epoch


class EpochLines:
    """Hears how the pretraining goes, and shows it."""

    def __init__(self, epochs: int, *, quiet: bool) -> None:
        """`quiet` prints no line, for output that a program reads."""
        self._epochs, self._quiet = epochs, quiet
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        self._bar = started_bar()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def dealt(self, training: ShardSource, validation: ShardSource | None) -> None:
        """Say what is trained and validated on."""
        self._print(f"training on {training.rows:,} rows of {training.what}, {_validating(training, validation)}")

    def began(self, epoch: int, rows: int) -> None:
        """Begin the bar of an epoch."""
        if self._bar is not None:
            self._bar.reset(self._task) if self._bar.tasks else self._bar.add_task("", total=rows)
            self._bar.update(self._task, total=rows, description=f"epoch {epoch} of {self._epochs}")

    def advanced(self, rows: int, loss: float) -> None:
        """Move the bar."""
        del loss
        if self._bar is not None:
            self._bar.advance(self._task, rows)

    def ended(self, epoch: Epoch) -> None:
        """Print the lines of an epoch."""
        for line in lines_of(epoch, self._epochs):
            self._print(line)

    def _print(self, line: str) -> None:
        if not self._quiet:
            typer.echo(line)


def lines_of(epoch: Epoch, epochs: int) -> Iterator[str]:
    """Give what an epoch has learnt, and what it has visited."""
    name = f"epoch {epoch.number} of {epochs}"
    rate = epoch.learnt / epoch.seconds if epoch.seconds else 0.0
    figures = ", ".join(f"{figure} {value:.4g}" for figure, value in epoch.figures.items())
    yield f"{name}: {figures}; {epoch.learnt:,} rows in {epoch.seconds:.1f} s ({rate:,.0f} rows/s)"
    aside = ", ".join(f"{count:,} {reason}" for reason, count in sorted(epoch.set_aside.items()))
    left_out = ", ".join(f"{count:,} by {setting}" for setting, count in sorted(epoch.left_out.items()))
    told = (f"; set aside {aside}" if aside else "") + (f"; left out {left_out}" if left_out else "")
    yield f"{name}: {epoch.visited}{told}"
    for shard, rows in list(epoch.visited.lacking.items())[:5]:
        yield f"{name}: {rows:,} rows of {shard} were not visited"


def _validating(training: ShardSource, validation: ShardSource | None) -> str:
    """Say how many rows are validated on, their share of all, and which they are."""
    if validation is None:
        return "validating on none"
    share = validation.rows / (training.rows + validation.rows)
    if validation.archived:
        given, every = (len({shard.partition for shard in part.archived}) for part in (validation, training))
        of = "" if every == 1 else f" of each of {every} partitions"
        which = "the newest" + (of if given == every else f" of {given} of {every} partitions")
    else:
        files = len(validation.shards)
        which = f"the newest {files} of {files + len(training.shards)} files"
    return f"validating on {validation.rows:,} ({share:.1%}): {which}".replace("%)", " %)")
