"""A detector: watches the scores of each call, and marks where they change.

`training.detectors: [drift]` names ours, `[./page_hinkley.py:PageHinkley]` one of the user's. A mark becomes an event
and a line through the page's charts, is counted, and does nothing else: what is learnt is the same with and without a
detector. Importing this loads no TensorFlow.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from millrace.pipelines.stream.blocks import Span


@dataclass(frozen=True, kw_only=True)
class CallSums:
    """What one call has scored, on records that the model had not learnt."""

    records: int
    scored: int
    """Records whose loss is in the sum; 0 if the model reports none, or none that is a number."""
    loss: float
    """The sum of their losses."""
    score: Callable[[], Mapping[str, float]] = field(repr=False, default=dict)
    """Computes the compiled metrics over these records alone."""

    @property
    def mean_loss(self) -> float:
        """The mean loss of a record; NaN if none was scored."""
        return self.loss / self.scored if self.scored else float("nan")

    @cached_property
    def metrics(self) -> Mapping[str, float]:
        """Each compiled metric over these records; NaN if it says nothing of them. Computed when first read."""
        return self.score()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """The position at which a call has ended."""

    step: int
    """Batches learnt since checkpoint 0."""
    records: int
    """Records learnt since then."""
    newest_ms: int
    """The newest event time of the call, milliseconds since 1970."""
    spans: Sequence[Span]
    """The offsets of the call, by partition."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A change that a detector has found."""

    text: str
    """What has changed, as a clause: `the mean loss rose from 0.4 to 0.9`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs: JSON values, under names other than detector, step, records, kind, text and severity."""


class Detector(ABC):
    """Watches the scores. A detector is a class that extends this one, made without arguments.

    What it says depends on the sums alone: no clock, and no randomness that `saved` does not hold. Then it marks the
    same after a restart, to the bit if the training is deterministic. Runs on the trainer's thread, between two calls.
    """

    @abstractmethod
    def update(self, sums: CallSums, at: CallEnd) -> Sequence[Mark]:
        """Take in a call, and return what is marked at its end; mostly nothing. A NaN is no reason to raise."""

    @abstractmethod
    def saved(self) -> Mapping[str, Any]:
        """Return all that later marks depend on, as JSON values; NaN and infinity are kept."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `saved` has returned, be it of this object or of another one of the class."""
