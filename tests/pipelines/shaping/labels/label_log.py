"""A topic of labels in memory, and a join that has read it: the parts of the product, but for Kafka."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from millrace.app.settings import to_decoder
from millrace.app.settings.sections.labels import LabelsSettings
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.handoff import SendEnd
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.schema import Schema
from millrace.pipelines.shaping.labels.clock import NEVER, Jumps, LabelClocks
from millrace.pipelines.shaping.labels.join import UNKNOWN, Connected, Ends, LabelShaper
from millrace.pipelines.shaping.labels.label_reader import Kept, LabelReader, Role
from millrace.pipelines.shaping.labels.segments import Segments
from millrace.pipelines.stream.assemble import Shape

CLICKS = Partition("later", 0)


class Click(NamedTuple):
    """A label of the log."""

    key: Any
    time: int
    value: float = 1.0


class LabelLog:
    """Gives the labels of one partition to whoever begins; more may be added."""

    def __init__(self, clicks: Sequence[Click] = (), partition: Partition = CLICKS) -> None:
        self.clicks, self.partition = [*clicks], partition
        self._sending: tuple[int, SendEnd, int] | None = None
        self.begun: list[int] = []
        """Where each reading has begun."""

    def begin(
        self,
        incarnation: int,
        positions: Mapping[Partition, int],
        handoff: SendEnd,
        *,
        fingerprints: Mapping[Partition, Fingerprint | None],
    ) -> None:
        """Send the labels from an offset on."""
        del fingerprints
        self._sending = (incarnation, handoff, positions[self.partition])
        self.begun.append(positions[self.partition])
        self._send()

    def add(self, clicks: Sequence[Click]) -> None:
        """Append labels."""
        self.clicks += clicks
        self._send()

    def ends(self) -> tuple[Mapping[Partition, int], Mapping[Partition, int]]:
        """Return where it ends."""
        return {self.partition: len(self.clicks)}, {self.partition: len(self.clicks)}

    def pause(self) -> None:
        """Send no more."""
        self._sending = None

    def _send(self) -> None:
        if self._sending is None:
            return
        incarnation, handoff, at = self._sending
        for chunk in self._chunks(incarnation, at):
            assert handoff.offer(chunk)
        self._sending = (incarnation, handoff, len(self.clicks))

    def _chunks(self, incarnation: int, start: int) -> Iterator[Chunk]:
        for first in range(start, len(self.clicks), 100):
            some = self.clicks[first : first + 100]
            yield Chunk(
                partition=self.partition,
                incarnation=incarnation,
                start=first,
                end=first + len(some),
                offsets=np.arange(first, first + len(some)),
                timestamps=np.array([one.time for one in some], np.int64),
                keys=[None] * len(some),
                values=[json.dumps({"key": one.key, "later": one.value}).encode() for one in some],
                headers=[()] * len(some),
                nbytes=100 * len(some),
                fetched_at=time.monotonic(),
            )


class ReadShaper(LabelShaper):
    """A join that begins when all labels have been read."""

    def open(self, incarnation: int, positions: Mapping[Partition, int], *, at_once: bool = False) -> Shape:
        """Begin, and wait."""
        shape = super().open(incarnation, positions, at_once=at_once)
        assert self._connected is not None
        ends = time.monotonic() + 10
        while self._connected.reader.through(10**6) < 10**6:
            assert time.monotonic() < ends
            time.sleep(0.001)
        return shape


class ReadLabels(LabelsSettings):
    """Settings whose join has labels without a Kafka."""

    def shaper(self, schema: Schema) -> LabelShaper | None:
        """Return a join of a log that is made up."""
        del schema
        shaper = ReadShaper(self.rules)
        clicks = [Click(at * 5 % 12, 1000 + 7 * at, at % 3) for at in range(200)]
        connected(shaper, LabelLog(clicks), to_decoder(self.records()))
        return shaper


def connected(
    shaper: LabelShaper,
    log: LabelLog,
    decoder: Any,
    jumps: Jumps | None = None,
    ends: Callable[[], Ends] = lambda: UNKNOWN,
    *,
    role: Role = Role.ALONE,
    wall: Callable[[], float] = time.time,
    first: Sequence[Partition] = (CLICKS,),
    segments: Segments | None = None,
) -> LabelReader:
    """Have the labels of a log come."""
    jumps = jumps or Jumps(None)
    clocks = LabelClocks(jumps, early_ms=shaper.rules.early_ms)
    kept, on_turn = Kept(shaper.index, clocks, shaper.silence, segments), shaper.expire if role is Role.ALONE else None
    reader = LabelReader(shaper.rules, log, decoder, kept, on_turn, wall, role)
    shaper.connect(Connected(reader, jumps, lambda: dict.fromkeys(first, (0, NEVER)), ends))
    return reader


def read_labels() -> ReadLabels:
    """Return settings by which records get the labels of that log, and are not learnt without one."""
    return ReadLabels.model_validate(
        {
            "topics": ["later"],
            "join": {"record": "user", "label": "key", "dtype": "int64"},
            "label": {"later": "float32"},
            "within": "20ms",
            "early": "5ms",
            "on_silence": "absent",
        }
    )
