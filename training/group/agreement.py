"""What the members of a group do next, decided by all of them alike from what each has said. Pure.

Before each call every member says a few integers, and gets those of all. Whatever happens next follows from these
alone: no clock, no queue and no error of one member may add a collective to it, or leave one out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt

from millrace.training.errors import NotOneStateError
from millrace.training.telemetry.group_report import CHIEF


class Flag(IntFlag):
    """What a member is in."""

    NONE = 0
    EXPECTS = 1
    """Records are on their way to it, so that a block will be ready soon."""
    ENDED = 2
    """It has learnt all that it was to learn."""
    STOP = 4
    """It was asked to stop."""
    HELD = 8
    """It must not learn just now: something holds it, or too many dead letters wait."""
    PAUSED = 16
    """The chief was asked to pause, or started paused."""
    REOPEN = 32
    """Its stream has to be opened anew: a topic was created again, or `preprocess` raised."""
    LET_PASS = 64
    """The chief was asked to resume: every member lets pass what it holds."""
    ASSUME_ABSENT = 128
    """It was told that labels which do not come are none."""


class Order(IntEnum):
    """What the chief wants all members to do between two calls."""

    NONE = 0
    SAVE = 1
    REPORT = 2
    """Give the chief the sums for the live metrics."""
    REOPEN = 3
    """Gather the state, deal the partitions anew and open new streams."""
    GO_BACK = 4
    """Take over the state that the chief restores, and open new streams: a rewind, or a state with NaN."""
    MEET = 5
    """Tell each other how far labels that come later are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What one member says."""

    call: int
    """How many calls it has made; the same everywhere."""
    incarnation: int
    """The same everywhere."""
    ready: int = 0
    """The batches of the block that it has ready."""
    waited_ms: int = 0
    """For how long that block has been ready."""
    flags: Flag = Flag.NONE
    order: Order = Order.NONE
    """The chief's; of the others always none."""
    learnt: int = 0
    """Records that it has learnt in this process."""
    lag: int = 0
    """Records that its partitions hold and it has not learnt."""
    partitions: int = 0
    """How many it reads."""
    idled_ms: int = 0
    """How long it has waited for the others: the one with the least is the slow one."""

    def row(self) -> npt.NDArray[np.int64]:
        return np.array([int(getattr(self, field.name)) for field in fields(self)], np.int64)

    @classmethod
    def of(cls, row: npt.NDArray[np.int64]) -> "Word":
        said = {field.name: int(number) for field, number in zip(fields(cls), row, strict=True)}
        return cls(**{**said, "flags": Flag(said["flags"]), "order": Order(said["order"])})  # type: ignore[arg-type]


class Step(IntEnum):
    """What all members do next."""

    CALL = 0
    """Learn, each its block of as many batches, filled up with absent rows."""
    WAIT = 1
    """Wait a moment for blocks."""
    REST = 2
    """Wait a moment, as the group is paused or held."""
    ORDER = 3
    END = 4
    """Save for the last time and end: all has been learnt, or some were asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What the words come to."""

    step: Step
    batches: int = 0
    """Of the call."""
    order: Order = Order.NONE
    stopping: tuple[int, ...] = ()
    """The members that were asked to stop; none at the end of all there is to learn."""


def agree(words: Sequence[Word], patience_ms: float) -> Agreement:
    """Return what to do next; raise NotOneStateError where the members are not between the same two calls.

    A call begins when every member has a block, or expects none, or one has waited for `patience_ms`.
    """
    _require_one_place(words)
    flags = Flag.NONE
    for word in words:
        flags |= word.flags
    stopping = tuple(number for number, word in enumerate(words) if Flag.STOP in word.flags)
    if stopping or all(Flag.ENDED in word.flags and not word.ready for word in words):
        return Agreement(step=Step.END, stopping=stopping)
    if (order := words[CHIEF].order) is not Order.NONE:
        return Agreement(step=Step.ORDER, order=order)
    if Flag.REOPEN in flags:
        return Agreement(step=Step.ORDER, order=Order.REOPEN)
    if flags & (Flag.PAUSED | Flag.HELD):
        return Agreement(step=Step.REST)
    batches = max(word.ready for word in words)
    awaited = any(Flag.EXPECTS in word.flags and not word.ready for word in words)
    if not batches or (awaited and max(word.waited_ms for word in words) < patience_ms):
        return Agreement(step=Step.WAIT)
    return Agreement(step=Step.CALL, batches=batches)


def _require_one_place(words: Sequence[Word]) -> None:
    places = [(word.incarnation, word.call) for word in words]
    if len(set(places)) > 1:
        said = ", ".join(f"{number}: call {call} of incarnation {at}" for number, (at, call) in enumerate(places))
        raise NotOneStateError(f"the members of the group are not between the same two calls ({said})")
