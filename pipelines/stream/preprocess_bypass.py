"""The bypass: blocks that do not go through `preprocess`, because some of their rows have made it raise.

Owns such blocks between the feed's thread, which puts them in, and the trainer's thread, which takes them out. An
element without rows goes through the dataset in the place of each, so that the order of blocks stays. The bypass holds
no more blocks than the dataset prefetches; blocks that are never taken end with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import Block, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Offsets [start, end) of a partition, one of which has made `preprocess` raise."""

    partition: Partition
    start: int
    end: int

    def touches(self, spans: Iterable[Span]) -> bool:
        """Return whether any of the spans has rows that may be among these offsets."""
        return any(
            span.learnt and span.partition == self.partition and span.start < self.end and self.start < span.end
            for span in spans
        )


class Bypass:
    """Keeps the blocks that hold suspect offsets."""

    def __init__(self, suspects: Sequence[Suspect] = ()) -> None:
        self._suspects = tuple(suspects)
        # Without a lock: a block is put in before its number travels to the thread that takes it out.
        self._blocks: dict[int, Block] = {}

    def takes(self, block: Block) -> bool:
        """Keep the block if it is suspect, and return whether it is."""
        suspect = any(suspect.touches(block.facts.spans) for suspect in self._suspects)
        if suspect:
            self._blocks[block.facts.number] = block
        return suspect

    def take(self, number: int) -> Block | None:
        """Return the block of that number and forget it, or None if it was not kept."""
        return self._blocks.pop(number, None)
