"""Recovery from a call, or the user's `preprocess`, that raises: restore what is durable, then isolate the culprits.

A state that a save finds to hold NaN is recovered from in the same way; all that was learnt since the newest checkpoint
is suspect then.

A call that raised may have changed some of the variables, so the state in memory must not be used. The trainer restores
the newest durable checkpoint, as a restart after a crash does. From then on the offsets of the block are suspect, and a
block with any of them is learnt by `training/recovery/isolation.py`: culprits are set aside, all others are learnt.

Owns the suspects and the policy. The training ends with an error if setting records aside would be wrong: if the policy
is `halt`, if too many records raise for the records to be the cause, or if something keeps raising though no record
alone does. Runs on the trainer's thread. The suspects end with the process; a replay finds the same ones again.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.consumers.rounded import cut_list
from millrace.consumers.suggested_command import suggested_command
from millrace.pipelines.stream.blocks import BlockFacts, Delivery, Span, Suspect
from millrace.pipelines.stream.dataset import PreprocessError
from millrace.training.errors import StateNotFiniteError, StepError
from millrace.training.model.call.culprit_search import Culprits
from millrace.training.model.learner import Learner
from millrace.training.recovery.isolation import (
    FEW,
    PREPROCESS,
    STEP,
    Culprit,
    Fault,
    IsolatingLearner,
    Piece,
    TooManyCulpritsError,
    at_fault,
    blamed,
    most_culprits,
)
from millrace.training.stream import BlockStream
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity, ignore_event

log = logging.getLogger(__name__)


_BEYOND = 16
"""Bad records come in groups: this many lengths of the block after it are suspect too. Isolation changes no result."""
_MOST_IN_VAIN = 4
"""How often the trainer goes back to one checkpoint without finding a culprit."""
_SHOWN = 4
"""The partitions that a message names."""
_DO = {Reason.STEP_RAISED: "raise", Reason.UPDATE_NOT_FINITE: "leave weights that are not finite"}
"""What culprits do, by the reason for which they are set aside."""


class OnStepError(StrEnum):
    """What to do with records that make a training step raise."""

    SET_ASIDE = "set_aside"
    HALT = "halt"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepErrorOptions:
    """What to do when a call raises."""

    policy: OnStepError = OnStepError.SET_ASIDE
    exact: bool = False
    """Whether only the very blocks that made `preprocess` raise bypass the dataset's `preprocess`: for other blocks,
    running it outside of the dataset may change the last bits. For deterministic mode."""


class Standing(Protocol):
    """The checkpoint to which a trainer goes back; a manifest is one."""

    @property
    def number(self) -> int:
        """Its number."""
        ...

    @property
    def positions(self) -> Mapping[str, int]:
        """The next offset of each partition."""
        ...


class BlockRaised(Exception):  # noqa: N818 - the trainer acts upon it
    """A block made something raise, or a range of them left NaN: the state in memory must not be used any more."""

    def __init__(
        self, spans: Sequence[Span], gist: str, *, in_preprocess: bool = False, in_state: bool = False
    ) -> None:
        super().__init__(gist)
        self.spans, self.gist, self.in_preprocess, self.in_state = spans, gist, in_preprocess, in_state


@dataclass(slots=True)
class _Failure:
    """One block that raised."""

    suspects: Sequence[Suspect]
    raised: BlockRaised
    back_to: int
    explained: bool = False
    """Whether a culprit was found for it."""

    def touches(self, spans: Iterable[Span]) -> bool:
        return any(suspect.touches(spans) for suspect in self.suspects)


@dataclass(slots=True)
class LearntBlock:
    """The outcome of a block's rows."""

    pieces: Sequence[Piece] = ()
    isolated: Sequence[Culprit] = ()
    searched: bool = False
    """Whether it was searched for culprits, in tries that each leave the state finite."""

    def culprits(self) -> dict[Reason, Culprits]:
        """Return the records to set aside, by reason."""
        found = {Reason.UPDATE_NOT_FINITE: list[tuple[int, int]](), Reason.STEP_RAISED: list[tuple[int, int]]()}
        for piece in self.pieces:
            found[Reason.UPDATE_NOT_FINITE] += piece.lesson.culprits.offsets
        for culprit in self.isolated:
            found[culprit.fault.reason].append((culprit.partition, culprit.offset))
        return {reason: Culprits(tuple(sorted(offsets))) for reason, offsets in found.items()}


class StepRecovery:
    """Learns blocks, and remembers which ones raised."""

    def __init__(
        self,
        learner: Learner,
        options: StepErrorOptions,
        *,
        progress: Callable[[], None],
        newest: Callable[[], int],
        report_event: ReportEvent = ignore_event,
    ) -> None:
        self._learner, self._options, self._progress, self._report = learner, options, progress, report_event
        self._newest = newest
        """Returns the number of the newest durable checkpoint."""
        self._failures: list[_Failure] = []
        self._in_a_row = 0
        """Culprits since the last record that was learnt."""

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """The offsets whose blocks must bypass the dataset's `preprocess`, as it raised on them."""
        exact = self._options.exact
        failures = [failure for failure in self._failures if failure.raised.in_preprocess]
        return tuple(
            suspect
            for failure in failures
            for suspect in (_suspects(failure.raised.spans) if exact else failure.suspects)
        )

    def take(self, stream: BlockStream) -> Delivery | None:
        """Return the stream's next block, or None; BlockRaised if `preprocess` raised on it."""
        try:
            return stream.take()
        except PreprocessError as error:
            cause = error.__cause__
            if isinstance(cause, Exception) and not at_fault(cause):
                raise
            raise self._raised(error.facts.spans, blamed(cause or error, PREPROCESS), in_preprocess=True) from error

    def learn(self, delivery: Delivery) -> LearntBlock:
        """Learn a block. A suspect one is isolated; for any other, a call that raises ends in BlockRaised."""
        failures = [failure for failure in self._failures if failure.touches(delivery.facts.spans)]
        if failures or delivery.prepare is not None:
            return self._isolate(delivery, failures, self._learner)
        try:
            lesson = self._learner.learn(delivery.rows)
        except Exception as error:
            if not at_fault(error):
                raise
            raise self._raised(delivery.facts.spans, blamed(error, STEP)) from error
        self._in_a_row = 0
        return LearntBlock([Piece(delivery.rows, lesson)])

    def search(self, spans: Sequence[Span]) -> None:
        """Search the block with these spans, which the next call learns, as a run did in which it had raised before."""
        # As one that was suspect with others, so that it may be found innocent without a word.
        raised = BlockRaised(spans, "recorded as searched", in_state=True)
        self._failures = [_Failure(_suspects(spans), raised, back_to=0, explained=True)]

    def sieved(self, delivery: Delivery, apart: Callable[[], Learner]) -> LearntBlock | None:
        """Try a suspect block on a learner of its own; return what can be learnt of it. None where it is not suspect.

        For a learner that must not try: all members of a group make each of its calls.
        """
        failures = [failure for failure in self._failures if failure.touches(delivery.facts.spans)]
        if not failures and delivery.prepare is None:
            return None
        return self._isolate(delivery, failures, apart())

    def unexplained(self) -> list[BlockRaised]:
        """Return what raised and has no culprit yet, for the process that takes this one's place."""
        return [failure.raised for failure in self._failures if not failure.explained]

    def since(self, newest: Standing, positions: Mapping[Partition, int], error: StateNotFiniteError) -> "BlockRaised":
        """Return that whatever was learnt since a checkpoint may have made the state not finite.

        StepError if the policy is to halt.
        """
        began = {Partition.parse(name): offset for name, offset in newest.positions.items()}
        spans = [
            Span(partition=partition, index=0, start=began.get(partition, 0), end=position, learnt=1)
            for partition, position in sorted(positions.items())
            if position > began.get(partition, 0)
        ]
        raised = self._raised(spans, error.gist, in_state=True)
        if isinstance(raised, StepError):
            raise raised from error
        return raised

    def remember(self, raised: BlockRaised, back_to: Standing) -> None:
        """Make the block suspect before the trainer goes back to a checkpoint.

        StepError if it went back to the same checkpoint too often without finding a culprit.
        """
        # Forget what lies before a durable checkpoint: only a rewind would read it again, and then it raises again.
        positions = {Partition.parse(name): offset for name, offset in back_to.positions.items()}
        self._failures = [
            failure
            for failure in self._failures
            if any(suspect.end > positions.get(suspect.partition, 0) for suspect in failure.suspects)
        ]
        suspects = _suspects(raised.spans, beyond=0 if raised.in_state else _BEYOND)
        self._failures.append(_Failure(suspects, raised, back_to.number))
        in_vain = sum(not failure.explained for failure in self._failures if failure.back_to == back_to.number)
        if in_vain > _MOST_IN_VAIN:
            why = f"{in_vain} times since checkpoint {back_to.number} something raised though no record alone raises"
            raise self._ended(raised.spans, raised.gist, f"{why}: look for what else it depends on")
        text = "%s, on %s; going back to checkpoint %d to find the culprits"
        what = (raised.gist, _listed(raised.spans), back_to.number)
        log.warning(text, *what)
        self._report(EventKind.FELL_BACK, f"{text % what}.", Severity.WARNING, number=back_to.number)

    def _raised(
        self, spans: Sequence[Span], gist: str, *, in_preprocess: bool = False, in_state: bool = False
    ) -> BlockRaised | StepError:
        if self._options.policy is OnStepError.HALT:
            why = "training.on_step_error is halt; set_aside would find the culprits"
            return self._ended(spans, gist, why)
        return BlockRaised(spans, gist, in_preprocess=in_preprocess, in_state=in_state)

    def _isolate(self, delivery: Delivery, failures: Sequence[_Failure], learner: Learner) -> LearntBlock:
        facts = delivery.facts
        # Where the loss compares rows, whole batches are set aside, and counted.
        unit = learner.options.batch_size if learner.options.rows_together else 1
        isolating = IsolatingLearner(
            learner=learner,
            prepare=delivery.prepare,
            progress=self._progress,
            most=most_culprits(facts.rows // unit) * unit,
        )
        try:
            isolating.learn(delivery.rows)
        except TooManyCulpritsError as error:
            how_many = f"at least {error.count} of {facts.rows} records {_DO[error.fault.reason]}"
            raise self._too_many(facts, error.fault.gist, how_many) from error
        # Across blocks, because blocks of a few rows never reach the limit of a single block.
        self._in_a_row = 0 if isolating.pieces else self._in_a_row + len(isolating.culprits) // unit
        if self._in_a_row > FEW:
            fault = isolating.culprits[-1].fault
            raise self._too_many(facts, fault.gist, f"{self._in_a_row * unit} records in a row {_DO[fault.reason]}")
        partitions = {span.index: span.partition for span in facts.spans}
        found = dict[tuple[int, Fault, int], list[int]]()
        for at, culprit in enumerate(isolating.culprits):
            found.setdefault((culprit.partition, culprit.fault, at // unit), []).append(culprit.offset)
        for (index, fault, _), offsets in found.items():
            partition, offset = partitions[index], min(offsets)
            which = f"offset {offset} is"
            if len(offsets) > 1:
                which = f"offsets {offset} to {max(offsets)} ({len(offsets):,} records of one batch) are"
            text = "%s %s set aside: %s"
            log.warning(text, partition, which, fault.gist)
            sentence = f"{text % (partition, which, fault.gist)}."
            self._report(EventKind.SET_ASIDE, sentence, Severity.WARNING, partition=str(partition), offset=offset)
        for failure in failures:
            failure.explained |= bool(isolating.culprits)
        # A state that is not finite makes all that was learnt since a checkpoint suspect, most of it without cause.
        raised = [failure.raised for failure in failures if not failure.raised.in_state]
        suspects = [suspect for each in raised for suspect in _suspects(each.spans)]
        if not isolating.culprits and any(suspect.touches(facts.spans) for suspect in suspects):
            log.warning("%s raised before and did not raise now; nothing is set aside", _listed(facts.spans))
        return LearntBlock(isolating.pieces, isolating.culprits, searched=True)

    def _too_many(self, facts: BlockFacts, gist: str, how_many: str) -> StepError:
        why = f"{how_many}, which single bad records do not explain: correct the model or the producer"
        return self._ended(facts.spans, gist, why)

    def _ended(self, spans: Sequence[Span], gist: str, why: str) -> StepError:
        """Return the error that ends the training; its text gives the command that skips the block."""
        found = [span for span in spans if span.learnt]
        skips = [word for span in found for word in ("--skip", f"{span.partition}:{span.start}-{span.end - 1}")]
        rewind = suggested_command("rewind", "--to", str(self._newest()), *skips)
        return StepError(f"{gist}, on {_listed(spans)}; {why}; or skip the block: {rewind}")


def _suspects(spans: Sequence[Span], *, beyond: int = 0) -> tuple[Suspect, ...]:
    return tuple(
        Suspect(partition=span.partition, start=span.start, end=span.end + beyond * (span.end - span.start))
        for span in spans
        if span.learnt
    )


def _listed(spans: Sequence[Span]) -> str:
    found = [f"{span.partition} {span.start} to {span.end - 1}" for span in spans if span.learnt]
    return cut_list(found, _SHOWN, of="partitions")
