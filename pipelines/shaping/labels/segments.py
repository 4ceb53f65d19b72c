"""Labels that were read, on disk beside the checkpoints: a restart reads from Kafka only those that came after them.

A segment holds some ten thousand labels of all partitions as they came, and never changes. It is a cache: what it holds
is in Kafka too. One that is damaged or missing, or that was made by other settings, is not used; then these labels are
read from Kafka. So nothing is synced, and a full disk stops nothing.

Owns the files in its folder. The reader writes and reads them, one thread at a time.
"""

import hashlib
import json
import logging
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from millrace.consumers.records import Partition
from millrace.pipelines.schema import Column
from millrace.pipelines.shaping.labels.clock import NEVER
from millrace.pipelines.shaping.labels.index import Arrived

log = logging.getLogger(__name__)
LABELS = 2**16
"""So many labels, or a few more, make a segment."""
_FEW = 256
"""A piece with fewer labels takes in the next one, as each piece takes some 1,200 bytes beside its labels."""
_COLUMNS = ("hashes", "checks", "times", "clocks", "offsets")
_SUFFIX = ".labels"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelStretch:
    """Labels of one partition, without gaps."""

    partition: Partition
    start: int
    end: int
    """All of its offsets from `start` to before `end` were read."""
    clock: int
    """The clock of the partition at its end."""
    floor: int
    """Labels before this time are left out, as nobody needed them when they were read."""
    arrived: Arrived

    def since(self, offset: int, floor: int) -> "LabelStretch":
        """Return what has this offset or a later one, and no time before the floor."""
        arrived = self.arrived
        rows = np.flatnonzero((arrived.offsets >= offset) & (arrived.times >= floor))
        columns = {name: getattr(arrived, name)[rows] for name in _COLUMNS}
        values = {name: column[rows] for name, column in arrived.values.items()}
        return replace(self, arrived=replace(arrived, **columns, values=values))


class Segments:
    """The segments of one folder."""

    def __init__(self, folder: Path, made_by: str, *, labels: int = LABELS) -> None:
        """`made_by` says by what labels are read: segments of something else are not used. `labels`: of a segment."""
        self._folder, self._made_by, self._labels = folder, made_by, labels
        self._pending: dict[Partition, list[LabelStretch]] = {}
        self._waiting = 0
        """How many labels are pending."""
        self._newest: dict[Path, int] = {}
        """The latest time of a label in each segment."""
        self._floor = NEVER
        """Before this time no label was needed by the newest checkpoint but one."""
        self._fails = False

    def add(self, piece: LabelStretch) -> None:
        """Take in what was read; now and then this writes a segment."""
        mine, count = self._pending.setdefault(piece.partition, []), len(piece.arrived.hashes)
        if mine and mine[-1].end == piece.start and (not count or len(mine[-1].arrived.hashes) < _FEW):
            mine[-1] = _one([mine[-1], piece])
        else:
            mine.append(piece)
        self._waiting += count
        if self._waiting >= self._labels:
            pending, self._pending, self._waiting = self._pending, {}, 0
            try:
                self._write([one for pieces in pending.values() for one in pieces])
                self._fails = False
            except OSError as error:
                if not self._fails:
                    log.warning("labels are not kept for the next start, which takes longer: %s", error.strerror)
                self._fails = True

    def read(
        self, bases: Mapping[Partition, tuple[int, int]], counted: Mapping[Partition, int], floor: int
    ) -> Iterator[LabelStretch]:
        """Yield what is known of the labels from `bases` up to `counted`; forget segments that are of no use for that.

        Pieces of a partition follow one another from its base on. None has a label before the floor.
        """
        self._pending, self._waiting, self._newest = {}, 0, {}
        ends = {partition: offset for partition, (offset, _) in bases.items()}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            useful = False
            for piece in self._pieces(path):
                at = ends.get(piece.partition, piece.end)
                if piece.start <= at < piece.end <= counted.get(piece.partition, NEVER) and piece.floor <= floor:
                    ends[piece.partition], useful = piece.end, True
                    yield piece.since(at, floor)
            if not useful:
                self._newest.pop(path, None)
                path.unlink(missing_ok=True)

    def saved(self, floor: int) -> None:
        """Forget segments of labels that neither the last checkpoint needs nor one that is now made by this floor."""
        for path in [path for path, newest in self._newest.items() if newest < self._floor]:
            del self._newest[path]
            path.unlink(missing_ok=True)
        self._floor = floor

    def _write(self, pieces: list[LabelStretch]) -> None:
        whole = _joined(pieces)
        columns = {name: [getattr(one.arrived, name) for one in whole] for name in _COLUMNS}
        columns |= {f"values/{name}": [one.arrived.values[name] for one in whole] for name in whole[0].arrived.values}
        arrays = {name: np.concatenate(some) for name, some in columns.items()}
        told = {
            "made_by": self._made_by,
            "pieces": [
                [str(one.partition), one.start, one.end, one.clock, one.floor, len(one.arrived.hashes)] for one in whole
            ],
            "columns": {name: [one.dtype.str, one.shape] for name, one in arrays.items()},
        }
        raw = b"".join([json.dumps(told).encode(), b"\n", *(one.tobytes() for one in arrays.values())])
        self._folder.mkdir(parents=True, exist_ok=True)
        # A trainer that was passed by another may still write here.
        numbers = [int(path.name.partition("-")[0]) for path in self._newest]
        path = self._folder / f"{max(numbers, default=0) + 1:08}-{secrets.token_hex(4)}{_SUFFIX}"
        try:
            path.write_bytes(hashlib.sha256(raw).digest() + raw)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._newest[path] = int(arrays["times"].max(initial=NEVER))

    def _pieces(self, path: Path) -> Iterator[LabelStretch]:
        """Yield what a segment holds; nothing where it is damaged, or made by something else."""
        try:
            raw = path.read_bytes()
        except OSError:
            return
        digest, raw = raw[:32], raw[32:]
        if hashlib.sha256(raw).digest() != digest:
            return
        head, _, rest = raw.partition(b"\n")
        told = json.loads(head)
        if told["made_by"] != self._made_by:
            return
        arrays, at = dict[str, Column](), 0
        for name, (dtype, shape) in told["columns"].items():
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            arrays[name] = np.frombuffer(rest[at : at + size], dtype).reshape(shape)
            at += size
        self._newest[path] = int(arrays["times"].max(initial=NEVER))
        first = 0
        for name, start, end, clock, floor, count in told["pieces"]:
            rows = slice(first, first + count)
            first += count
            columns: dict[str, Any] = {one: arrays[one][rows] for one in _COLUMNS}
            arrived = Arrived(
                partition=0,
                **columns,
                values={
                    one.removeprefix("values/"): column[rows] for one, column in arrays.items() if one not in _COLUMNS
                },
            )
            yield LabelStretch(
                partition=Partition.parse(name), start=start, end=end, clock=clock, floor=floor, arrived=arrived
            )


def _joined(pieces: list[LabelStretch]) -> list[LabelStretch]:
    """Return pieces with those of a partition that follow one another made one."""
    chains: dict[Partition, list[list[LabelStretch]]] = {}
    for piece in pieces:
        mine = chains.setdefault(piece.partition, [])
        if mine and mine[-1][-1].end == piece.start:
            mine[-1].append(piece)
        else:
            mine.append([piece])
    return [_one(chain) for mine in chains.values() for chain in mine]


def _one(chain: list[LabelStretch]) -> LabelStretch:
    columns: dict[str, Any] = {name: np.concatenate([getattr(one.arrived, name) for one in chain]) for name in _COLUMNS}
    names = chain[0].arrived.values
    values = {name: np.concatenate([one.arrived.values[name] for one in chain]) for name in names}
    return replace(
        chain[0],
        end=chain[-1].end,
        clock=chain[-1].clock,
        floor=max(one.floor for one in chain),
        arrived=replace(chain[0].arrived, **columns, values=values),
    )
