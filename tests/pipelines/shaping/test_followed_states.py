"""Followed states: they move with what is settled in the present incarnation, and go on nowhere else."""

from typing import Any

import numpy as np
import pytest

from millrace.consumers.errors import DataLossError
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping.followed_states import FollowedStates, Taken
from millrace.pipelines.shaping.windows.window_layout import WindowLayout
from millrace.pipelines.shaping.windows.windows import WindowSettings, WindowShaper
from millrace.pipelines.stream.blocks import BlockFacts, Span

HERE = Partition("clicks", 0)


class Sum:
    """A state that adds up what it takes in."""

    def __init__(self, total: int = 0) -> None:
        self.total = total

    def take(self, taken: Taken) -> None:
        self.total += int(taken.columns["x"].sum())

    def copy(self) -> "Sum":
        return Sum(self.total)


def taken(start: int, end: int) -> Taken:
    offsets = np.arange(start, end)
    return Taken(end, offsets, {"x": offsets + 1})


def facts(incarnation: int, start: int, end: int) -> BlockFacts:
    spans = (Span(partition=HERE, index=0, start=start, end=end, learnt=end - start),)
    values: dict[str, Any] = {"batches": 1, "rows": end - start, "seed": 0, "fetched_at": 0.0}
    return BlockFacts(number=0, incarnation=incarnation, spans=spans, oldest_ms=0, newest_ms=0, **values)


def total(states: FollowedStates[Sum]) -> tuple[int, int]:
    with states.at_settled() as found:
        return found[HERE].position, found[HERE].state.total


def test_a_state_follows_what_is_settled_within_a_chunk_and_no_late_block() -> None:
    states = FollowedStates(Sum)
    early = states.open(1, {HERE: 0})
    early.took(HERE, taken(0, 10))
    states.settle(facts(1, 0, 4))
    assert total(states) == (4, 1 + 2 + 3 + 4)
    again = states.open(2, {HERE: 4})
    states.settle(facts(1, 4, 10))
    early.took(HERE, taken(10, 20))
    again.took(HERE, taken(4, 6))
    states.settle(facts(2, 4, 6))
    assert total(states) == (6, sum(range(1, 7)))
    assert again.state(HERE, 4).total == 1 + 2 + 3 + 4


def test_a_state_goes_on_where_it_ends_or_its_topic_was_created_again() -> None:
    states = FollowedStates(Sum)
    states.open(1, {HERE: 7}).took(HERE, taken(7, 9))
    with pytest.raises(DataLossError, match="goes on at 8"):
        states.settle(facts(1, 8, 9))
    with pytest.raises(DataLossError, match="clicks:0 goes on at 0, and what shaping remembers of it ends at 7"):
        states.open(2, {HERE: 0})
    states.forget(HERE)
    states.open(3, {HERE: 0})
    assert total(states) == (0, 0)


def test_of_other_windows_or_none_nothing_is_taken_over_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    schema = Schema(features=(Field(name="x", source="x", dtype="float32"),))
    five, six = (WindowShaper(WindowLayout(schema, WindowSettings(length=length))) for length in (5, 6))
    five.open(1, {HERE: 0})
    six.load(*five.saved())
    assert six.saved()[1]["partitions"] == {}
    six.load({}, {})
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "windows: the checkpoint holds others",
        "windows: the checkpoint holds none",
    ]
