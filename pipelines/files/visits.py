"""Which rows of which shards an epoch has visited, truly counted; and which rows give the model nothing to learn.

A row is visited when the model has learnt it, or when the schema refuses it by name, or a setting leaves it out. A
block says of each of its rows from which shard it comes and which number it has there, so nothing between a file and
the model can lose a row unnoticed.

`Visits` belongs to the thread that trains, `Refusals` to any. A shard takes a byte a row while some of its rows are
visited and others are not.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedShard:
    """A file of records."""

    name: str
    """What people call it."""
    path: str
    """Where it is; of an archive in an object store, its URL."""
    rows: int
    """The records in it, counted before anything is learnt."""
    first: int = 0
    """The number of its first row: 0, or an offset."""
    end: int
    """One past the number of its last row; with gaps there are fewer rows than numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedFile:
    """A file of records that is left out, as it is not what was written."""

    name: str
    rows: int | None
    """The records in it; None if nothing says how many there were."""
    why: str


Bits = npt.NDArray[np.uint8]
"""A bit for each row of a range."""


class Refusals:
    """The rows that the schema refuses, or a setting leaves out, by shard; each once, however often it is read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[int, dict[int, Reason]] = {}
        self._left_out: dict[int, dict[int, dict[str, Bits]]] = {}
        """By shard, by the first row of a range, and by setting: one in a thousand rows may be kept of millions."""

    def note(self, shard: int, rows: Iterable[tuple[int, Reason]]) -> None:
        """Take in rows of a shard."""
        with self._lock:
            self._reasons.setdefault(shard, {}).update(rows)

    def leave_out(self, shard: int, rows: range, left_out: Iterable[tuple[int, str]]) -> None:
        """Take in which of a range of rows are left out, each with its setting; the ranges are the same each time."""
        masks: dict[str, npt.NDArray[np.bool_]] = {}
        for row, setting in left_out:
            masks.setdefault(setting, np.zeros(len(rows), np.bool_))[row - rows.start] = True
        with self._lock:
            named = self._left_out.setdefault(shard, {}).setdefault(rows.start, {})
            named |= {setting: np.packbits(mask) for setting, mask in masks.items()}

    def filter(self, shard: int, rows: range, filtered: Int64s) -> None:
        """Take in which of a range of rows do not match `records.where`; the ranges are the same each time."""
        mask = np.zeros(len(rows), np.bool_)
        mask[filtered - rows.start] = True
        with self._lock:
            self._left_out.setdefault(shard, {}).setdefault(rows.start, {})["where"] = np.packbits(mask)

    def of(self, shard: int) -> Int64s:
        """Return the numbers of a shard's rows that are refused or left out."""
        with self._lock:
            refused = np.array(sorted(self._reasons.get(shard, ())), np.int64)
            ranges = self._left_out.get(shard, {})
            left_out = [first + _set(bits) for first, named in ranges.items() for bits in named.values()]
        return np.concatenate([refused, *left_out])

    def saved(self) -> dict[str, Any]:
        """Return what is refused and left out, as JSON has it."""
        refused: dict[int, dict[str, list[int]]] = {}
        with self._lock:
            for shard, rows in self._reasons.items():
                for row, reason in sorted(rows.items()):
                    refused.setdefault(shard, {}).setdefault(str(reason), []).append(row)
            left_out = [
                (shard, first, setting, bits.tolist())
                for shard, ranges in self._left_out.items()
                for first, named in ranges.items()
                for setting, bits in named.items()
            ]
        return {"refused": sorted(refused.items()), "left_out": left_out}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take in what `saved` has returned."""
        for shard, reasons in saved["refused"]:
            for reason, rows in reasons.items():
                self.note(shard, ((row, Reason(reason)) for row in rows))
        with self._lock:
            for shard, first, setting, bits in saved["left_out"]:
                self._left_out.setdefault(shard, {}).setdefault(first, {})[setting] = np.array(bits, np.uint8)

    def by_reason(self) -> dict[Reason, int]:
        """Count them."""
        with self._lock:
            return dict(Counter(reason for rows in self._reasons.values() for reason in rows.values()))

    def by_setting(self) -> dict[str, int]:
        """Count the rows that are left out."""
        counts = Counter[str]()
        with self._lock:
            for ranges in self._left_out.values():
                for named in ranges.values():
                    counts.update({setting: len(_set(bits)) for setting, bits in named.items()})
        return dict(counts)


def _set(bits: Bits) -> npt.NDArray[Any]:
    return np.flatnonzero(np.unpackbits(bits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Visited:
    """What an epoch has visited."""

    rows: int
    """The rows that there are."""
    visited: int
    twice: int
    """Visits beyond the first, of any row."""
    lacking: Mapping[str, int]
    """By name of the shard, how many of its rows were not visited; empty where all were."""
    damaged: Sequence[DamagedFile] = ()
    """The files that were left out; those of their rows that are known count as rows, and were not visited."""

    @property
    def all(self) -> bool:
        """Whether every row was visited once."""
        return self.visited == self.rows and not self.twice and not self.damaged

    def __str__(self) -> str:
        # Rounded down: 100 % says that none is missing.
        share = 1000 if not self.rows else self.visited * 1000 // self.rows
        percent = "100" if share >= 1000 and not self.damaged else f"{min(share, 999) / 10:.1f}"
        text = f"visited {percent} % of {self.rows:,} rows, {self.twice:,} twice"
        if not self.damaged:
            return text
        known = [file.rows for file in self.damaged if file.rows is not None]
        unknown = len(self.damaged) - len(known)
        beside = f", and those of {unknown} that nothing says" if unknown else ""
        return f"{text}; left out {len(self.damaged)} damaged files: {sum(known):,} rows{beside}"


class Visits:
    """Counts the rows of one epoch."""

    def __init__(self, shards: Sequence[CountedShard], damaged: Sequence[DamagedFile] = ()) -> None:
        self._shards, self._damaged = shards, damaged
        self._counts: dict[int, npt.NDArray[np.uint8]] = {}
        self._visits = [0] * len(shards)
        self._complete: set[int] = set()
        self._twice = 0

    def add(self, shards: npt.NDArray[np.int32], rows: Int64s) -> None:
        """Count these rows, each named by the place of its shard and its number there."""
        for place in np.unique(shards).tolist():
            here, shard = rows[shards == place], self._shards[place]
            if place in self._complete:
                self._twice += len(here)
                continue
            if place not in self._counts:
                self._counts[place] = np.zeros(shard.end - shard.first, np.uint8)
            counts = self._counts[place]
            np.add.at(counts, here - shard.first, 1)
            self._visits[place] += len(here)
            if self._visits[place] == len(counts) and counts.all():
                self._complete.add(place)
                del self._counts[place]

    def ended(self, refused: Callable[[int], Int64s]) -> Visited:
        """Return the outcome; rows of each shard that are refused by name, and that no block had, count as visited."""
        lacking = {}
        visited = 0
        for place, shard in enumerate(self._shards):
            left_out = refused(place) - shard.first
            if place in self._complete:
                found = shard.rows
            elif place not in self._counts:
                found = len(left_out)
            else:
                seen = self._counts[place] > 0
                seen[left_out] = True
                found = int(np.count_nonzero(seen))
            visited += found
            if found != shard.rows:
                lacking[shard.name] = shard.rows - found
        twice = self._twice + sum(int(np.maximum(counts, 1).sum()) - len(counts) for counts in self._counts.values())
        rows = sum(shard.rows for shard in self._shards) + sum(file.rows or 0 for file in self._damaged)
        return Visited(rows=rows, visited=visited, twice=twice, lacking=lacking, damaged=self._damaged)
