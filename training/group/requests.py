"""What is asked of the group: by commands, which the chief takes, and by what is due at the chief.

Whatever concerns no other member is obeyed at once. What concerns all becomes the chief's order, one at a time, which
is kept until the group has agreed to it. Members that do not lead only stop. Runs on the trainer's thread.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import assert_never

from millrace.consumers.errors import MillraceError
from millrace.consumers.records import Partition
from millrace.training.checkpoints.manifest import SaveReason
from millrace.training.commands import Command, Pause, Profile, Resume, Rewind, Save, Stop
from millrace.training.errors import GroupError
from millrace.training.group.agreement import Flag, Order, Word
from millrace.training.group.roles import GroupParts
from millrace.training.history.rewind import PreparedRewind
from millrace.training.telemetry.group_report import CHIEF
from millrace.training.trainer import announcements
from millrace.training.trainer.dependencies import TrainerOptions, TrainerReports
from millrace.training.trainer.profiling import Profiling

_LOOK_EVERY_S = 5.0
"""How often the chief looks for new partitions."""
_REPORT_EVERY_S = 1.0
"""How often it has the members report what they have scored, while they score."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the chief wants to be done, until the group has agreed to it."""

    order: Order
    reason: SaveReason = SaveReason.DEMAND
    save: Save | None = None
    rewind: Rewind | None = None
    prepared: PreparedRewind | None = None


class Requests:
    """The commands of one member, and the orders of the chief."""

    def __init__(
        self,
        parts: GroupParts,
        reports: TrainerReports,
        options: TrainerOptions,
        profiling: Profiling,
        stopping: list[Stop],
    ) -> None:
        """Put the commands that ask for the end into `stopping`."""
        self._parts, self._saving, self._reports, self._clock = parts, parts.saving, reports, options.clock
        self._profiling, self._stopping = profiling, stopping
        self._name, self._index = parts.state.group.membership.name, parts.state.group.membership.index
        self._looked_at = self._reported_at = options.clock()
        self.asked: Asked | None = None
        self.paused = options.paused
        """Why the chief has paused the group; None while it learns."""
        self.lets_pass = False
        """Whether the members have still to hear that the chief was asked to resume."""
        self.assumes_absent = False
        """Whether they have still to hear that labels which do not come are none."""

    def take(self) -> None:
        """Obey the commands that wait, up to one that concerns all members."""
        while self.asked is None and (command := self._parts.commands.next()) is not None:
            try:
                self._obey(command)
            except BaseException as error:
                if not command.answer.done():
                    command.answer.set_exception(error)
                raise

    def heard(self, words: Sequence[Word]) -> None:
        """Let pass what is held, if the chief has said that it was asked to resume."""
        self.lets_pass = self.assumes_absent = False
        if Flag.LET_PASS in words[CHIEF].flags:
            self._parts.hold.let_pass(assume_absent=Flag.ASSUME_ABSENT in words[CHIEF].flags)

    def why_resting(self, words: Sequence[Word]) -> str | None:
        """Return why the group is paused; None where it only waits for dead letters of this member to be sent."""
        if any(Flag.PAUSED in word.flags for word in words):
            return self.paused or "the chief is paused"
        held = [number for number, word in enumerate(words) if Flag.HELD in word.flags]
        others = [number for number in held if number != self._index]
        return self._parts.hold.reason or (f"worker {others[0]} is held, and says why" if others else None)

    def order(self, known: Collection[Partition], *, scored: bool) -> Order:
        """Return the chief's next order: what it was asked for, a save that is due, new partitions, the figures.

        `scored` says that there are scores which no report has told yet.
        """
        saving = self._saving
        if saving is None:
            return Order.NONE
        if self.asked is None and (reason := saving.due()) is not None:
            self.asked = Asked(Order.SAVE, reason)
        if self.asked is None and self._clock() - self._looked_at > _LOOK_EVERY_S:
            self._looked_at = self._clock()
            if self._parts.streams.newcomers(known):
                self.asked = Asked(Order.REOPEN)
        if self.asked is None and scored and self._clock() - self._reported_at > _REPORT_EVERY_S:
            return Order.REPORT
        if self.asked is None and self._parts.state.join is not None and self._parts.state.join.due:
            return Order.MEET
        return Order.NONE if self.asked is None else self.asked.order

    def agreed(self, order: Order) -> Asked | None:
        """Return what was asked for, if it is what the group has agreed to; else it is still to be done."""
        if order is Order.REPORT:
            self._reported_at = self._clock()
        if self.asked is None or self.asked.order is not order:
            return None
        asked, self.asked = self.asked, None
        return asked

    def end(self) -> None:
        """Leave a save to the last one; answer a rewind that the group's end has overtaken."""
        asked, self.asked = self.asked, None
        if asked is not None and asked.save is not None and self._saving is not None:
            self._saving.wait_for_next(asked.save)
        if asked is not None and asked.rewind is not None:
            asked.rewind.answer.set_exception(GroupError("the group ends; nothing was rewound"))

    def _obey(self, command: Command) -> None:
        match command:
            case Stop():
                self._stopping.append(command)
            case Profile():
                self._profiling.begin(command)
            case Save() | Rewind() | Pause() | Resume() if self._saving is None:
                command.answer.set_exception(GroupError(f"{self._name} takes no commands; ask the chief"))
            case Save():
                self.asked = Asked(Order.SAVE, SaveReason.DEMAND, save=command)
            case Rewind():
                # Whatever can refuse the rewind comes before any other member hears of it.
                assert self._saving is not None
                try:
                    prepared = self._saving.prepare_rewind(command)
                except MillraceError as error:
                    command.answer.set_exception(error)
                else:
                    self.asked = Asked(Order.GO_BACK, rewind=command, prepared=prepared)
            case Pause():
                self.paused = command.reason
                self._parts.release_guard()
                announcements.paused(self._reports.report_event, command)
                command.answer.set_result(None)
            case Resume():
                self.paused = None
                self.lets_pass, self.assumes_absent = True, command.assume_absent
                self._parts.release_guard()
                announcements.resumed(self._reports.report_event, command)
                command.answer.set_result(None)
            case _:
                assert_never(command)
