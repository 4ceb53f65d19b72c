"""What is known of the state and its saves: the steps taken, what is not saved yet, the newest checkpoint.

Written on the trainer's thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import PartFigures, Reported, elapsed, gauge
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Turn
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.history.journal_blocks import BlockRecorder
from millrace.training.model.hyperparameters import Change
from millrace.training.trainer.state import Progress, TrainerState


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSave(PartFigures):
    """The newest durable checkpoint of this process, or the one that it resumed from."""

    section: ClassVar = "Checkpoints"

    manifest: Manifest
    at: float
    took_s: Annotated[
        float | None,
        gauge("checkpoint_took_seconds", "Bad: near checkpoints.every or stop.grace; look at the disk."),
    ] = None
    """From the copy to durability, the last time."""
    stall_s: Annotated[
        float | None,
        gauge("checkpoint_stall_seconds", "Bad: more than a hundredth of checkpoints.every; save less often."),
    ] = None
    """How long the training stood still for the copy, the last time."""

    @property
    def number(self) -> Annotated[int, gauge("checkpoint_number", "Bad: it stands still while records are learnt.")]:
        """The number of the newest durable checkpoint."""
        return self.manifest.number

    @property
    def made_at(
        self,
    ) -> Annotated[
        float,
        elapsed(
            "checkpoint_age_seconds",
            "The time since the newest durable checkpoint. Bad: many times checkpoints.every while "
            "millrace_checkpoint_unsaved_steps is not 0, as a kill costs that much to read again.",
        ),
    ]:
        """When it was made, seconds since 1970."""
        return self.manifest.created.timestamp()

    @property
    def nbytes(
        self,
    ) -> Annotated[
        int,
        gauge("checkpoint_bytes", "Bad: the volume has no room for one more than checkpoints.keep keeps."),
    ]:
        """Size of the newest durable checkpoint."""
        return self.manifest.size


class SaveFigures:
    """The progress of one trainer since its newest checkpoint."""

    def __init__(self, state: TrainerState, recorder: BlockRecorder | None = None) -> None:
        """Begin with this state; `recorder` collects the settled blocks for a journal."""
        self._state, self._recorder = state, recorder
        self._settled_since = False
        """Whether the state holds anything that no checkpoint of this process holds."""
        self.last: LastSave | None = None
        self.saved = 0
        self.failed = 0
        self.last_error: Exception | None = None

    @property
    def progress(self) -> Progress:
        """The steps taken, as a part of the state."""
        return self._state.progress

    @property
    def step(self) -> int:
        """Batches trained since checkpoint 0."""
        return self._state.progress.step

    @property
    def changes(self) -> tuple[Change, ...]:
        """The hyperparameters that differed from the checkpoint at the last restore."""
        return self._state.hyperparameters.changes

    @property
    def turn(self) -> Turn | None:
        """The turn of the strict rotation; None outside of deterministic mode."""
        return self._state.progress.turn

    def note_settled(
        self, facts: BlockFacts, *, refused: int = 0, searched: bool = False, bypassed: bool = False
    ) -> None:
        """Note that a call has returned and its block is settled: so many of its rows are set aside after all.

        `searched` and `bypassed` say how it was learnt: in tries, for culprits; without the dataset's `preprocess`.
        """
        if self._recorder is not None:
            self._recorder.note(facts, refused=refused, searched=searched, bypassed=bypassed)
        self._state.settled(facts)
        self._settled_since = True

    def reported(self) -> Mapping[str, Reported]:
        """Return what the parts of the state report, by name."""
        return self._state.figures()

    def begun_anew(self, partition: Partition) -> None:
        """Note that the topic of a partition was created again: what is remembered of its records ends."""
        self._state.forget(partition)

    def joined(self) -> None:
        """Note that a partition has joined: its first offset is worth a save, though none of its records is settled."""
        self._settled_since = True
