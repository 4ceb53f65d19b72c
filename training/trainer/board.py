"""The board: the figures that the trainer posts about itself, for any thread to read.

Owns the newest posting. The trainer's thread replaces it between two calls, at most once a second and after each save.
A posting is frozen and replaced as a whole, so that readers need no lock. The board holds one posting and ends with the
process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from millrace.consumers.metric import PartFigures, Reported, gauge
from millrace.training.model.hyperparameters import Change
from millrace.training.telemetry.group_report import GroupReport
from millrace.training.telemetry.live_metrics import LiveSnapshot
from millrace.training.trainer.save_figures import LastSave

POST_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts(PartFigures):
    """The facts of the model that stay the same while it learns."""

    parameters: Annotated[int, gauge("model_parameters", "")]
    """The number of trainable parameters of the model."""
    replicas: Annotated[int, gauge("replicas", "Bad: fewer than the pod has GPUs.")]
    """How many devices share a batch."""
    devices: tuple[str, ...]
    """The names of these devices, such as `CPU:0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting(PartFigures):
    """The figures of the trainer between two calls."""

    live: LiveSnapshot
    learning_rate: Annotated[float, gauge("learning_rate", "Bad: it is not the one that was deployed.")]
    """The learning rate of the next update."""
    step: Annotated[int, gauge("step", "Bad: it stands still while there is lag.")]
    """Batches since checkpoint number 0; a rewind goes back."""
    model: ModelFacts
    last_save: LastSave | None
    """The newest durable checkpoint; None only before the first."""
    saves: int
    """Saves of this process that became durable."""
    failed_saves: int
    """Saves of this process that failed."""
    save_error: str | None
    """Why the newest save failed; None after a save that succeeded."""
    letters_missing: bool = False
    """Whether the newest save failed because dead letters were not acknowledged in time."""
    learnt_to_ms: int | None
    """Event time of the newest record of the last call, milliseconds since 1970; None before the first."""
    changes: tuple[Change, ...] = ()
    """The hyperparameters that differed from the checkpoint at the last restore."""
    figures: Mapping[str, Reported] = field(default_factory=dict)
    """What the parts of the trainer's state report, by name."""


class Board:
    """Holds the newest posting."""

    def __init__(self) -> None:
        self.latest: Posting | None = None
        self.group: GroupReport | None = None
        """The group as it was at the newest exchange, replaced as a whole; None for one process alone."""
        self._posted_at = float("-inf")

    def wants(self, now: float, last_save: LastSave | None) -> bool:
        """Return whether a new posting is due: after a second by the trainer's clock, or after a save."""
        stale = now - self._posted_at >= POST_EVERY_S
        return stale or self.latest is None or self.latest.last_save is not last_save

    def post(self, posting: Posting, now: float) -> None:
        self.latest, self._posted_at = posting, now
