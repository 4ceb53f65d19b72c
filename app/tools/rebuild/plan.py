"""The plan of a rebuild: the blocks of a chain, one after the other, with the checkpoints between them.

Reads the journal a segment at a time, so that a long history takes little memory; loads no TensorFlow.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace.app.settings import Settings
from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import Suspect, Turn
from millrace.pipelines.stream.recorded_feed import PlannedBlock
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import CorruptError, NotRebuildableError
from millrace.training.history.journal import Chain, Segment, blocks_of, positions_after
from millrace.training.history.journal_blocks import RecordedBlock
from millrace.training.ledger.interventions import Interventions
from millrace.training.ledger.ledger import NAME, Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a rebuild begins with."""

    positions: Mapping[Partition, int]
    turn: Turn | None = None
    """Where the strict rotation stands."""
    parts: Mapping[str, PartState] | None = None
    """The state of the checkpoint; None where it is the one that the model is built with."""

    def ledger(self) -> Ledger:
        """Return the ledger to begin with."""
        ledger = Ledger()
        if self.parts is not None:
            ledger.restore(self.parts[NAME])
        for partition, offset in self.positions.items():
            ledger.join_if_new(partition, offset)
        return ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStep:
    """A block to learn."""

    planned: PlannedBlock
    recorded: RecordedBlock


@dataclass(frozen=True, slots=True)
class SegmentBegins:
    """A checkpoint on the way comes next: first its interventions hold, then its blocks follow."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class SegmentEnds:
    """The state has to be that of a checkpoint on the way."""

    segment: Segment


Step = BlockStep | SegmentBegins | SegmentEnds


def require_rebuildable(settings: Settings, into: Path | None) -> None:
    """Raise ConfigError where the settings keep no journal, or the folder for the result holds anything."""
    if not settings.training.deterministic:
        raise ConfigError(
            "training.deterministic: it is false, so no journal is kept and timing decides the bits; with `true` (and "
            "training.max_wait: null, training.replicas: 1) what is learnt from then on can be rebuilt"
        )
    if into is not None and into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise ConfigError(f"--into: {into} is not an empty folder; name one that is, or that is not there yet")


def steps_of(chain: Chain, origin: Origin) -> Iterator[Step]:
    """Yield the steps of a chain in order."""
    ledger = origin.ledger()
    incarnation = ledger.begin_incarnation()
    table, at, turn = sorted(origin.positions), dict(origin.positions), origin.turn
    for segment in chain.segments():
        positions = positions_after(segment)
        if list(positions) != table:
            raise NotRebuildableError(f"checkpoint {segment.number} has other partitions than the one before it")
        if segment.orders is not None:
            ledger.follow(Interventions.of_facts(segment.orders))
        yield SegmentBegins(segment)
        for index, block in enumerate(blocks_of(segment), 1):
            ends = {partition: at[partition] + length for partition, length in zip(table, block.lengths, strict=True)}
            name = f"block {index} of checkpoint {segment.number}"
            planned = PlannedBlock(
                name=name,
                incarnation=incarnation,
                starts=at,
                ends=ends,
                rows=block.rows,
                turn=turn,
                turn_after=None if block.turn is None else Turn(sorted(at)[block.turn[0]], block.turn[1]),
                skips=ledger.skips,
            )
            yield BlockStep(planned=planned, recorded=block)
            at, turn = ends, planned.turn_after
        if at != positions:
            raise CorruptError(f"the journal's blocks do not lead to the positions of checkpoint {segment.number}")
        yield SegmentEnds(segment)


def bypassed(chain: Chain, origin: Origin) -> list[Suspect]:
    """Return the offsets of the blocks that bypassed the dataset's `preprocess`."""
    return [
        Suspect(partition=partition, start=start, end=step.planned.ends[partition])
        for step in steps_of(chain, origin)
        if isinstance(step, BlockStep) and step.recorded.bypassed
        for partition, start in step.planned.starts.items()
    ]
