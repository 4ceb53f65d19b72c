"""The bypass: blocks that are led past `preprocess`, because rows of theirs have made it raise.

Owns such blocks between the feed's thread, which puts them in, and the trainer's, which takes them out; an element
without rows travels through the dataset in the place of each, so that the order stays. It holds no more of them than
the dataset prefetches, and what is never taken ends with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from consumers.records import Partition
from pipelines.blocks import Block, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Offsets [start, end) of a partition, among which a record has made something raise."""

    partition: Partition
    start: int
    end: int

    def touches(self, spans: Iterable[Span]) -> bool:
        """Whether any span has rows that may be among them."""
        return any(
            span.learnt and span.partition == self.partition and span.start < self.end and self.start < span.end
            for span in spans
        )


class Bypass:
    """Leads the blocks past that touch what is suspect."""

    def __init__(self, suspects: Sequence[Suspect] = ()) -> None:
        self._suspects = tuple(suspects)
        self._blocks: dict[int, Block] = {}

    def takes(self, block: Block) -> bool:
        """Keep the block if it is suspect. Whether it is."""
        suspect = any(suspect.touches(block.facts.spans) for suspect in self._suspects)
        if suspect:
            self._blocks[block.facts.number] = block
        return suspect

    def take(self, number: int) -> Block | None:
        """The block of that number, if it was kept; given once."""
        return self._blocks.pop(number, None)
