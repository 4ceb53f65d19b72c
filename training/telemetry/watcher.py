"""A watcher sees what each call has learnt, and changes nothing of it.

The detectors and the score on arrival are watchers. The trainer holds a list of them and knows none by name: each is a
part of the checkpoint and reports its own figures. In a group of workers each member's watchers see its own calls, and
those of the chief take in what the others have seen; the state and the figures are the chief's.

A checkpoint from before a watcher was there holds nothing of it, and its part is then restored from an empty state.
`app/service/watchers.py` makes those that the settings ask for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Rows
from millrace.training.checkpoints.parts import Part, PartState
from millrace.training.telemetry.live_metrics import Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call whose records are settled."""

    facts: BlockFacts
    rows: Sequence[tuple[Rows, npt.NDArray[np.bool_]]]
    """Its rows in one or several pieces, each with which of them are learnt; none if all its records were left out."""
    scored: Sequence[Sums]
    """What each piece has scored, by the weights before it was learnt."""
    outputs: Sequence[npt.NDArray[np.float32]] = ()
    """The model's answers to the rows of each piece, by batch, row and column, by the same weights.

    No columns where the compiled call returns none.
    """
    step: int
    """Batches learnt since checkpoint 0."""
    records: int
    """Records learnt since then."""


class Watcher(Part, ABC):
    """Watches the calls of one trainer, on its thread. What a watcher leaves out of these does nothing."""

    gates: Sequence[Any] = ()
    """Each a `Gate` of `pipelines/gates/gate.py`, which sees the decoded chunks for it, behind all other gates."""

    score_names: Sequence[str] = ()
    """What it gives to the conditions of exports, as `worst_slice.auc`."""

    @abstractmethod
    def called(self, call: Call) -> None:
        """Take in a call, before any save, so that the state of the watcher is that of the same call."""

    def begin(self) -> None:
        """Begin: the state is restored, and the first call comes."""

    def between_calls(self, now: float) -> None:
        """Use the time before a call, also while there is nothing to learn; `now` is monotonic."""

    def scores(self) -> Mapping[str, float]:
        """Return what it gives to the conditions of exports, as far as it is known; any thread may ask."""
        return {}

    def forget(self, partition: Partition) -> None:
        """Forget the records of a partition whose topic was created again."""

    def agree(self, gather: Callable[[bytes], list[bytes]]) -> None:
        """Agree with the other members of a group on what the shares are made by. Called by all of them.

        `gather` gives the bytes of every member, by their numbers, and is called as often by each.
        """

    def share(self) -> PartState:
        """Return what a member that does not lead its group has seen since this was asked last, and forget it."""
        return PartState()

    def take_shares(self, shares: Sequence[PartState]) -> None:
        """Take in, as the chief, the shares of all others, by their numbers; all have made the same calls."""


def target_of(rows: Rows) -> Any | None:
    """Return what the model is to predict, as one tensor; without a label that is its only feature."""
    target = untyped_target_of(rows)
    return None if target is None or not _is_number(target.dtype) else target


def untyped_target_of(rows: Rows) -> Any | None:
    """Return the same, also if it is no number."""
    target = rows.labels
    if not hasattr(target, "numpy") and isinstance(target, Mapping) and not target and len(rows.features) == 1:
        target = next(iter(rows.features.values()))
    return target if hasattr(target, "numpy") else None


def numbers_in(target: Any | None) -> npt.NDArray[Any] | None:
    """Return the numbers of such a tensor; None if it is none, or holds texts."""
    return None if target is None or not _is_number(target.dtype) else np.asarray(target.numpy())


@cache
def _is_number(dtype: Any) -> bool:
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)
