"""Gates: what holds decoded chunks back, and with them the learning, before any of their records is set aside.

A gate decides about time only: what it holds back stays where it is, and comes unchanged later. The feed's thread asks
the gates about each decoded chunk, in their sequence; any thread may read what one holds, and release it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from millrace.consumers.records import Partition
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import SkipRange


class HeldBy(StrEnum):
    """What holds the learning."""

    SCHEMA = "schema"
    FLOOD = "flood"
    DEAD_LETTERS = "dead_letters"
    LABELS = "labels"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningHold:
    """Why the learning is held."""

    by: HeldBy
    why: str
    """As a sentence without its end."""
    fix: str | None = None
    """What to do, where that depends on what is held."""


class Gate(Protocol):
    """Says of each decoded chunk whether it may go on. It holds from the first that may not until it is released."""

    def begin(self, positions: Mapping[Partition, int], skips: Sequence[SkipRange] = ()) -> None:
        """Begin a stream at these positions, of which a command skips some ranges.

        What was held belongs to a stream that is closed, so it holds no longer.
        """
        ...

    def admits(self, decoded: Decoded) -> bool:
        """Return whether a chunk may go on. One that may not is asked about again."""
        ...

    def held(self) -> LearningHold | None:
        """Return what it holds and why; None while it holds nothing."""
        ...

    def let_pass(self, ends: Mapping[Partition, int]) -> bool:
        """Release what is held, and let it pass; the partitions end at `ends` now. Return whether it did hold."""
        ...


def open_gates(
    gates: Sequence[Gate], positions: Mapping[Partition, int], skips: Sequence[SkipRange]
) -> Callable[[Decoded], bool] | None:
    """Begin the gates; return what says whether a decoded chunk passes all of them, or None if there are none."""
    for gate in gates:
        gate.begin(positions, skips)
    return (lambda decoded: all(gate.admits(decoded) for gate in gates)) if gates else None
