"""Checks the witness: what the weights testify to have seen, against what the stream held up to there.

The expectation does not depend on the trainer: it is added up from the stream's own rule of which offsets can be
learnt, and is only ever extended. Reads checkpoints on disk, every byte verified; runs on the caller's thread.
"""

from dataclasses import dataclass

import numpy as np

from millrace.app.tools.demo import drifting_stream
from millrace.app.tools.prove.campaign import compared
from millrace.app.tools.prove.checkpoint_reader import Shelf
from millrace.consumers.errors import MillraceError
from millrace.consumers.records import Partition
from millrace.pipelines.stream.offset_mix import mix
from millrace.training.checkpoints.folder import Folder
from millrace.training.ledger.offset_checksum import Evidence

_STRETCH = 500_000
_WRAP = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessResult:
    """The result for one checkpoint."""

    checkpoint: int
    offsets: int
    """Settled since the stream began."""
    learnt: int
    set_aside: int
    lost: int
    learnt_twice: int

    @property
    def holds(self) -> bool:
        """Whether nothing was lost and nothing learnt twice."""
        return self.lost == self.learnt_twice == 0

    def __str__(self) -> str:
        return (
            f"{self.learnt:,} offsets learnt, {self.set_aside:,} set aside, lost {self.lost:,}, "
            f"learnt twice {self.learnt_twice:,}"
        )


class Witnesses:
    """Checks checkpoints."""

    def __init__(self, folder: Folder) -> None:
        self._shelf = Shelf(folder)
        self._expected = {
            Partition(drifting_stream.TOPIC, number): _Expected(number) for number in range(drifting_stream.PARTITIONS)
        }

    def newest(self) -> WitnessResult | None:
        """Check the checkpoint that a start would resume from; None where there is none."""
        number = self._shelf.newest_number()
        return None if number is None else self.of(number)

    def of(self, number: int) -> WitnessResult | None:
        """Check this checkpoint; None where it has been pruned."""
        try:
            statement = self._shelf.statement(number)
        except MillraceError:
            if number in self._shelf.numbers():
                raise
            return None
        seen, lost, twice = statement.testimonies, 0, 0
        for partition, account in statement.accounts.items():
            expected = self._expected[partition].before(account.position)
            missing, again = compared(expected, seen.get(partition, Evidence(0, 0, 0)))
            lost, twice = lost + missing, twice + again
        learnt = sum(evidence.count for evidence in seen.values())
        aside = sum(sum(account.set_aside.values()) for account in statement.accounts.values())
        return WitnessResult(
            checkpoint=number,
            offsets=statement.settled,
            learnt=learnt,
            set_aside=aside,
            lost=lost,
            learnt_twice=twice,
        )


class _Expected:
    """The expected evidence of one partition, as far as it was asked for."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._end, self._sum = 0, Evidence(0, 0, 0)

    def before(self, position: int) -> Evidence:
        """Return the evidence of every learnable offset before this one. A rewind may move positions back."""
        if position < self._end:
            self._end, self._sum = 0, Evidence(0, 0, 0)
        while self._end < position:
            end = min(position, self._end + _STRETCH)
            offsets = np.arange(self._end, end, dtype=np.int64)
            learnable = offsets[~drifting_stream.is_bad(self._partition, offsets)]
            with np.errstate(over="ignore"):
                mixed = int(mix(learnable).sum(dtype=np.int64))
            known, total = self._sum, int(learnable.sum())
            self._sum = Evidence(
                known.count + len(learnable), _wrapped(known.total + total), _wrapped(known.mixed + mixed)
            )
            self._end = end
        return self._sum


def _wrapped(total: int) -> int:
    return (total + _WRAP // 2) % _WRAP - _WRAP // 2
