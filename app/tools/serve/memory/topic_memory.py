"""The topic's memory: the last records of each key, from a version's positions on, as the topic goes on.

Owns the thread `memory` with a source, a decoder and what shapes rows before `windows`, all as the trainer has them,
and the `KeyMemory` that they fill. The follower's thread offers what a new version carries; where that is newer it
replaces what is held, and the thread `memory` reads on from there, so no record is taken in twice. Requests read the
memory from any thread.

While Kafka is away it is tried again every second, and the memory stays as it is: `MemoryBoard` says how old that is.
Nothing is committed. Bounded by windows.max_bytes for each partition, and `_HANDOFF_BYTES` on the way. Ends by `end`.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from millrace.app.settings import Settings, to_decoder
from millrace.app.settings.connection import kafka_options
from millrace.app.tools.export.exported_memory import CarriedMemory, SkippedRange, window_shaper
from millrace.consumers.errors import HandoffBroken, HandoffEmpty, MillraceError, NotYetError, TopicRecreatedError
from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.shaping.shaper import Shaper, open_shapers
from millrace.pipelines.shaping.windows.key_memory import KeyMemory
from millrace.pipelines.shaping.windows.windows import NAME as WINDOWS
from millrace.pipelines.stream.assemble import Shape
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.pipelines.stream.freed_memory import give_freed_memory_back
from millrace.pipelines.stream.slices import cut_out

log = logging.getLogger(__name__)
_HANDOFF_BYTES = 32 << 20
_LEAST_BYTES = 256 << 10
"""Of one fetch, for a tenth of a second at most. Less than a fetch holds, so that a backlog is never waited for."""
_CONNECT_S, _STOP_S = 5.0, 2.0
_AGAIN_S = 1.0
_TICK_S, _LOOK_S = 0.1, 0.1
_LACKING_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBoard:
    """What is known of the memory at one moment."""

    positions: Mapping[str, int]
    """The next offset of each partition."""
    keys: int
    bytes: int
    """The most memory that the keys take."""
    evicted: int
    """How often a key has made room for another, in this history; as in training, which does the same."""
    age_s: float
    """Everything that was in the topic so many seconds ago is in the memory, or was set aside as in training."""
    behind: int | None
    """Offsets of the topic that are not in the memory yet; None until Kafka has answered."""
    lost: int
    """Offsets that Kafka no longer had when they were to be read."""
    left_out: int
    """Keys that the version with which the memory began did not carry."""
    problem: str | None
    """Why the topic is not read just now."""


class TopicMemory:
    """Follows the topic."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._clock = settings, clock
        self._only = settings.serve.memory.partitions
        """The numbers of the partitions that are held; None for all."""
        self.keys = KeyMemory(window_shaper(settings).layout)
        self._decoder = to_decoder(settings.records, wait_s=0.0)
        self._lock = threading.Lock()
        self._taking = threading.Lock()
        """Held by whoever changes what is held of keys."""
        self._begun = 0
        """Counts from how many states reading has begun; a chunk of an earlier beginning is dropped."""
        self._offered = -1
        """The newest version that was offered."""
        self._skips: tuple[SkippedRange, ...] = ()
        self._complete_as_of = 0.0
        """Everything that was in the topic at this time, in seconds since 1970, is in the memory."""
        self._behind: int | None = None
        self._lost = self._left_out = 0
        self._problem: str | None = "the topic was not read yet"
        self._looked = 0.0
        self._connecting = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def offer(self, number: int, made_at: float, carried: CarriedMemory) -> None:
        """Go on from what a version carries, wherever that is newer; the first one begins. The follower's thread.

        `made_at` is when it was exported, in seconds since 1970. An older version than one before is not looked at.
        """
        if number <= self._offered:
            return
        positions = {partition: at for partition, at in carried.positions.items() if self._holds(partition)}
        carried = replace(carried, positions=positions)
        first, self._offered = self._offered < 0, number
        # Reading the states takes long, and the topic goes on meanwhile: whether they are newer is asked again.
        wanted = self._newer(carried)
        states = carried.states() if wanted else {}
        with self._taking:
            newer = [partition for partition in self._newer(carried) if partition in wanted]
            for partition in newer:
                self.keys.replace(partition, carried.positions[partition], states.get(partition))
            self._skips = carried.skips
            self._begun += bool(newer)
        if states:
            give_freed_memory_back()
        with self._lock:
            if newer:
                self._left_out = carried.left_out
            if first:
                self._complete_as_of = made_at
        if first:
            self._thread.start()

    def end(self, within_s: float) -> None:
        """End the thread, and wait for it for so long; not while it waits for a Kafka that is away."""
        self._ended.set()
        if self._thread.ident is not None and not self._connecting:
            self._thread.join(within_s)

    def age_s(self) -> float:
        """Return by how many seconds the memory is older than the topic."""
        with self._lock:
            return max(0.0, self._clock() - self._complete_as_of)

    def board(self) -> MemoryBoard:
        """Return what is known now."""
        figures, positions, age_s = self.keys.figures(), self.keys.positions(), self.age_s()
        with self._lock:
            return MemoryBoard(
                positions={str(partition): offset for partition, offset in sorted(positions.items())},
                keys=figures.keys,
                bytes=figures.bytes,
                evicted=figures.evicted,
                age_s=age_s,
                behind=self._behind,
                lost=self._lost,
                left_out=self._left_out,
                problem=self._problem,
            )

    def _holds(self, partition: Partition) -> bool:
        return self._only is None or partition.number in self._only

    def _newer(self, carried: CarriedMemory) -> list[Partition]:
        """Return the partitions of which a version knows more, or of which we hold records that were skipped since."""
        ours = self.keys.positions()
        return [
            partition
            for partition, position in carried.positions.items()
            if partition not in ours
            or position > ours[partition]
            or _cut(carried.skips, partition, ours[partition]) != _cut(self._skips, partition, ours[partition])
        ]

    # The thread `memory`.

    def _run(self) -> None:
        while not self._ended.is_set():
            source = None
            try:
                # Requests wait for the interpreter's lock beside each fetch, so few are made where records come slowly.
                options = replace(kafka_options(self._settings.kafka), fetch_least_bytes=_LEAST_BYTES)
                # What is gone is counted, and a topic that was created again is read from its first record.
                source = KafkaSource(
                    replace(
                        options,
                        out_of_range="earliest",
                        on_recreated="earliest",
                        only_given=self._only is not None,
                        freeze_partitions=self._only is not None,
                    )
                )
                self._connecting = True
                source.start(_CONNECT_S)
                self._connecting = False
                self._follow(source)
            except (MillraceError, TimeoutError) as error:
                self._report(str(error))
            except Exception as error:  # a defect: requests are answered all the same
                log.exception("following the topic failed; it begins again")
                self._report(f"{type(error).__name__}: {error}")
            finally:
                self._connecting = False
                if source is not None:
                    source.stop(_STOP_S)
            self._ended.wait(_AGAIN_S)

    def _follow(self, source: KafkaSource) -> None:
        """Read until the end or an error; begin again where a version is newer, or a topic was created again."""
        incarnation = 0
        while not self._ended.is_set():
            incarnation += 1
            with self._taking:
                begun, positions = self._begun, self.keys.positions()
            there = set(source.partitions())
            positions = {partition: offset for partition, offset in positions.items() if partition in there}
            handoff = Handoff(capacity_bytes=_HANDOFF_BYTES, partitions=max(1, len(positions)))
            shape = open_shapers(self._shapers_before(), incarnation, positions, at_once=True)
            try:
                source.begin(incarnation, positions, handoff)
                while not self._ended.is_set() and begun == self._begun:
                    with contextlib.suppress(HandoffEmpty):
                        self._take(handoff.receive(_TICK_S), shape, begun)
                    self._look(source)
            except HandoffBroken as broken:
                if not isinstance(broken.why, TopicRecreatedError):
                    raise broken.why or broken from None
                log.warning("%s: its keys begin empty", broken.why)
                with self._taking:
                    for partition, beginning in broken.why.beginnings.items():
                        if self._holds(partition):
                            self.keys.replace(partition, beginning, None)
            finally:
                handoff.close()

    def _shapers_before(self) -> list[Shaper]:
        """Return what leaves records out before they come into sequences."""
        found = list[Shaper]()
        for name, section, schema in self._settings.shapings():
            if name == WINDOWS:
                break
            if (shaper := section.shaper(schema)) is not None:
                found.append(shaper)
        return found

    def _take(self, chunk: Chunk, shape: Shape | None, begun: int) -> None:
        decoded = self._decoded(chunk)
        if decoded is None:
            return
        rows, _ = cut_out(decoded, self._skips)
        if shape is not None:
            rows, _ = shape(rows)
        with self._taking:
            if begun != self._begun:
                return
            self.keys.take(rows)
        if decoded.lost:
            log.warning("%d offsets of %s are gone by retention: sequences lack them", decoded.lost, chunk.partition)
            with self._lock:
                self._lost += decoded.lost

    def _decoded(self, chunk: Chunk) -> Decoded | None:
        """Return a chunk as columns, as soon as what it needs is known; None if the server ends before."""
        while not self._ended.is_set():
            try:
                return decode_chunk(chunk, self._decoder)
            except NotYetError as error:
                self._report(str(error))
                self._ended.wait(_LACKING_S)
        return None

    def _look(self, source: KafkaSource) -> None:
        """Find out how far the memory is behind the topic."""
        if (now := time.monotonic()) < self._looked + _LOOK_S:
            return
        self._looked = now
        statistics = source.statistics()
        lag, positions = statistics.lag, self.keys.positions()
        ends = {partition: one.readable_end for partition, one in lag.partitions.items() if self._holds(partition)}
        known = [end for end in ends.values() if end is not None]
        if lag.ends_asked is None or len(known) < len(ends):
            return
        behind = sum(max(0, (end or 0) - positions.get(partition, 0)) for partition, end in ends.items())
        problem = None if statistics.connected else f"Kafka does not answer: {statistics.last_error}"
        with self._lock:
            self._behind = behind
            if not behind:
                self._complete_as_of = max(self._complete_as_of, lag.ends_asked)
        self._report(problem)

    def _report(self, problem: str | None) -> None:
        with self._lock:
            before, self._problem = self._problem, problem
        if problem is not None and problem != before:
            log.warning("the memory of keys does not follow the topic: %s", problem)
        elif problem is None and before is not None:
            log.info("the memory of keys follows the topic")


def _cut(skips: Sequence[SkippedRange], partition: Partition, end: int) -> set[tuple[int, int]]:
    """Return what is cut out of a partition before an offset."""
    ranges = ((one.start, min(one.end, end)) for one in skips if one.partition == partition)
    return {(start, end) for start, end in ranges if start < end}
