"""The chain of a checkpoint: the segments of the journal that have led to it, from a state that can be begun with.

Reads only; TensorFlow is not needed. Segments are read one at a time, so that a long history takes little memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from millrace.consumers.records import Partition
from millrace.training.checkpoints.manifest import SaveReason
from millrace.training.errors import CorruptError, MissingCheckpointError, NotRebuildableError
from millrace.training.history.journal import JournalReader, Segment
from millrace.training.history.journal_blocks import RecordedBlock, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What it takes to make a checkpoint again."""

    number: int
    """The checkpoint."""
    base: int
    """The checkpoint to begin with."""
    beginning: Segment | None
    """The segment of the base where that is the beginning of the history; None where it is another checkpoint, or its
    beginning is older than the journal."""
    numbers: Sequence[int]
    """The checkpoints after the base, in the order in which they are made again."""
    blocks: int
    rows: int
    """Records in those blocks; some of them were set aside by their calls."""
    read: Callable[[int], Segment]
    """Reads the segment of one of them."""

    @property
    def last(self) -> Segment:
        """The segment of the checkpoint itself."""
        return self.read(self.number)

    def segments(self) -> Iterator[Segment]:
        """Yield the segments after the base."""
        yield from map(self.read, self.numbers)


def chain_to(reader: JournalReader, number: int) -> Chain:
    """Return the chain of a checkpoint. NotRebuildableError where the journal holds what cannot be learnt again."""

    def read(wanted: int) -> Segment:
        segment = reader.segment(wanted)
        if segment is None:
            raise CorruptError(f"the journal has lost the segment of checkpoint {wanted}")
        return segment

    if reader.segment(number) is None:
        raise MissingCheckpointError(_missing(reader, number))
    numbers = list[int]()
    blocks = rows = 0
    base: int | None = number
    while base is not None and (segment := reader.segment(base)) is not None:
        if segment.parent is None:
            return Chain(
                number=number, base=base, beginning=segment, numbers=numbers[::-1], blocks=blocks, rows=rows, read=read
            )
        for block in blocks_of(segment):
            blocks, rows = blocks + 1, rows + block.rows
        _require_repeatable(segment)
        numbers.append(base)
        base = segment.parent
    assert base is not None, "a segment without a parent ends the chain above"
    return Chain(number=number, base=base, beginning=None, numbers=numbers[::-1], blocks=blocks, rows=rows, read=read)


def blocks_of(segment: Segment) -> Iterator[RecordedBlock]:
    """Yield the blocks of a segment; CorruptError where they cannot be read."""
    try:
        yield from decode(segment.blocks, len(segment.positions))
    except ValueError as error:
        raise CorruptError(f"the journal's segment of checkpoint {segment.number} cannot be read: {error}") from error


def positions_after(segment: Segment) -> Mapping[Partition, int]:
    """Return the positions of a segment's checkpoint, in the order in which its blocks name the partitions."""
    return dict(sorted((Partition.parse(name), offset) for name, offset in segment.positions.items()))


def _require_repeatable(segment: Segment) -> None:
    if segment.reason == SaveReason.RECREATED:
        raise NotRebuildableError(
            f"checkpoint {segment.number} was made when a topic was deleted and created again, so the records before "
            "it are no longer there"
        )
    if any(block.lost for block in blocks_of(segment)):
        raise NotRebuildableError(
            f"checkpoint {segment.number} counts offsets as lost, which Kafka's retention had removed before they were "
            "read; an archive may have them now, and the weights have not seen them"
        )


def _missing(reader: JournalReader, number: int) -> str:
    if reader.problems:
        return f"the journal does not have checkpoint {number}: {reader.problems[0]}"
    there = ", ".join(map(str, reader.numbers[-5:])) or "none, as it begins with the next start"
    return (
        f"the journal does not have checkpoint {number}; the newest there are: {there}. It holds what was learnt with "
        "training.deterministic: true"
    )
