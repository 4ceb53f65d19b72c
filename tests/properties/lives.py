"""The lives of a trainer, laid end to end: all real, but for Kafka, the compiled step, and threads that run free.

The log is a word an offset. What is fetched of it goes through the real hand-off, JSON decoder, assembler and feed to
the real trainer, ledger and witness, and is saved by the real store; the model is a list of the offsets that it was
given, which it reads out of the records themselves. A test decides who moves next: a turn of the trainer, a fetch, the
disk.
"""

import functools
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from consumers.backlog import Backlog, BacklogOptions
from consumers.chunking import chunk_of, empty_chunk
from consumers.failpoints import FailpointError
from consumers.handoff import Handoff
from consumers.letters import DeadLetter
from consumers.reasons import Reason
from consumers.records import Chunk, Headers, Partition
from pipelines.assemble import AssembleOptions, Assembler
from pipelines.blocks import Block
from pipelines.decode import DecodePool, Refused
from pipelines.decoders import make_decoder
from pipelines.feed import Feed, FeedOptions, Tick, unless_skipped
from pipelines.schema import Field, Schema
from pipelines.turns import RotationOptions
from training.baseline import Baseline
from training.calls import CallResult, Rows
from training.checkpoints import CheckpointStore, CheckpointWriter, Folder, LeaseOptions, Manifest, PartState, Writer
from training.checkpoints.manifest import SaveOrder
from training.checkpoints.policies import EverySeconds, KeepLast
from training.checkpoints.store import StoreOptions
from training.commands import Commands
from training.errors import CheckpointError
from training.learner import Learner, Lesson
from training.ledger import Ledger
from training.live import LiveMetrics
from training.loop import Collaborators, Trainer
from training.meter import Meter
from training.phases import Phase, Phases
from training.saving import Saving, SavingOptions
from training.stream import Delivery, StreamEnded, StreamOrder
from training.variables import VariablesPart, optimizer_variables, rates_of
from training.witness import Witness

GOOD, GAP, LOST = "good", "gap", "lost"
NAN, RAISES = "bad update_not_finite", "bad step_raised"
UNDECODED: Mapping[str, str | None] = {
    "bad malformed": "{",
    "bad empty": None,
    "bad missing": '{"pair": [1, 2]}',
    "bad wrong_type": '{"id": "7", "pair": [1, 2]}',
    "bad wrong_shape": '{"id": 7, "pair": [1]}',
    "bad out_of_range": '{"id": 9223372036854775808, "pair": [1, 2]}',
    "bad not_finite": '{"id": 7, "pair": [1, NaN]}',
}
BAD = [*UNDECODED, NAN, RAISES]
SCHEMA = Schema(
    features=(
        Field(name="id", source="id", dtype="int64"),
        Field(name="pair", source="pair", dtype="float32", shape=(2,)),
    ),
    labels=(Field(name="y", source="y", dtype="float32", missing=0.0),),
)
DECODER = make_decoder("json", SCHEMA)
BATCH = 2
KEPT = 3
_AT_ONCE = LeaseOptions(renew_every=60.0, stale_after=0.0, poll_every=0.001)
_SOON_S = 20.0


class Record(NamedTuple):
    """As the client library would hand it out."""

    offset: int
    value: bytes | None
    timestamp: int = 0
    key: bytes | None = None
    headers: Headers = ()


@dataclass
class Log:
    """Kafka: what stands at each offset, and where the retention has come to."""

    kinds: dict[Partition, list[str]] = field(default_factory=dict)
    firsts: dict[Partition, int] = field(default_factory=dict)

    def add(self, partition: Partition) -> None:
        self.kinds[partition], self.firsts[partition] = [], 0

    def chunk(self, partition: Partition, start: int, count: int, place: tuple[int, float]) -> Chunk | None:
        """The next offsets from there on, as the source would send them; None where there are none."""
        incarnation, fetched_at = place
        first, kinds = self.firsts[partition], self.kinds[partition]
        if start < first:
            lost = {"start": start, "end": first, "lost": first - start}
            return empty_chunk(partition, incarnation, fetched_at=fetched_at, **lost)
        end = min(start + count, len(kinds))
        records = [self.record(partition, at) for at in range(start, end) if kinds[at] != GAP]
        if records:
            return chunk_of(records, partition, incarnation, start=start, end=end, fetched_at=fetched_at)
        return empty_chunk(partition, incarnation, start=start, end=end, fetched_at=fetched_at) if end > start else None

    def record(self, partition: Partition, offset: int) -> Record:
        kind = self.kinds[partition][offset]
        if kind not in UNDECODED:
            return Record(offset, json.dumps({"id": identity(partition, offset), "pair": [1, 2]}).encode())
        text = UNDECODED[kind]
        return Record(offset, None if text is None else text.encode())

    def kind_of(self, number: int) -> str:
        """The kind of a record that says this of itself."""
        partition, offset = divmod(number, 1_000_000)
        return next(kinds[offset] for p, kinds in self.kinds.items() if p.number == partition)


def identity(partition: Partition, offset: int) -> int:
    """What a record says of itself."""
    return partition.number * 1_000_000 + offset


class Seen:
    """How often each offset was learnt: all that there is to this model. Both a variable and a part."""

    name = "seen"

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    @property
    def times(self) -> Counter[int]:
        return Counter(number for call in self.calls for number in call)

    def read_value(self) -> list[list[int]]:
        return [list(call) for call in self.calls]

    def assign(self, calls: Sequence[Sequence[int]]) -> None:
        self.calls = [list(call) for call in calls]

    def snapshot(self) -> PartState:
        return PartState(facts={"calls": self.read_value()})

    def restore(self, state: PartState) -> None:
        self.assign(state.facts["calls"])


@functools.cache
def _model() -> Any:
    """For its optimizer's variables and hyperparameters alone."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.125), loss="mse")
    model.optimizer.build(model.trainable_variables)
    return model


@functools.cache
def _witness() -> tuple[Witness, Callable[..., None]]:
    """One for all lives, as it takes long to trace; each begins with its rows empty."""
    witness = Witness()
    shapes = [tf.TensorSpec([None, None], dtype) for dtype in (tf.int64, tf.int32, tf.bool)]
    return witness, tf.function(witness.add, input_signature=shapes)


class Recorder:
    """Stands where the learner does. Some records have no finite update, and some raise half-way through their call."""

    parameters, replicas, devices, learning_rate = 0, 1, ("CPU:0",), 0.125
    options = SimpleNamespace(batch_size=BATCH)

    def __init__(self, log: Log) -> None:
        self._log = log
        self.model = _model()
        self.seen = Seen()
        self.witness, self._testify = _witness()
        self.witness._write({})
        optimizer = VariablesPart("optimizer", optimizer_variables(self.model), optional=rates_of(self.model))
        self.parts = (optimizer, self.seen, self.witness)
        self.state = [self.seen, self.witness.variable]

    def learn(self, rows: Rows) -> Lesson:
        return Learner.learn(self, rows)  # type: ignore[arg-type]  # all that it asks of a learner is its call

    def call(self, rows: Rows) -> CallResult:
        """All or nothing of each batch, and nothing to be relied upon where a record raises."""
        here = rows.offsets.numpy() >= 0
        ids = [numbers[present].tolist() for numbers, present in zip(rows.features["id"].numpy(), here, strict=True)]
        kinds = [{self._log.kind_of(number) for number in batch} for batch in ids]
        finite = np.array([NAN not in there for there in kinds])
        self.seen.calls.append([number for batch, good in zip(ids, finite, strict=True) if good for number in batch])
        self._testify(rows.offsets, rows.partitions, tf.constant(here & finite[:, None]))
        if any(RAISES in there for there in kinds):
            raise ZeroDivisionError("in the middle of a step")
        return CallResult(finite=finite, losses=np.zeros(len(finite)), states=())


class _AtOnce:
    """Decodes when it is told to: a pool's threads would make a machine's steps depend on the scheduler."""

    def submit(self, function: Callable[..., Any], *given: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(function(*given))
        return future

    def shutdown(self, **_: Any) -> None:
        """Nothing runs."""


class Line:
    """One incarnation's hand-off, decoding, assembly and feed, what was drawn ahead of the trainer, and the source."""

    def __init__(self, life: "Life", order: StreamOrder) -> None:
        self._life, self.order = life, order
        clock, world = life.world.clock, life.world
        self.handoff = Handoff(capacity_bytes=world.room, partitions=max(1, len(order.positions)), clock=clock)
        self.pool = DecodePool(DECODER, threads=1, on_refused=unless_skipped(order.skips, self._refused))
        self.pool._executor = _AtOnce()  # type: ignore[assignment]
        rotation = world.rotation
        if rotation is not None:
            rotation = replace(rotation, start=order.turn, positions=order.positions)
        options = replace(world.options, rotation=rotation)
        table = sorted(order.positions)
        assembler = Assembler(SCHEMA, options, table, order.incarnation, order.skips)
        self.feed = Feed(
            self.handoff, self.pool, assembler, FeedOptions(max_bytes=4096, max_chunks=2, tick_s=0.0), clock=clock
        )
        self._elements: Iterator[Block | Tick] = iter(self.feed)
        self._ahead: deque[Block] = deque()
        self.positions = dict(order.positions)
        self.joined: dict[Partition, int] = {}
        """Where partitions began that came later."""
        self.fetched: Counter[Partition] = Counter()
        self.began = life.ledger.statistics().partitions
        self.closed = False

    def fetch(self, partition: Partition, count: int) -> int:
        """The source sends the next offsets of a partition, if there is room. How many it has sent."""
        log = self._life.world.log
        if partition not in self.positions:
            self.joined[partition] = self.positions[partition] = log.firsts[partition]
        start = self.positions[partition]
        chunk = log.chunk(partition, start, count, (self.order.incarnation, self._life.world.clock()))
        if chunk is None or not self.handoff.offer(chunk):
            return 0
        self.positions[partition] = chunk.end
        self.fetched[partition] += len(chunk)
        return chunk.end - start

    def draw_ahead(self) -> None:
        """As a prefetch does."""
        if isinstance(element := next(self._elements, None), Block):
            self._ahead.append(element)

    def take(self) -> Delivery | None:
        element = self._ahead.popleft() if self._ahead else next(self._elements, None)
        if element is None:
            raise StreamEnded
        if isinstance(element, Tick):
            return None
        return Delivery(_tensors(element), self.feed.facts_of(element.facts.number))

    def close(self) -> None:
        self.closed = True
        self.handoff.close()
        self.feed.close()
        self.pool.close()
        self._ahead.clear()
        assert next(self._elements, None) is None, "it gives blocks though it was closed"

    def _refused(self, chunk: Chunk, refused: Refused) -> None:
        self._life.put_letter(chunk.partition, refused.offset, refused.reason)


def _tensors(block: Block) -> Rows:
    rows = block.rows
    return Rows(
        features={"id": tf.constant(rows.features["id"])},
        labels=tf.constant(rows.labels["y"]),
        weights=tf.constant(rows.weights),
        offsets=tf.constant(rows.offsets),
        partitions=tf.constant(rows.partitions),
    )


class _Writer(CheckpointWriter):
    """An order finds the disk fast or slow: the save under way ends well, or is cancelled; at once in either case."""

    def __init__(self, store: CheckpointStore, life: "Life") -> None:
        super().__init__(store)
        self._life = life

    def cancel_or_settle(self, deadline_s: float) -> Manifest | None:
        life, save = self._life, self._current
        if life.fast:
            with life.getting_on():
                return super().cancel_or_settle(deadline_s)
        settled = super().cancel_or_settle(0.0)
        if save is not None:
            assert wait([save.future], _SOON_S).done
        return settled


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """What outlives a process: Kafka, the disk, what was told to others; and the settings."""

    root: Path
    options: AssembleOptions
    rotation: RotationOptions | None = None
    room: int = 1 << 20
    log: Log = field(default_factory=Log)
    clock: Clock = field(default_factory=Clock)
    letters: dict[tuple[Partition, int], Reason] = field(default_factory=dict)
    """What the dead letters' topic has."""
    told: list[Manifest] = field(default_factory=list)
    """Whose positions may have been committed."""


class Life:
    """One process, from its start to its death."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dying = False
        self.fast = False
        """Whether the disk is fast enough for an order to wait for the save under way."""
        self.acknowledges = True
        self.disk = threading.Event()
        """Set while saves get on; else each waits right before its manifest."""
        self.disk.set()
        self.backlog = Backlog(BacklogOptions())
        self.line: Line | None = None
        self.ledger, self.learner, self.commands = Ledger(), Recorder(world.log), Commands()
        self.phases = Phases()
        self._right = Writer.acquire(Folder(world.root / "clicks"), "a life", options=_AT_ONCE)
        options = StoreOptions(keep=KeepLast(KEPT), before_manifest=self._before_manifest, on_durable=world.told.append)
        self.store = CheckpointStore(self._right.folder, self._right, options)
        self.writer = _Writer(self.store, self)
        self.saving, self.trainer = self._made()

    def _made(self) -> tuple[Saving, Trainer]:
        clock, learner = self.world.clock, self.learner
        live = LiveMetrics(window_s=60.0, scored="before_update", results=lambda _: {}, kind=Baseline.NONE, clock=clock)
        saving = Saving(
            self.store,
            self.writer,
            learner,  # type: ignore[arg-type]
            self.ledger,
            live,
            SavingOptions(policy=EverySeconds(10.0), provenance={}, stop_timeout_s=_SOON_S, clock=clock),
        )
        collaborators = Collaborators(
            learner=learner,  # type: ignore[arg-type]
            ledger=self.ledger,
            live=live,
            saving=saving,
            open_stream=self._open,
            newcomers=self._newcomers,
            phases=self.phases,
            meter=Meter(clock),
            commands=self.commands,
            on_refused=self.put_letter,
            clock=clock,
            wall=clock,
        )
        return saving, Trainer(collaborators, task=Baseline.NONE)

    def start(self) -> Manifest:
        """As a service does: the newest checkpoint, or number 0; then the first incarnation."""
        self.phases.enter(Phase.RESTORING)
        begun = self.saving.begin_or_restore(lambda: dict(self.world.log.firsts), start_over=False)
        self.trainer._open()
        self.disk.clear()
        return begun

    def turn(self) -> bool:
        """One turn of the trainer's loop."""
        return self.trainer._turn()

    def stop(self) -> None:
        """The ordered end."""
        self.disk.set()
        self.trainer._finish()
        self._right.release()

    def die(self) -> None:
        """All that is in memory is lost; a save under way ends where it is."""
        self.dying = True
        self.disk.set()
        self.writer.close(_SOON_S)
        self._right.release()

    # The save under way.

    @property
    def under_way(self) -> "Future[Manifest] | None":
        return None if self.saving._under_way is None else self.saving._under_way.future

    def let_it_be_written(self) -> None:
        """The disk gets on with the save under way, up to its end, whatever that is."""
        if (future := self.under_way) is not None:
            with self.getting_on():
                assert wait([future], _SOON_S).done

    @contextmanager
    def getting_on(self) -> Iterator[None]:
        """The disk gets on for a while."""
        was = self.disk.is_set()
        self.disk.set()
        yield
        if not was:
            self.disk.clear()

    def put_letter(self, partition: Partition, offset: int, reason: Reason) -> None:
        letter = DeadLetter(
            partition=partition,
            offset=offset,
            timestamp_ms=0,
            key=None,
            value=None,
            headers=(),
            reason=reason,
            field=None,
            model="clicks",
        )
        self.backlog.put(letter, lambda: self.dying)

    def acknowledge(self) -> None:
        """The topic takes all letters that wait."""
        window = self.backlog.oldest(1 << 20, 1 << 30)
        for letter in window:
            self.world.letters[letter.partition, letter.offset] = letter.reason
        self.backlog.settle(len(window))

    def _before_manifest(self, _order: SaveOrder) -> None:
        """The writer's thread waits for the disk; an order is carried out on the trainer's, which is the test's."""
        while threading.current_thread() is self.writer._thread and not self.disk.wait(0.0005):
            save = self.writer._current
            if save is not None and save.gate.cancelled:
                return
        if self.dying:
            raise FailpointError("the process has died")
        if self.acknowledges:
            self.acknowledge()
        if not self.backlog.wait_acknowledged(self.backlog.sequence(), 0.0):
            raise CheckpointError("the dead letters are not acknowledged")

    def _newcomers(self, known: Any) -> dict[Partition, int]:
        if self.world.rotation is not None:
            return {}
        return {partition: first for partition, first in self.world.log.firsts.items() if partition not in known}

    def _open(self, order: StreamOrder) -> Line:
        self.line = Line(self, order)
        return self.line
