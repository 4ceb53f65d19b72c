"""The join in a group of workers: each joins the records of its own partitions, and all have the same labels for them.

Every worker reads all labels. The chief reads first. Now and then, between two calls, it tells the others up to which
offset it has read each partition, which jumps it has made, and which labels had a time that was still to come. The
others read no further than that and go by what the chief has found, so a label is on time or late at all of them alike,
and what a record gets does not depend on who joins it. They tell up to when they want labels, so that the chief reads
that far, and the jumps of their records, which the chief keeps on disk before the next checkpoint.

The chief has the account of the labels. A label leaves when no record of any worker needs it: then the flags that it
has at the others come to the chief, which counts it once. A checkpoint holds the chief's account, and the flags of all.

Where labels lie in the partitions of their records (`labels.co_partitioned`), each worker reads those of its partitions
alone, and nobody leads. Each counts its labels, beside what the chief has counted before; a checkpoint holds the sum.

Runs on the trainer's thread, at all workers in the same sequence.
"""

import io
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from millrace.consumers.errors import MillraceError
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Column
from millrace.pipelines.shaping.labels.clock import NEVER
from millrace.pipelines.shaping.labels.index import Marks
from millrace.pipelines.shaping.labels.join import Connected, LabelShaper
from millrace.pipelines.shaping.labels.label_reader import Role
from millrace.pipelines.shaping.labels.rules import NAME
from millrace.pipelines.shaping.shaper import Shaper

_CHIEF = 0
_EVERY_S, _LET_GO_EVERY_S = 0.1, 1.0
"""How often the workers tell each other how far labels are read, and how often labels leave."""

Share = tuple[Mapping[str, Column], Mapping[str, Any]]
"""What one worker remembers: arrays and facts."""


class Workers(Protocol):
    """What brings bytes from one worker to the others."""

    def gather(self, mine: bytes, /) -> list[bytes]:
        """Return the bytes of every worker, by their numbers."""
        ...

    def collect(self, mine: bytes, /) -> list[bytes]:
        """Return the bytes of every worker to the chief, and nothing to the others."""
        ...


class GroupJoin:
    """The join of one worker."""

    def __init__(self, shaper: LabelShaper, connected: Connected, *, is_chief: bool) -> None:
        self.shaper, self._is_chief = shaper, is_chief
        self._reader, self._jumps = connected.reader, connected.jumps
        self._own = connected.reader.role is Role.OWN
        self._due = self._let_go_due = 0.0

    @classmethod
    def of(cls, shapers: Sequence[Shaper], *, is_chief: bool) -> "GroupJoin | None":
        """Return the join of these shapers; None if there is none."""
        joins = (one for one in shapers if isinstance(one, LabelShaper))
        return next((cls(one, one.connected, is_chief=is_chief) for one in joins if one.connected is not None), None)

    @property
    def due(self) -> bool:
        """Whether it is time to meet."""
        return time.monotonic() >= self._due

    def begin(self, workers: Workers) -> None:
        """Take over the chief's jumps, before the streams of an incarnation are opened."""
        mine = self._jumps.all()
        chiefs = json.loads(workers.gather(json.dumps(mine if self._is_chief else []).encode())[_CHIEF])
        if not self._is_chief:
            self._jumps.hear(chiefs)
            if self._own:
                self.shaper.count_anew()

    def meet(self, workers: Workers) -> None:
        """Tell the others how far this worker is, hear how far they are, and let labels go that nobody needs."""
        now = time.monotonic()
        mine: dict[str, Any] = {
            "wanted": self._reader.wanted,
            "floor": self.shaper.reached(),
            # What was counted before, and is not there again, is not let go.
            "lets_go": self._reader.whole and (not self._is_chief or now >= self._let_go_due),
        }
        if self._is_chief:
            # The positions first: what was found before them is told with them.
            mine["cuts"] = {str(partition): offset for partition, offset in self._reader.clocks.positions().items()}
            mine["future"] = {str(partition): one.tolist() for partition, one in self._reader.from_future().items()}
        mine["jumps"] = self._jumps.untold()
        said = [json.loads(raw) for raw in workers.gather(json.dumps(mine).encode())]
        if self._is_chief:
            self._keep([jump for one in said[_CHIEF + 1 :] for jump in one["jumps"]])
        if self._reader.role is Role.LEADS:
            self._reader.want(max(one["wanted"] for one in said))
        elif self._reader.role is Role.FOLLOWS:
            chief = said[_CHIEF]
            self._jumps.hear(chief["jumps"])
            self._reader.follow(_by_partition(chief["cuts"]), _by_partition(chief["future"]))
        floor = min((one["floor"] for one in said if one["floor"] is not None), default=NEVER)
        if all(one["lets_go"] for one in said) and floor > self.shaper.floor:
            self._let_go_due, others = now + _LET_GO_EVERY_S, list[Marks]()
            if not self._own:
                marks = b"" if self._is_chief else self._packed(self.shaper.index.flags(before=floor))
                others = [self._unpacked(raw) for raw in workers.collect(marks)[_CHIEF + 1 :]]
            self.shaper.let_go(floor, others)
        self._due = time.monotonic() + _EVERY_S

    def whole(self, shares: Sequence[Share]) -> list[Share]:
        """Return what the workers remember with the labels as one: the account of the chief, and the flags of all."""
        about = shares[_CHIEF][1][NAME]
        if self._own:
            about = self._sum(shares)
        marks: dict[str, list[tuple[Column, Column]]] = {}
        for arrays, _ in shares:
            for partition in about["partitions"]:
                if (name := f"{NAME}/{partition}/offsets") in arrays:
                    marks.setdefault(partition, []).append((arrays[name], arrays[f"{NAME}/{partition}/flags"]))
        labels = dict[str, Column]()
        for partition, some in marks.items():
            offsets, places = np.unique(np.concatenate([one for one, _ in some]), return_inverse=True)
            flags = np.zeros(len(offsets), np.uint8)
            np.bitwise_or.at(flags, places, np.concatenate([one for _, one in some]))
            labels |= {f"{NAME}/{partition}/offsets": offsets, f"{NAME}/{partition}/flags": flags}
        facts = [{**facts, NAME: about} for _, facts in shares]
        return [(labels if number == _CHIEF else {}, one) for number, one in enumerate(facts)]

    def _sum(self, shares: Sequence[Share]) -> dict[str, Any]:
        """Return the account of workers each of which has read other labels, and keep their jumps."""
        abouts = [dict(facts[NAME]) for _, facts in shares]
        jumps = [about.pop("jumps") for about in abouts]
        self._keep([jump for some in jumps[_CHIEF + 1 :] for jump in some])
        partitions = {name: one for about in abouts for name, one in about["partitions"].items()}
        return {
            **abouts[_CHIEF],
            "expired": dict(sum((Counter(about["expired"]) for about in abouts), Counter[str]())),
            **{name: sum(about[name] for about in abouts) for name in ("refused", "late")},
            "waiting": sum(one["waiting"] for one in partitions.values()),
            "partitions": partitions,
        }

    def _keep(self, jumps: Sequence[tuple[str, int, int]]) -> None:
        try:
            for name, end, at in jumps:
                self._jumps.add({Partition.parse(name): (end, at)})
        except OSError as error:
            raise MillraceError(
                f"which records of other workers are too old cannot be written down: {error.strerror}"
            ) from error

    def _packed(self, marks: Marks) -> bytes:
        names = {number: str(partition) for partition, number in self._reader.numbers.items()}
        buffer = io.BytesIO()
        arrays = dict[str, Column]()
        for number, (offsets, flags) in marks.items():
            arrays |= {f"{names[number]}/o": offsets, f"{names[number]}/f": flags}
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    def _unpacked(self, raw: bytes) -> Marks:
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            found = {str(partition): number for partition, number in self._reader.numbers.items()}
            return {
                number: (arrays[f"{name}/o"], arrays[f"{name}/f"])
                for name, number in found.items()
                if f"{name}/o" in arrays
            }


def _by_partition(told: Mapping[str, Any]) -> dict[Partition, Any]:
    return {Partition.parse(name): one for name, one in told.items()}
