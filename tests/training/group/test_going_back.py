"""The chief of a group goes back: whatever cannot be done, the group goes on from the newest checkpoint.

The chief is a real one, without a thread, and alone in its group: what it says is all that it hears.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.consumers.dead_letters.letter import CountedOnly
from millrace.consumers.records import Partition
from millrace.training.checkpoints.manifest import SaveReason
from millrace.training.commands import Rewind
from millrace.training.errors import NoRoomError
from millrace.training.group.agreement import Order
from millrace.training.group.lockstep_trainer import GroupTrainer
from millrace.training.group.membership import Membership
from millrace.training.group.one_state import GroupState
from millrace.training.group.requests import Asked
from millrace.training.group.roles import GroupParts
from millrace.training.recovery.crash_guard import leave_no_record
from millrace.training.stream import StreamStart
from millrace.training.trainer import saving as saving_module
from millrace.training.trainer.dependencies import TrainerOptions, TrainerReports
from tests.training.trainer_rig import P0, P1, RigOptions, Run, Topic

pytestmark = [pytest.mark.tensorflow, pytest.mark.row(31)]


class Alone:
    """The exchange of a group of one."""

    def gather(self, mine: Any) -> list[Any]:
        return [mine]

    collect = gather

    def broadcast(self, mine: Any) -> Any:
        return mine

    spread = broadcast_array = broadcast

    def rows(self, mine: Any) -> Any:
        return np.stack([mine])


class Streams:
    """What the chief opens."""

    def __init__(self) -> None:
        self.opened: list[StreamStart] = []

    def newcomers(self, _known: Collection[Partition]) -> Mapping[Partition, int]:
        return {}

    def backlog(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
        return dict.fromkeys(positions, 0)

    def open(self, start: StreamStart) -> Any:
        self.opened.append(start)
        return SimpleNamespace(close=lambda: None)


@contextmanager
def chief(root: Path) -> Iterator[tuple[GroupTrainer, Run, Streams]]:
    """Return a chief that has opened its stream, with the parts of its process."""
    run, streams = Run(root, Topic(P0, P1), RigOptions()), Streams()
    places = run.learner.places
    try:
        run.saving.begin_or_restore(lambda: {P0: 0, P1: 0}, start_over=False)
        group: Any = SimpleNamespace(
            membership=Membership(index=0, addresses=["one"], timeout_s=60.0), exchange=Alone(), watch=None
        )
        parts = GroupParts(
            state=GroupState(
                group=group, learner=run.learner, ledger=run.ledger, live=run.live, progress=run.saving.progress
            ),
            figures=run.saving,
            saving=run.saving,
            streams=streams,  # type: ignore[arg-type]  # nothing is learnt of them
            commands=run.commands,
            letters=CountedOnly(),
            in_flight=leave_no_record,
            release_guard=lambda: None,
        )
        reports = TrainerReports(
            phases=run.phases,
            meter=run.meter,
            live=run.live,
            on_refused=lambda *_refused: None,
            board=run.board,
            report_event=run.events.report,
            watchers=(),
        )
        trainer = GroupTrainer(parts, reports, TrainerOptions(clock=time.monotonic, wall=time.time), patience_s=None)
        trainer._open(weights=True)
        yield trainer, run, streams
        run.saving._writer.close(20)
    finally:
        run.learner.places = places
        run.leave()


def test_a_rewind_that_cannot_be_published_is_answered_and_the_group_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chief(tmp_path) as (trainer, run, streams):
        refused = Rewind(to=0)

        def without_room(*_given: Any, **_named: Any) -> None:
            raise NoRoomError("the volume has no room")

        with monkeypatch.context() as full:
            full.setattr(saving_module, "publish_rewind", without_room)
            trainer._go_back(Asked(Order.GO_BACK, rewind=refused, prepared=run.saving.prepare_rewind(refused)))
        with pytest.raises(NoRoomError):
            refused.answer.result(0)
        assert [start.positions for start in streams.opened] == [{P0: 0, P1: 0}] * 2
        again = Rewind(to=0)
        trainer._go_back(Asked(Order.GO_BACK, rewind=again, prepared=run.saving.prepare_rewind(again)))
        assert again.answer.result(0).number == 1
        assert run.saving.holds_portion


def test_a_state_with_nan_goes_back_before_partitions_of_a_new_topic_are_taken_in(tmp_path: Path) -> None:
    with chief(tmp_path) as (trainer, run, streams):
        weights = run.learner.model.trainable_variables[0]
        before = weights.numpy()
        weights.assign(np.full_like(before, np.nan))
        trainer._own.recreated = {P1: 5}
        trainer._reopen_streams()
        assert np.array_equal(weights.numpy(), before)
        assert streams.opened[-1].positions == {P0: 0, P1: 0}, "the new stream finds once more what begins at 5"
        trainer._own.recreated = {P1: 5}
        trainer._reopen_streams()
        run.saving.end_running_save()
        assert run.saving.last is not None
        assert (run.saving.last.manifest.reason, run.saving.last.manifest.positions) == (
            SaveReason.RECREATED,
            {"clicks:0": 0, "clicks:1": 5},
        )
