"""The board: what the trainer tells about itself, for whoever wants to know.

Owns the newest posting. The trainer's thread writes it between two calls, at most once a second and after each save;
any thread reads it. A posting is frozen and replaced as a whole, so there is no lock, nothing is ever full, and it ends
with the process.
"""

from dataclasses import dataclass

from training.model.hyperparameters import Change
from training.telemetry.live_metrics import LiveSnapshot
from training.trainer.saving import LastSave

POST_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What does not change while the model learns."""

    parameters: int
    """How many numbers the model learns."""
    replicas: int
    """How many devices share a batch."""
    devices: tuple[str, ...]
    """Their names, as in `CPU:0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """The trainer between two calls."""

    live: LiveSnapshot
    learning_rate: float
    """The rate that the next update takes."""
    step: int
    """Batches run since number 0."""
    model: ModelFacts
    last_save: LastSave | None
    """The newest durable checkpoint; None only before the first."""
    saves: int
    """Saves of this process that became durable."""
    failed_saves: int
    """Saves of this process that failed."""
    save_error: str | None
    """Why the newest save failed; None once one has succeeded again."""
    learnt_to_ms: int | None
    """Event time of the newest record of the last call, milliseconds since 1970; None before the first."""
    changes: tuple[Change, ...] = ()
    """The hyperparameters that differed at the last restore."""


class Board:
    """Where the newest posting hangs."""

    def __init__(self) -> None:
        self.latest: Posting | None = None
        self._posted_at = float("-inf")

    def wants(self, now: float, last_save: LastSave | None) -> bool:
        """Whether it is time for a new posting, by the trainer's own clock."""
        stale = now - self._posted_at >= POST_EVERY_S
        return stale or self.latest is None or self.latest.last_save is not last_save

    def post(self, posting: Posting, now: float) -> None:
        """Replace the newest posting."""
        self.latest, self._posted_at = posting, now
