"""Rebuilding a checkpoint: which records made these weights, shown by learning them once more.

Reads the project's folder and takes no lock of it, so a trainer may run meanwhile; writes only where it is told to keep
the result. (1) the chain of the checkpoint in the journal, (2) its records are there, (3) the model, (4) the state to
begin with, (5) each block of each segment, and at each checkpoint on the way the hashes, (6) the checkpoint's files.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from millrace.app.service.kafka_stream import ROTATION_ROWS
from millrace.app.service.kept_sample import RecordSamples
from millrace.app.service.label_join import awaited, connect_labels
from millrace.app.service.model_setup import build_learner, live_metrics_of
from millrace.app.service.provenance import hyperparameter_options, provenance_of
from millrace.app.service.step_numbers import as_recorded
from millrace.app.service.watchers import detectors_of
from millrace.app.settings import Loaded, Settings, to_decoder
from millrace.app.settings.connection import kafka_history, kafka_options
from millrace.app.tools.rebuild.plan import BlockStep, Origin, SegmentBegins, SegmentEnds, bypassed, steps_of
from millrace.consumers.errors import HandoffBroken, HandoffEmpty, HandoffEnded, MillraceError
from millrace.consumers.handoff import Handoff, ReceiveEnd
from millrace.consumers.kafka.positions import Latest
from millrace.consumers.kafka.replaying import PartitionHistory
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.gates.label_gate import LabelGate
from millrace.pipelines.shaping.labels.clock import Jumps
from millrace.pipelines.shaping.labels.join import UNKNOWN
from millrace.pipelines.shaping.shaper import Shaper, closed_by, open_shapers
from millrace.pipelines.stream.blocks import Delivery
from millrace.pipelines.stream.dataset import DatasetOptions, Deliveries, PreprocessError
from millrace.pipelines.stream.recorded_feed import PlannedBlock, RecordedFeed, RecordedOptions
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.part_files import part_sources
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import CorruptError, MissingCheckpointError, NotRebuildableError, RebuiltOtherwiseError
from millrace.training.history.comparison import first_difference
from millrace.training.history.journal import Chain, JournalReader, Segment, chain_to, positions_after
from millrace.training.ledger.ledger import NAME, Ledger
from millrace.training.model.learner import Learner
from millrace.training.model.setup.cores import usable_cores
from millrace.training.model.setup.model_code import is_code_of, named
from millrace.training.trainer.relearning import Relearning, Relearnt
from millrace.training.trainer.state import Progress, release

_SETTINGS = "hyperparameters.json"

_CONNECT_S, _STOP_S, _TICK_S = 15.0, 5.0, 0.5
_MEMORY_SHARE = 0.35
_INCARNATION = 1
Offsets = Mapping[Partition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A checkpoint that was made again."""

    number: int
    base: int
    base_from: str
    """Where the state to begin with came from: the checkpoint's files, or the model's own first weights."""
    checkpoints: int
    """How many checkpoints were made again, this one included; each had the same bits."""
    blocks: int
    records: int
    """Records that were learnt; those that their calls set aside do not count."""
    compared_with: str
    """What it was compared with: the checkpoint's files, or the journal's hashes of them."""
    settings: str | None
    """What the settings say otherwise than then, though it has changed no bit of the state."""
    seconds: float


class RebuildReport(Protocol):
    """Hears how a rebuild goes."""

    def found(self, chain: Chain, remarks: list[str]) -> None:
        """Hear what is about to be learnt, and what may be in the way of the same bits."""
        ...

    def learnt(self, rows: int) -> None:
        """Hear that so many more rows are learnt."""
        ...

    def passed(self, number: int) -> None:
        """Hear that a checkpoint on the way has the same bits."""
        ...


class RecordReader:
    """Reads each partition from a start to an end, in order: from the archive as far as it reaches, else from Kafka.

    Owns the connection to Kafka, which is made only where the archive lacks something, and the chunk of each partition
    that is read in part. `read` runs on the feed's thread; it waits for a broker that is away. Nothing is committed.
    """

    def __init__(self, settings: Settings, starts: Offsets, ends: Offsets) -> None:
        self._settings, self._ends = settings, ends
        self._history = kafka_history(settings)
        self._replays: dict[Partition, PartitionHistory] = {}
        self._left: dict[Partition, Chunk] = {}
        self._source: KafkaSource | None = None
        self._handoff: ReceiveEnd | None = None
        self._closed = False
        self.archived = {partition: self._archived_to(partition, start) for partition, start in starts.items()}
        """How far the archive has each partition, without a gap; its start where it has nothing of it."""

    def open(self) -> None:
        """Connect to Kafka if the archive lacks some of the records; NotRebuildableError where Kafka lacks them too."""
        lacking = {partition: at for partition, at in self.archived.items() if at < self._ends[partition]}
        if not lacking:
            return
        options = replace(
            kafka_options(self._settings.kafka),
            out_of_range="fail",
            on_recreated="fail",
            freeze_partitions=True,
            only_given=True,
        )
        source = KafkaSource(options, self._history)
        source.start(_CONNECT_S)
        self._source = source
        # The records of a topic that ends too early would be waited for, for ever.
        ends = source.resolve_start(Latest())
        for partition in lacking:
            there = ends.get(partition, 0)
            if there < self._ends[partition]:
                raise NotRebuildableError(
                    f"{partition} ends at offset {there} in Kafka, and records up to {self._ends[partition] - 1} are "
                    "needed: its topic was created again, or lost its end; an archive would have them"
                )
        capacity = int(self._settings.memory.limit * _MEMORY_SHARE)
        handoff = Handoff(capacity_bytes=capacity, partitions=len(lacking))
        source.begin(_INCARNATION, lacking, handoff, {partition: self._ends[partition] for partition in lacking})
        self._handoff = handoff

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Chunk]:
        """Yield all records of [start, end); each partition is read on from where it was read last."""
        while start < end:
            chunk = self._left.pop(partition, None) or self._next(partition, start)
            if chunk.end > end:
                chunk, self._left[partition] = chunk.split(end)
            yield chunk
            start = chunk.end

    def close(self) -> None:
        """Make a `read` that waits end soon."""
        self._closed = True
        if self._handoff is not None:
            self._handoff.close()

    def stop(self) -> None:
        """Close, and leave Kafka."""
        self.close()
        if self._source is not None:
            self._source.stop(_STOP_S)
            self._source = None

    def _archived_to(self, partition: Partition, start: int) -> int:
        """Return up to where the archive has a partition without a gap."""
        if self._settings.archive.path is None:
            return start
        from millrace.consumers.archive.shards import shard_at  # noqa: PLC0415 - the settings may name no archive

        at, end = start, self._ends[partition]
        while at < end and (shard := shard_at(self._settings.archive.path, partition, at)) is not None:
            at = shard.next_offset
        return min(at, end)

    def _next(self, partition: Partition, start: int) -> Chunk:
        if start >= self.archived[partition]:
            return self._received(partition)
        if partition not in self._replays:
            self._replays[partition] = self._history.replay(partition, _INCARNATION)
        chunk = self._replays[partition].next_chunk(start, self.archived[partition])
        if chunk is None:
            raise NotRebuildableError(f"the archive has lost its shard of {partition} at offset {start} meanwhile")
        return chunk

    def _received(self, partition: Partition) -> Chunk:
        handoff = self._handoff
        if handoff is None:
            raise NotRebuildableError(f"nothing reads {partition} from Kafka")
        try:
            while True:
                with suppress(HandoffEmpty):
                    return handoff.receive(_TICK_S, lambda heads: partition if partition in heads else None)
        except HandoffBroken as broken:
            text = str(broken.why or broken).partition(": set kafka.out_of_range")[0]
            raise NotRebuildableError(f"{text}, and the archive does not have them") from broken
        except HandoffEnded:
            raise NotRebuildableError(f"Kafka has no more records of {partition}") from None


def rebuild(loaded: Loaded, number: int | None, into: Path | None, report: RebuildReport) -> Rebuilt:
    """Make a checkpoint again, the newest by default; raise MillraceError where it cannot be, or has other bits."""
    began, settings = time.monotonic(), loaded.settings
    folder = Folder(settings.checkpoints.path / settings.name)
    store = CheckpointStore(folder)
    chosen = _chosen(store, number)
    settings = as_recorded(settings, chosen)
    loaded = replace(loaded, settings=settings)
    chain = chain_to(JournalReader(folder), chosen)  # (1)
    compared_with, damage = _published(store, chain)
    origin = _origin(store, chain)
    report.found(chain, [*damage, *_remarks(loaded, chain)])
    reader, opened = RecordReader(settings, origin.positions, positions_after(chain.last)), ExitStack()
    try:
        reader.open()  # (2)
        learner = build_learner(settings, (RecordSamples(settings, folder).kept,))  # (3)
        shaping = settings.shapers()
        # What was learnt is learnt again, so no partition is quiet at other moments than then.
        gate = connect_labels(settings, shaping, Jumps(folder.label_jumps, again=True), opened, lambda: UNKNOWN)
        live, options = live_metrics_of(learner, settings), hyperparameter_options(settings)
        relearning = Relearning(learner, live, options, shaping, detectors_of(learner, settings))
        if origin.parts is None:  # (4)
            relearning.begin_anew(origin.positions)
        else:
            relearning.begin(chain.base, origin.parts)
        run = _ChainRun(settings, store, chain, relearning, report)
        if chain.beginning is not None:
            run.compare(chain.beginning)
        run.learn(learner, reader, origin, shaping, gate)  # (5)
        if into is not None:
            run.keep(into)
    finally:
        reader.stop()
        opened.close()
    return Rebuilt(
        number=chain.number,
        base=chain.base,
        base_from="the model's first weights" if origin.parts is None else "its files",
        checkpoints=len(chain.numbers) or 1,
        blocks=chain.blocks,
        records=run.records,
        compared_with=compared_with,
        settings=run.settings,
        seconds=time.monotonic() - began,
    )


class _ChainRun:
    """The learning of one chain."""

    def __init__(
        self, settings: Settings, store: CheckpointStore, chain: Chain, relearning: Relearning, report: RebuildReport
    ) -> None:
        self._settings, self._store, self._chain = settings, store, chain
        self._relearning, self._report = relearning, report
        self.records = 0
        self.settings: str | None = None

    def learn(
        self,
        learner: Learner,
        reader: RecordReader,
        origin: Origin,
        shaping: Sequence[Shaper] = (),
        gate: LabelGate | None = None,
    ) -> None:
        """Learn every block, and compare the state with each checkpoint on the way."""
        training, schema = self._settings.training, learner.options.schema
        shape = open_shapers(shaping, self._relearning.incarnation, origin.positions)
        if gate is not None and shape is not None:
            shape = awaited(gate, shape)
        options = RecordedOptions(
            batch_size=training.numbers.batch_size,
            shuffle=training.shuffle,
            seed=training.seed,
            share=ROTATION_ROWS,
            weights=self._settings.kafka.weights,
            finish=closed_by(shaping),
        )

        def plan() -> Iterator[PlannedBlock]:
            for step in steps_of(self._chain, origin):
                if isinstance(step, BlockStep):
                    if gate is not None:
                        gate.begin(step.planned.starts, step.planned.skips)
                    yield step.planned

        decoder, rows = to_decoder(self._settings.records), self._settings.block_schema
        feed = RecordedFeed(plan(), reader, decoder, rows, options, shape)
        how = DatasetOptions(
            batch_size=training.numbers.batch_size, deterministic=True, threads=max(1, min(4, usable_cores() - 1))
        )
        deliveries = Deliveries(feed, schema, how, learner.preprocess, bypassed(self._chain, origin))
        with closing(deliveries):
            for step in steps_of(self._chain, origin):
                match step:
                    case SegmentBegins(segment):
                        self._relearning.follow(segment)
                    case BlockStep():
                        self._learn(step, deliveries)
                    case SegmentEnds(segment):
                        self.compare(segment)

    def compare(self, segment: Segment) -> None:
        """Raise RebuiltOtherwiseError unless the state has the bits of this segment's checkpoint."""
        state = self._relearning.compared(segment)
        try:
            if state.differing == (_SETTINGS,):  # no effect, or one that shows in the next checkpoint
                self.settings = self.settings or f"{self._found(segment, state)}, at checkpoint {segment.number}"
            elif state.differing:
                raise RebuiltOtherwiseError(self._difference(segment, state))
        finally:
            release(state.parts)
        self._report.passed(segment.number)

    def keep(self, into: Path) -> None:
        """Write the files of the state into an empty folder."""
        into.mkdir(parents=True, exist_ok=True)
        state = self._relearning.compared(self._chain.last)
        for name, write in part_sources(state.parts).items():
            write(into / name)
        release(state.parts)

    def _learn(self, step: BlockStep, deliveries: Deliveries) -> None:
        try:
            delivery = next(deliveries)
        except PreprocessError as error:
            raise RebuiltOtherwiseError(f"{step.planned.name} raises now, and did not then: {error}") from error
        assert delivery is not None, "this feed gives no ticks"
        self._relearning.learn(delivery, step.recorded, step.planned.name, _Stream(deliveries))
        self.records += step.recorded.rows - step.recorded.refused
        self._report.learnt(step.recorded.rows)

    def _difference(self, segment: Segment, state: Relearnt) -> str:
        """Say what differs first, by name."""
        on_the_way = "" if segment.number == self._chain.number else f", on the way to {self._chain.number},"
        text = f"checkpoint {segment.number}{on_the_way} differs from what was published: {self._found(segment, state)}"
        return text if self.settings is None else f"{text}; the settings do too: {self.settings}"

    def _found(self, segment: Segment, state: Relearnt) -> str:
        """Return the first difference; where the checkpoint is gone, the files that differ by their hashes."""
        try:
            published = self._store.load(segment.number)
        except MillraceError:
            return f"{', '.join(state.differing)} (by hash: the checkpoint is not there to compare with)"
        return first_difference(state.differing, state.parts, published)


class _Stream:
    """The part of a stream that learning a block uses."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    def take(self) -> Delivery | None:
        """Return the next block."""
        return next(self._deliveries)

    def draw_ahead(self) -> None:
        """Begin to draw the next block, while a call runs."""
        self._deliveries.draw_ahead()

    def close(self) -> None:
        """Close the deliveries."""
        self._deliveries.close()


def _chosen(store: CheckpointStore, number: int | None) -> int:
    if number is not None:
        return number
    newest = store.newest()
    if newest is None:
        raise MissingCheckpointError("there are no checkpoints yet; a first start makes number 0")
    return newest.number


def _origin(store: CheckpointStore, chain: Chain) -> Origin:
    """Return the state to begin with: that of the base, verified; or else, of a beginning, the model's own."""
    beginning = chain.beginning
    try:
        if chain.base == chain.number and beginning is not None:  # its own files would prove nothing
            return Origin(positions=positions_after(beginning))
        parts = store.load_verified(chain.base).parts
    except (MissingCheckpointError, CorruptError) as error:
        if beginning is not None:
            return Origin(positions=positions_after(beginning))
        raise NotRebuildableError(
            f"the journal begins after checkpoint {chain.base}, which has to be there to begin with: {error}"
        ) from error
    ledger, progress = Ledger(), Progress()
    ledger.restore(parts[NAME])
    progress.restore(parts[progress.name])
    return Origin(positions=ledger.positions(), turn=progress.turn, parts=parts)


def _remarks(loaded: Loaded, chain: Chain) -> list[str]:
    """Raise where model.py has changed; return which versions have."""
    now, file = provenance_of(loaded, None), loaded.settings.model.build.file
    for segment in chain.segments():
        if segment.model_sha256 is not None and not is_code_of(file, segment.model_sha256):
            raise NotRebuildableError(
                f"checkpoint {segment.number} was learnt by another {named(file)} (SHA-256 "
                f"{str(segment.model_sha256)[:12]}): bring that one back, or rebuild a checkpoint before it"
            )
    then = chain.last.versions
    return [
        f"checkpoint {chain.number} was learnt with {name} {then[name]}, and this is {now[name]}: the bits may differ"
        for name in then
        if then[name] != now[name]
    ]


def _published(store: CheckpointStore, chain: Chain) -> tuple[str, list[str]]:
    """Return with what the checkpoint is compared, and what is wrong with its files.

    CorruptError where sound files are not those of the journal.
    """
    try:
        manifest = store.load_verified(chain.number, keep=()).manifest
    except MissingCheckpointError:
        return "the journal", []
    except CorruptError as error:
        return "the journal", [f"{error}; it is compared by the hashes that the journal has"]
    said = {name: facts.sha256 for name, facts in manifest.files.items() if name != f"{NAME}.json"}
    if said != dict(chain.last.files):
        raise CorruptError(f"the manifest of checkpoint {chain.number} and the journal name other hashes")
    return "its files", []
