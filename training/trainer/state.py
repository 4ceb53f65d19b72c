"""The whole state that a checkpoint holds: model, optimizer, positions, live metrics and progress.

Owns the parts. The state is copied only if the model's witness has counted the same offsets as the ledger, and restored
only from a checkpoint that fits the model. Runs on the trainer's thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.consumers.metric import Reported, reported_by
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.shaper import Shaper
from millrace.pipelines.stream.blocks import BlockFacts, Turn
from millrace.training.checkpoints.parts import Part, PartState
from millrace.training.errors import CorruptError, StateNotFiniteError
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.call.class_balance import NAME as SHAPING
from millrace.training.model.call.recent_rows import NAME as RECENT
from millrace.training.model.call.reservoir import NAME as RESERVOIR
from millrace.training.model.call.running_scale import NAME as SCALE
from millrace.training.model.hyperparameters import UNKNOWN, HyperparameterOptions, Hyperparameters
from millrace.training.model.learner import Learner
from millrace.training.model.variables import VariablesPart
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.telemetry.no_change import NAME as NO_CHANGE
from millrace.training.telemetry.watcher import Watcher


@dataclass(slots=True)
class Progress:
    """The part `progress`: the steps taken, and the turn of the strict rotation."""

    step: int = 0
    turn: Turn | None = None
    name: str = "progress"

    def snapshot(self) -> PartState:
        """Copy the two values."""
        turn = None if self.turn is None else [str(self.turn.partition), self.turn.taken]
        return PartState(facts={"step": self.step, "turn": turn})

    def restore(self, state: PartState) -> None:
        """Take the two values back."""
        turn = state.facts["turn"]
        self.step = int(state.facts["step"])
        self.turn = None if turn is None else Turn(Partition.parse(turn[0]), int(turn[1]))


class ShaperPart:
    """What is remembered by what makes rows of the records, at what is settled."""

    def __init__(self, states: Shaper) -> None:
        self._states = states

    @property
    def name(self) -> str:
        return self._states.name

    def snapshot(self) -> PartState:
        arrays, facts = self._states.saved()
        return PartState(arrays=arrays, facts=facts)

    def restore(self, state: PartState) -> None:
        """Take it back; CorruptError changes nothing."""
        try:
            self._states.load(state.arrays, state.facts)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptError(
                f"the checkpoint's {self.name} cannot be read: {type(error).__name__}; restore another checkpoint"
            ) from error


class TrainerState:
    """The parts, copied and restored together."""

    def __init__(
        self,
        learner: Learner,
        ledger: Ledger,
        live: LiveMetrics,
        hyperparameters: HyperparameterOptions,
        shapers: Sequence[Shaper] = (),
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self._learner, self._ledger, self._live, self._watchers = learner, ledger, live, watchers
        self.progress = Progress()
        self.hyperparameters = Hyperparameters(learner.model, hyperparameters)
        # Restored in this sequence: the hyperparameters correct variables of the optimizer, a part of the learner.
        parts: tuple[Part, ...] = (*learner.parts, self.hyperparameters, ledger, live, self.progress)
        self.shapers = shapers
        """What is remembered by what makes rows of the records."""
        repeats = (live.last_labels,) if live.plan.repeats else ()
        self._parts = (*parts, *map(ShaperPart, shapers), *watchers, *repeats)

    def snapshot(self, whole: Mapping[str, PartState] | None = None) -> dict[str, PartState]:
        """Copy all parts for a checkpoint, those of `whole` as they are there. `release` the copies later.

        Raise CorruptError if witness and ledger differ, and StateNotFiniteError if the model holds NaN or infinity.
        """
        self._check_witness()
        self.check_finite()
        given = whole or {}
        return {part.name: given[part.name] if part.name in given else part.snapshot() for part in self._parts}

    def figures(self) -> Mapping[str, Reported]:
        """Return what the parts report, by name."""
        return reported_by((*self._parts, *self.shapers, *self._learner.mixtures))

    def settled(self, facts: BlockFacts) -> None:
        """Have what follows the ledger follow a block that it has settled."""
        self.progress.step += facts.batches
        self.progress.turn = facts.turn
        for states in self.shapers:
            states.settle(facts)

    def forget(self, partition: Partition) -> None:
        """Forget the records of a partition whose topic was created again."""
        self._live.last_labels.forget(partition)
        for watcher in self._watchers:
            watcher.forget(partition)
        for states in self.shapers:
            states.forget(partition)

    def check_finite(self) -> None:
        """Raise StateNotFiniteError if the model or an optimizer holds NaN or infinity."""
        if names := self._learner.not_finite():
            raise StateNotFiniteError(names)

    def fitting(self, number: int, loaded: Mapping[str, PartState]) -> Mapping[str, PartState]:
        """Return what was loaded of checkpoint `number`; raise if a part is missing or does not fit this model."""
        # A checkpoint from before something was shaped, or watched, remembers nothing for it.
        shaped = {
            SCALE,
            SHAPING,
            RESERVOIR,
            RECENT,
            NO_CHANGE,
            *(states.name for states in self.shapers),
            *(watcher.name for watcher in self._watchers),
        }
        state = {**UNKNOWN, **{name: PartState() for name in shaped}, **loaded}
        missing = [part.name for part in self._parts if part.name not in state]
        if missing:
            raise CorruptError(f"checkpoint {number} lacks the parts {', '.join(missing)}; restore another one")
        # All checks come before the first restore, so that a checkpoint that is refused has changed nothing.
        self.hyperparameters.check(state)
        for part in self._parts:
            if isinstance(part, VariablesPart):
                part.check(state[part.name])
        return state

    def restore(self, state: Mapping[str, PartState]) -> None:
        """Take over a state that `fitting` has returned. If this raises, do not use the state in memory any more."""
        for part in self._parts:
            part.restore(state[part.name])
        self._check_witness()

    def _check_witness(self) -> None:
        """Raise CorruptError unless the model's witness and the ledger have counted the same offsets as learnt."""
        # Without zeros: the ledger knows a partition when it joins, the witness when a block names it.
        seen = {partition: count for partition, count in self._learner.witness.counts().items() if count}
        counted = {partition: count for partition, count in self._ledger.learnt().items() if count}
        if seen != counted:
            differing = sorted(p for p in seen.keys() | counted.keys() if seen.get(p, 0) != counted.get(p, 0))
            both = [f"{p}: {seen.get(p, 0)} seen, {counted.get(p, 0)} counted" for p in differing[:5]]
            raise CorruptError(
                "the model has seen other offsets than the ledger counts, so this state is neither saved nor used; "
                "restart from the newest checkpoint, or if that is the damaged one, rewind to an earlier one, and "
                f"report this: {'; '.join(both)}"
            )


def release(state: Mapping[str, PartState]) -> None:
    """Free the memory of the copies."""
    for part in state.values():
        part.release()
