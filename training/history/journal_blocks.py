"""The journal's blocks: what it takes to make each block of a deterministic run again, in a few bytes.

Owns the encoding, and the bytes that are collected between two checkpoints; pure. Partitions stand by their place in
the sorted table of the history, and a block begins where the one before it has ended. So a block is: flags, rows, rows
set aside by the call, the turn of the strict rotation after it, and of each partition how many offsets it covers, each
as a varint; a run of partitions that are not in the block is a 0 and its length.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts
from millrace.training.ledger.ledger import Ledger

_SEARCHED, _BYPASSED, _LOST, _TURN = 1, 2, 4, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBlock:
    """One settled block, without its records."""

    lengths: tuple[int, ...]
    """How many offsets it covers of each partition of the table; 0 for one that is not in it."""
    rows: int
    refused: int = 0
    """How many of the rows the call found unfit, so that they were set aside."""
    turn: tuple[int, int] | None = None
    """Where the strict rotation stood after it: the place of the partition, and how much of its share was taken."""
    searched: bool = False
    """Whether it was searched for culprits, as it had made a call raise before: learnt in smaller tries."""
    bypassed: bool = False
    """Whether it bypassed the dataset's `preprocess`, which had raised on it before."""
    lost: bool = False
    """Whether it counts offsets as lost that retention had removed."""


def encode(block: RecordedBlock) -> bytes:
    """Return the bytes of a block."""
    flags = block.searched * _SEARCHED | block.bypassed * _BYPASSED | block.lost * _LOST
    numbers = [flags | (block.turn is not None) * _TURN, block.rows, block.refused, *(block.turn or ())]
    zeros = 0
    for length in block.lengths:
        if length:
            numbers += [0, zeros, length] if zeros else [length]
            zeros = 0
        else:
            zeros += 1
    if zeros:
        numbers += [0, zeros]
    # Most numbers are below 128, and are their own byte.
    return b"".join(map(_varint, numbers)) if max(numbers) > 127 else bytes(numbers)


def decode(raw: bytes, partitions: int) -> Iterator[RecordedBlock]:
    """Yield the blocks of a history of so many partitions; ValueError for bytes that are none."""
    numbers = _numbers(raw)
    for flags in numbers:
        if flags >= 2 * _TURN:
            raise ValueError(f"a block has the unknown flags {flags}")
        try:
            rows, refused = next(numbers), next(numbers)
            turn = (next(numbers), next(numbers)) if flags & _TURN else None
            lengths = list[int]()
            while len(lengths) < partitions:
                length = next(numbers)
                lengths += [length] if length else [0] * next(numbers)
        except StopIteration:
            raise ValueError("the last block is cut off") from None
        if len(lengths) > partitions:
            raise ValueError(f"a block names {len(lengths)} partitions, of {partitions}")
        yield RecordedBlock(
            lengths=tuple(lengths),
            rows=rows,
            refused=refused,
            turn=turn,
            searched=bool(flags & _SEARCHED),
            bypassed=bool(flags & _BYPASSED),
            lost=bool(flags & _LOST),
        )


class BlockRecorder:
    """The blocks that were settled since the checkpoint from which the state in memory comes.

    Runs on the trainer's thread. It holds some 10 bytes a block until a checkpoint is durable.
    """

    def __init__(self, partitions: Callable[[], Sequence[Partition]]) -> None:
        """`partitions` returns those of the history, sorted; it is asked once a checkpoint."""
        self._partitions = partitions
        self._table: dict[Partition, int] = {}
        self._raw = bytearray()

    def note(self, facts: BlockFacts, *, refused: int, searched: bool, bypassed: bool) -> None:
        """Add a block whose records are settled."""
        if not self._table:
            self._table = {partition: place for place, partition in enumerate(self._partitions())}
        lengths = [0] * len(self._table)
        for span in facts.spans:
            lengths[self._table[span.partition]] = span.end - span.start
        self._raw += encode(
            RecordedBlock(
                lengths=tuple(lengths),
                rows=facts.rows,
                refused=refused,
                turn=None if facts.turn is None else (self._table[facts.turn.partition], facts.turn.taken),
                searched=searched,
                bypassed=bypassed,
                lost=any(span.lost for span in facts.spans),
            )
        )

    def since(self) -> bytes:
        """Return the blocks since the checkpoint."""
        return bytes(self._raw)

    def drop(self, saved: int) -> None:
        """Forget the first bytes, which a durable checkpoint holds."""
        del self._raw[:saved]

    def clear(self) -> None:
        """Forget all blocks: the state in memory is that of a checkpoint again."""
        self._raw.clear()
        self._table = {}


def recorder_of(ledger: Ledger) -> BlockRecorder:
    """Return a recorder for the history that a ledger holds."""
    return BlockRecorder(lambda: sorted(ledger.positions()))


def _varint(number: int) -> bytes:
    raw = bytearray()
    while number > 127:
        raw.append(number & 127 | 128)
        number >>= 7
    raw.append(number)
    return bytes(raw)


def _numbers(raw: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in raw:
        number |= (byte & 127) << shift
        if byte & 128:
            shift += 7
            continue
        yield number
        number = shift = 0
    if shift:
        raise ValueError("the last number is cut off")
