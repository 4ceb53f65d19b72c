"""Row states: what shaping remembers of the records of each partition, in the sequence in which it shapes their rows.

Each is a part of every checkpoint under its own name. Rows are shaped on the generator's thread; all else is for the
trainer's.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from millrace.consumers.records import Partition
from millrace.pipelines.schema import Column
from millrace.pipelines.stream.blocks import BlockFacts
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import Skipped


class RowShaper(Protocol):
    """Shapes the rows of one incarnation."""

    def shape(self, decoded: Decoded) -> tuple[Decoded, Sequence[Skipped]]:
        """Return the chunk with its new rows, and the records that give none, sorted by offset."""
        ...


class RowStates(Protocol):
    """What one kind of shaping remembers."""

    @property
    def name(self) -> str:
        """The name of its part."""
        ...

    def open(self, incarnation: int, positions: Mapping[Partition, int], *, at_once: bool = False) -> RowShaper:
        """Begin an incarnation at what is settled; `at_once` settles records as they are shaped."""
        ...

    def settle(self, facts: BlockFacts) -> None:
        """Follow a block whose records are settled."""
        ...

    def forget(self, partition: Partition) -> None:
        """Forget a partition: its topic was created again."""
        ...

    def saved(self) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return what is remembered at what is settled: arrays and facts."""
        ...

    def load(self, arrays: Mapping[str, Column], facts: Mapping[str, Any]) -> None:
        """Take over what `saved` has returned, or begin anew."""
        ...


class ShapersInTurn:
    """Shapes by each in turn."""

    def __init__(self, shapers: Sequence[RowShaper]) -> None:
        self._shapers = shapers

    def shape(self, decoded: Decoded) -> tuple[Decoded, Sequence[Skipped]]:
        """Return the chunk with the rows of the last, and the records that any leaves out, sorted by offset."""
        left_out: list[Skipped] = []
        for shaper in self._shapers:
            decoded, more = shaper.shape(decoded)
            left_out = sorted([*left_out, *more]) if left_out and more else [*left_out, *more]
        return decoded, left_out
