"""All that a checkpoint holds, as one: model, optimizer, position, live values and progress.

Owns the parts. It is copied only where the weights' own count of offsets is the ledger's, and brought back only from a
checkpoint that fits the model. Runs on the trainer's thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from consumers.records import Partition
from pipelines.blocks import Turn
from training.checkpoints.parts import Part, PartState
from training.errors import CorruptError
from training.ledger.ledger import Ledger
from training.model.hyperparameters import UNKNOWN, HyperparameterOptions, Hyperparameters
from training.model.learner import Learner
from training.model.variables import VariablesPart
from training.telemetry.live_metrics import LiveMetrics


@dataclass(slots=True)
class Progress:
    """The part `progress`: steps taken, and where the strict rotation stands."""

    step: int = 0
    turn: Turn | None = None
    name: str = "progress"

    def snapshot(self) -> PartState:
        """A few bytes."""
        turn = None if self.turn is None else [str(self.turn.partition), self.turn.taken]
        return PartState(facts={"step": self.step, "turn": turn})

    def restore(self, state: PartState) -> None:
        """As it was."""
        turn = state.facts["turn"]
        self.step = int(state.facts["step"])
        self.turn = None if turn is None else Turn(Partition.parse(turn[0]), int(turn[1]))


class TrainerState:
    """The parts, copied and brought back together."""

    def __init__(
        self, learner: Learner, ledger: Ledger, live: LiveMetrics, hyperparameters: HyperparameterOptions
    ) -> None:
        self._learner, self._ledger = learner, ledger
        self.progress = Progress()
        self.hyperparameters = Hyperparameters(learner.model, hyperparameters)
        self._parts: tuple[Part, ...] = (*learner.parts, self.hyperparameters, ledger, live, self.progress)

    def snapshot(self) -> dict[str, PartState]:
        """Copies of all parts, for a checkpoint; `release` them when it is written."""
        self._testify()
        return {part.name: part.snapshot() for part in self._parts}

    def fitting(self, number: int, loaded: Mapping[str, PartState]) -> Mapping[str, PartState]:
        """What was loaded of checkpoint `number`, once it is certain that every part of it fits this model."""
        state = {**UNKNOWN, **loaded}
        missing = [part.name for part in self._parts if part.name not in state]
        if missing:
            raise CorruptError(f"checkpoint {number} lacks the parts {', '.join(missing)}; restore another one")
        self.hyperparameters.check(state)
        for part in self._parts:
            if isinstance(part, VariablesPart):
                part.check(state[part.name])
        return state

    def restore(self, state: Mapping[str, PartState]) -> None:
        """Be in a state that fits. Where this raises, nothing in memory may be used any more."""
        for part in self._parts:
            part.restore(state[part.name])
        self._testify()

    def _testify(self) -> None:
        """The weights' own count of offsets must be the ledger's: else nothing of this may be saved or used."""
        seen = {partition: count for partition, count in self._learner.witness.counts().items() if count}
        counted = {partition: count for partition, count in self._ledger.learnt().items() if count}
        if seen != counted:
            raise CorruptError(
                "the model has seen other offsets than the ledger counts, so nothing of this is saved or used; restart "
                "from the newest checkpoint, or where that is the one, rewind to an earlier one, and report this: "
                f"{_compared(seen, counted)}"
            )


def release(state: Mapping[str, PartState]) -> None:
    """Give the copies' memory back."""
    for part in state.values():
        part.release()


def _compared(seen: Mapping[Partition, int], counted: Mapping[Partition, int]) -> str:
    differing = sorted(p for p in seen.keys() | counted.keys() if seen.get(p, 0) != counted.get(p, 0))
    return "; ".join(f"{p}: {seen.get(p, 0)} seen, {counted.get(p, 0)} counted" for p in differing[:5])
