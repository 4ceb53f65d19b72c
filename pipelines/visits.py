"""Which rows of which shards an epoch has visited, truly counted; and which rows the schema refuses.

A row is visited when the model has learnt it, or when it was refused by name. A block says of each of its rows from
which shard it comes and which number it has there, so nothing between a file and the model can lose a row unnoticed.

`Visits` belongs to the thread that trains, `Refusals` to any. A shard takes a byte a row while some of its rows are
visited and others are not.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from consumers.reasons import Reason
from consumers.records import Int64s


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


class Refusals:
    """The rows that the schema refuses, by shard; each once, however often it is read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[int, dict[int, Reason]] = {}

    def note(self, shard: int, rows: Iterable[tuple[int, Reason]]) -> None:
        """Take in rows of a shard."""
        with self._lock:
            self._reasons.setdefault(shard, {}).update(rows)

    def rows(self) -> dict[int, Int64s]:
        """Return the numbers of the refused rows, by shard."""
        with self._lock:
            return {shard: np.array(sorted(rows), np.int64) for shard, rows in self._reasons.items() if rows}

    def by_reason(self) -> dict[Reason, int]:
        """Count them."""
        with self._lock:
            return dict(Counter(reason for rows in self._reasons.values() for reason in rows.values()))


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

    @property
    def all(self) -> bool:
        """Whether every row was visited once."""
        return self.visited == self.rows and not self.twice

    def __str__(self) -> str:
        # Rounded down: 100 % says that none is missing.
        share = 1000 if not self.rows else self.visited * 1000 // self.rows
        percent = "100" if share >= 1000 else f"{share / 10:.1f}"
        return f"visited {percent} % of {self.rows:,} rows, {self.twice:,} twice"


class Visits:
    """Counts the rows of one epoch."""

    def __init__(self, shards: Sequence[CountedShard]) -> None:
        self._shards = shards
        self._counts: dict[int, npt.NDArray[np.uint8]] = {}
        self._visits = [0] * len(shards)
        self._complete: set[int] = set()
        self._twice = 0

    def add(self, shards: npt.NDArray[np.int32], rows: Int64s) -> None:
        """Count these rows, each named by the place of its shard and its number there."""
        for shard in np.unique(shards).tolist():
            self._add(shard, rows[shards == shard] - self._shards[shard].first)

    def ended(self, refused: Mapping[int, Int64s]) -> Visited:
        """Return the outcome; refused rows that no block had count as visited."""
        lacking = {}
        visited = 0
        for place, shard in enumerate(self._shards):
            found = self._distinct(place, refused.get(place, np.empty(0, np.int64)) - shard.first)
            visited += found
            if found != shard.rows:
                lacking[shard.name] = shard.rows - found
        twice = self._twice + sum(int(np.maximum(counts, 1).sum()) - len(counts) for counts in self._counts.values())
        return Visited(rows=sum(shard.rows for shard in self._shards), visited=visited, twice=twice, lacking=lacking)

    def _add(self, place: int, rows: Int64s) -> None:
        if place in self._complete:
            self._twice += len(rows)
            return
        counts = self._counts.get(place)
        if counts is None:
            shard = self._shards[place]
            counts = self._counts[place] = np.zeros(shard.end - shard.first, np.uint8)
        np.add.at(counts, rows, 1)
        self._visits[place] += len(rows)
        if self._visits[place] == len(counts) and counts.all():
            self._complete.add(place)
            del self._counts[place]

    def _distinct(self, place: int, refused: Int64s) -> int:
        """Return how many rows of a shard were visited or refused."""
        if place in self._complete:
            return self._shards[place].rows
        counts = self._counts.get(place)
        if counts is None:
            return len(refused)
        seen = counts > 0
        seen[refused] = True
        return int(np.count_nonzero(seen))
