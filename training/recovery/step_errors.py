"""What follows when a call raises, or the user's `preprocess`: back to what is durable, and on from there with care.

A call that raised may have moved some of the variables, so nothing in memory may be used; the trainer goes back to the
newest durable checkpoint, as a crash does. The offsets of the block are suspect from then on, and a block with any of
them is learnt carefully (`training/recovery/isolation.py`): the records at fault are set aside, all others are learnt.

Owns what is suspect, and the policy. It ends the training where setting aside would be wrong: by order, where so many
records raise that it cannot be the records, and where something raises again and again though no record is at fault.
Runs on the trainer's thread. What is suspect ends with the process; a replay finds the same again.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from consumers.reasons import Reason
from consumers.records import Partition
from pipelines.blocks import BlockFacts, Span
from pipelines.dataset import PreprocessError
from pipelines.preprocess_bypass import Suspect
from training.checkpoints.manifest import Manifest
from training.errors import StepError
from training.model.culprit_search import Culprits
from training.model.learner import Learner
from training.recovery.isolation import (
    FEW,
    PREPROCESS,
    STEP,
    CarefulLearner,
    Culprit,
    Piece,
    TooManyCulpritsError,
    at_fault,
    blamed,
    most_culprits,
)
from training.stream import BlockStream, Delivery
from training.telemetry.events import EventKind, Severity, Tell, ignore_event

log = logging.getLogger(__name__)

_BEYOND = 16
"""Bad records come in flocks: so many lengths of the block beyond it are suspect too. Care changes no result."""
_MOST_IN_VAIN = 4
"""How often it goes back to one checkpoint without finding a culprit."""
_SHOWN = 4


class OnStepError(StrEnum):
    """What is done with records that make a training step raise."""

    SET_ASIDE = "set_aside"
    HALT = "halt"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepErrorOptions:
    """What is done when a call raises."""

    policy: OnStepError = OnStepError.SET_ASIDE
    exact: bool = False
    """Whether only those very blocks go past the dataset's `preprocess` that have made it raise: elsewhere it may give
    other last bits."""


class BlockRaised(Exception):  # noqa: N818 - the trainer acts upon it
    """A block made something raise: what is in memory may not be used any more."""

    def __init__(self, facts: BlockFacts, gist: str, *, in_preprocess: bool) -> None:
        super().__init__(gist)
        self.facts, self.gist, self.in_preprocess = facts, gist, in_preprocess


@dataclass(slots=True)
class _Fall:
    """One time that something raised."""

    suspects: Sequence[Suspect]
    raised: BlockRaised
    back_to: int
    explained: bool = False
    """Whether a culprit was found."""

    def touches(self, spans: Iterable[Span]) -> bool:
        return any(suspect.touches(spans) for suspect in self.suspects)


@dataclass(slots=True)
class Learnt:
    """What became of a block's rows."""

    pieces: Sequence[Piece] = ()
    raised: Culprits = field(default_factory=Culprits)

    def culprits(self) -> dict[Reason, Culprits]:
        """All that are to be set aside, by reason."""
        not_finite = [offset for piece in self.pieces for offset in piece.lesson.culprits.offsets]
        return {Reason.UPDATE_NOT_FINITE: Culprits(tuple(not_finite)), Reason.STEP_RAISED: self.raised}


class StepRecovery:
    """Learns blocks, and remembers what raised."""

    def __init__(
        self,
        learner: Learner,
        options: StepErrorOptions,
        *,
        progress: Callable[[], None],
        newest: Callable[[], int],
        tell: Tell = ignore_event,
    ) -> None:
        self._learner, self._options, self._progress, self._say = learner, options, progress, tell
        self._newest = newest
        """The number of the newest durable checkpoint."""
        self._falls: list[_Fall] = []
        self._in_a_row = 0

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """What has made `preprocess` raise."""
        exact = self._options.exact
        falls = [fall for fall in self._falls if fall.raised.in_preprocess]
        return tuple(
            suspect for fall in falls for suspect in (_suspects(fall.raised.facts) if exact else fall.suspects)
        )

    def take(self, stream: BlockStream) -> Delivery | None:
        """The stream's next block; BlockRaised where `preprocess` has raised on it."""
        try:
            return stream.take()
        except PreprocessError as error:
            cause = error.__cause__
            if isinstance(cause, Exception) and not at_fault(cause):
                raise
            raise self._raised(error.facts, blamed(cause or error, PREPROCESS), in_preprocess=True) from error

    def learn(self, delivery: Delivery) -> Learnt:
        """Learn a block: with care where it is suspect, else BlockRaised where its call raises."""
        falls = [fall for fall in self._falls if fall.touches(delivery.facts.spans)]
        if falls or delivery.prepare is not None:
            return self._with_care(delivery, falls)
        try:
            lesson = self._learner.learn(delivery.rows)
        except Exception as error:
            if not at_fault(error):
                raise
            raise self._raised(delivery.facts, blamed(error, STEP), in_preprocess=False) from error
        self._in_a_row = 0
        return Learnt([Piece(delivery.rows, lesson)])

    def remember(self, raised: BlockRaised, back_to: Manifest) -> None:
        """Take note before going back to a checkpoint; StepError where that has been in vain too often."""
        self._forget(back_to)
        beyond = _suspects(raised.facts, beyond=_BEYOND)
        self._falls.append(_Fall(beyond, raised, back_to.number))
        in_vain = sum(not fall.explained for fall in self._falls if fall.back_to == back_to.number)
        if in_vain > _MOST_IN_VAIN:
            why = f"{in_vain} times since checkpoint {back_to.number} something raised though no record was at fault"
            raise self._ended(raised.facts, raised.gist, f"{why}: look for what else it depends on")
        text = "%s, on %s; going back to checkpoint %d, to find the records at fault"
        what = (raised.gist, _listed(raised.facts), back_to.number)
        log.warning(text, *what)
        self._say(EventKind.FELL_BACK, f"{text % what}.", Severity.WARNING, number=back_to.number)

    def _raised(self, facts: BlockFacts, gist: str, *, in_preprocess: bool) -> BlockRaised | StepError:
        if self._options.policy is OnStepError.HALT:
            why = "training.on_step_error is halt: set_aside would find the records at fault"
            return self._ended(facts, gist, why)
        return BlockRaised(facts, gist, in_preprocess=in_preprocess)

    def _with_care(self, delivery: Delivery, falls: Sequence[_Fall]) -> Learnt:
        facts = delivery.facts
        careful = CarefulLearner(
            learner=self._learner,
            prepare=delivery.prepare,
            progress=self._progress,
            most=most_culprits(facts.rows),
        )
        try:
            careful.learn(delivery.rows)
        except TooManyCulpritsError as error:
            raise self._too_many(facts, error.gist, f"at least {error.found} of {facts.rows} records raise") from error
        self._in_a_row = 0 if careful.pieces else self._in_a_row + len(careful.culprits)
        if self._in_a_row > FEW:
            raise self._too_many(facts, careful.culprits[-1].gist, f"{self._in_a_row} records in a row raise")
        self._tell(careful.culprits, falls, facts)
        found = tuple(sorted((culprit.partition, culprit.offset) for culprit in careful.culprits))
        return Learnt(careful.pieces, Culprits(found))

    def _too_many(self, facts: BlockFacts, gist: str, how_many: str) -> StepError:
        why = f"{how_many}, which is no matter of single records: mend the model or the producer"
        return self._ended(facts, gist, why)

    def _ended(self, facts: BlockFacts, gist: str, why: str) -> StepError:
        """The error that ends the training, with the way past the block."""
        spans = [span for span in facts.spans if span.learnt]
        skips = " ".join(f"--skip {span.partition}:{span.start}-{span.end - 1}" for span in spans)
        return StepError(
            f"{gist}, on {_listed(facts)}; {why}; or pass the block over: millrace rewind --to {self._newest()} {skips}"
        )

    def _tell(self, culprits: Sequence[Culprit], falls: Sequence[_Fall], facts: BlockFacts) -> None:
        partitions = {span.index: span.partition for span in facts.spans}
        for culprit in culprits:
            partition = partitions[culprit.partition]
            text = "%s offset %d is set aside: %s"
            log.warning(text, partition, culprit.offset, culprit.gist)
            said = f"{text % (partition, culprit.offset, culprit.gist)}."
            self._say(EventKind.SET_ASIDE, said, Severity.WARNING, partition=str(partition), offset=culprit.offset)
        for fall in falls:
            fall.explained |= bool(culprits)
        if not culprits and any(_same(fall.raised.facts, facts) for fall in falls):
            log.warning("%s raised before and has not now; nothing is set aside", _listed(facts))

    def _forget(self, back_to: Manifest) -> None:
        """What lies before a durable checkpoint is not read again, unless somebody rewinds: then it raises again."""
        positions = {Partition.parse(name): offset for name, offset in back_to.positions.items()}
        self._falls = [
            fall for fall in self._falls if any(at.end > positions.get(at.partition, 0) for at in fall.suspects)
        ]


def _suspects(facts: BlockFacts, *, beyond: int = 0) -> tuple[Suspect, ...]:
    return tuple(
        Suspect(partition=span.partition, start=span.start, end=span.end + beyond * (span.end - span.start))
        for span in facts.spans
        if span.learnt
    )


def _same(one: BlockFacts, other: BlockFacts) -> bool:
    return any(suspect.touches(other.spans) for suspect in _suspects(one))


def _listed(facts: BlockFacts) -> str:
    spans = [f"{span.partition} {span.start} to {span.end - 1}" for span in facts.spans if span.learnt]
    return ", ".join(spans[:_SHOWN]) + (f" and {len(spans) - _SHOWN} more partitions" if len(spans) > _SHOWN else "")
