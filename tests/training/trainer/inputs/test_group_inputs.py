"""The chief of a group sees of the inputs what one worker would that had learnt the same records."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.gates.input_gate import InputGate
from millrace.pipelines.stream.blocks import Span
from millrace.pipelines.stream.decode import Decoded, Refused
from millrace.training.checkpoints.parts import PartState
from millrace.training.telemetry.events import EventKind, Severity, ignore_event
from millrace.training.telemetry.watcher import Call
from millrace.training.trainer.inputs.input_watch import Inputs
from millrace.training.trainer.inputs.inputs_view import InputsView
from millrace.training.trainer.inputs.open_window import MOST_ROWS
from tests.training.trainer.inputs.world import APP, RATE, Columns, World, chunk_of, planted

PARTITIONS = [Partition("clicks", number) for number in range(5)]
_REPORT_EVERY = 7
"""Calls."""


@dataclass
class Member:
    """A worker, with what it says."""

    world: World
    in_group: bool
    marks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = InputGate(self.world.schema())
        self.inputs = Inputs(self.gate, [APP], self._report, in_group=self.in_group)
        self.gate.begin({})

    def _report(self, kind: EventKind, text: str, severity: Severity = Severity.INFO, **facts: Any) -> None:
        del kind, severity, facts
        self.marks.append(text)

    def learns(self, chunks: Sequence[Decoded]) -> None:
        """Learn chunks by one call."""
        spans = []
        for chunk in chunks:
            self.gate.admits(chunk)
            spans.append(
                Span(
                    partition=chunk.partition,
                    index=0,
                    start=chunk.start,
                    end=chunk.end,
                    learnt=len(chunk.offsets),
                    set_aside={Reason.OUT_OF_RANGE: len(chunk.refused)},
                    truncated={"list": 2},
                )
            )
        facts: Any = SimpleNamespace(spans=spans)
        self.inputs.called(Call(facts=facts, rows=(), scored=(), step=1, records=0))


class Group:
    """Members that share out the partitions, and report now and then."""

    def __init__(self, world: World, members: int) -> None:
        self.members = [Member(world, in_group=members > 1) for _ in range(members)]
        self._calls = 0

    @property
    def chief(self) -> Member:
        return self.members[0]

    def learns(self, chunks: Sequence[Decoded]) -> None:
        """Learn chunks by one call of all."""
        for number, member in enumerate(self.members):
            member.learns([one for one in chunks if one.partition.number % len(self.members) == number])
        self._calls += 1
        # The board asks for the figures at any time.
        self.chief.inputs.figures()
        if self._calls % _REPORT_EVERY == 0:
            self.report()

    def report(self) -> None:
        """Report, as before a save."""
        if len(self.members) > 1:
            self.chief.inputs.take_shares([one.inputs.share() for one in self.members[1:]])

    def state(self) -> PartState:
        """Return what a checkpoint would hold."""
        self.report()
        return self.chief.inputs.snapshot()


def chunks_of(world: World, records: int, positions: dict[Partition, int], change: Any = None) -> list[Decoded]:
    """Return the next records, dealt to the partitions, some of which hold more than others."""
    began_ms = round(world.at_s * 1000)
    columns = world.records(records)
    if change is not None:
        change(columns)
    ends = (np.array([0, 0.1, 0.3, 0.3, 0.6, 1]) * records).astype(int)
    return [
        _chunk(columns, slice(*ends[at : at + 2]), partition, positions, began_ms)
        for at, partition in enumerate(PARTITIONS)
        if ends[at] < ends[at + 1]
    ]


def _chunk(columns: Columns, rows: slice, partition: Partition, positions: dict[Partition, int], at_ms: int) -> Decoded:
    start = positions.get(partition, 0)
    mine = chunk_of({name: column[rows] for name, column in columns.items()}, start, at_ms)
    count = len(mine.offsets)
    positions[partition] = end = start + count + 3
    refused = tuple(Refused(start + count + at, Reason.OUT_OF_RANGE, "price_0") for at in range(3))
    unread = ((0, {"extra": "number", "geo.lat": "text"}),)
    return replace(mine, partition=partition, end=end, refused=refused, unread=unread)


def learnt_by(members: int, seed: int) -> tuple[Group, InputsView | None]:
    """Return a group that has learnt a minute and a half of a stream, with a fault, a rush and a restart in it.

    With what it knew after the rush.
    """
    world = World(16, seed=seed)
    group, positions = Group(world, members), dict[Partition, int]()
    fault = planted("scaled", "price_0", world, np.random.default_rng(3))
    for call in range(170):
        group.learns(chunks_of(world, RATE // 2, positions, fault if call >= 140 else None))
    group.report()
    # More than a window holds of one call.
    group.learns(chunks_of(world, 20 * MOST_ROWS, positions))
    state, rushed = group.state(), group.chief.inputs.view
    restarted = Group(world, members)
    restarted.chief.inputs.restore(state)
    restarted.chief.marks += group.chief.marks
    for _ in range(20):
        restarted.learns(chunks_of(world, RATE // 2, positions))
    return restarted, rushed


# Three members say what two do.
@pytest.mark.parametrize(("seed", "members"), [(1, 2), pytest.param(2, 3, marks=pytest.mark.nightly)])
def test_the_chief_of_a_group_holds_what_one_worker_would(members: int, seed: int) -> None:
    (alone, one_rushed), (group, rushed) = learnt_by(1, seed), learnt_by(members, seed)
    one, other = alone.state(), group.state()
    assert one.facts == other.facts
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.tobytes() == np.ascontiguousarray(other.arrays[name]).tobytes(), name
    assert alone.chief.marks == group.chief.marks
    assert any(mark.startswith("price_0: median") for mark in group.chief.marks)
    assert rushed is not None
    assert rushed.now.rows == MOST_ROWS
    for one_view, view in ((one_rushed, rushed), (alone.chief.inputs.view, group.chief.inputs.view)):
        assert one_view is not None
        assert view is not None
        assert (one_view.ended_ms, one_view.records, one_view.now.rows) == (
            view.ended_ms,
            view.records,
            view.now.rows,
        )
        assert (one_view.looked_at, one_view.refused, one_view.cut) == (view.looked_at, view.refused, view.cut)
        assert view.refused["price_0"]["out_of_range"] > 0
        assert view.cut["list"] > 0
        assert all(one_view.now_of(at) == view.now_of(at) for at in range(len(view.fields)))
    assert group.members[1].inputs.view is None, "only the chief holds what all have seen"


def test_what_is_not_reported_is_in_no_window_and_a_member_that_goes_back_drops_it() -> None:
    world, positions = World(3, seed=1), dict[Partition, int]()
    group = Group(world, 2)
    group.learns(chunks_of(world, RATE, positions))
    assert group.chief.inputs.snapshot().facts["open"]["records"] == 0
    for member in group.members:
        member.inputs.restore(PartState())
    group.learns(chunks_of(world, RATE, positions))
    assert group.state().facts["open"]["records"] == RATE + 3 * 4


def test_inputs_of_one_worker_wait_for_nobody() -> None:
    world, positions = World(3, seed=1), dict[Partition, int]()
    member = Member(world, in_group=False)
    member.learns(chunks_of(world, RATE, positions))
    assert member.inputs.snapshot().facts["open"]["records"] == RATE + 3 * 4
    assert Inputs(InputGate(world.schema()), (), ignore_event).share().facts["calls"] == 0
