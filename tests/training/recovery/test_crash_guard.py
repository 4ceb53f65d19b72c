"""The crash-loop guard: which deaths make the next start come up paused, and which do not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts
from millrace.training.checkpoints import Folder, FolderLease
from millrace.training.checkpoints.in_flight import Death, Range
from millrace.training.recovery.crash_guard import CrashGuard, crash_loop
from tests.training.checkpoints.test_in_flight import P0, P1, block, die

AFTER = 3


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "clicks")
    folder.create()
    return folder


def _started(folder: Folder, number: int, after: int | None = AFTER) -> CrashGuard:
    """Make a start that resumes from this checkpoint; its process ends without an orderly end."""
    lease = FolderLease.acquire(folder, "a test")
    try:
        return CrashGuard.of(lease, number, after)
    finally:
        lease.release()


def _dies(folder: Folder, number: int, *spans: dict[Partition, Range]) -> None:
    """Make one start for each of these, which dies with them in flight."""
    for in_flight in spans:
        _started(folder, number)
        die(folder, folder.highest_term(), number, in_flight)


def test_third_death_in_a_row_pauses_the_next_start_and_names_what_was_in_flight(folder: Folder) -> None:
    _dies(folder, 41, {P0: (0, 100), P1: (5, 20)}, {P0: (50, 180), P1: (5, 20)})
    assert _started(folder, 41).loop is None
    _dies(folder, 41, {P0: (60, 120), P1: (20, 40)})
    loop = _started(folder, 41).loop
    assert loop is not None
    assert (loop.starts, loop.number, loop.suspects, loop.ranges) == (3, 41, {P0: (60, 100)}, ["clicks:0:60-99"])
    assert str(loop) == (
        "3 starts in a row died in a call, with no new checkpoint in between; in flight each time: clicks:0:60-99"
    )


def test_a_start_that_is_paused_or_dies_between_calls_neither_counts_nor_ends_a_row(folder: Folder) -> None:
    _dies(folder, 41, {P0: (0, 100)}, {P0: (0, 100)})
    for _ in range(5):
        assert _started(folder, 41).loop is None
    _dies(folder, 41, {P0: (0, 100)})
    for _ in range(2):
        loop = _started(folder, 41).loop
        assert loop is not None
        assert loop.starts == 3


def test_one_more_death_after_a_resume_pauses_the_next_start_again(folder: Folder) -> None:
    _dies(folder, 41, *[{P0: (0, 100)}] * 3, {P0: (90, 200)})
    loop = _started(folder, 41).loop
    assert loop is not None
    assert (loop.starts, loop.suspects) == (4, {P0: (90, 100)})


def test_a_new_checkpoint_or_a_rewind_in_between_forgets_the_deaths_before(folder: Folder) -> None:
    _dies(folder, 41, *[{P0: (0, 100)}] * 2)
    _dies(folder, 42, {P0: (0, 100)})
    assert _started(folder, 42).loop is None
    _dies(folder, 41, {P0: (0, 100)})
    assert _started(folder, 41).loop is None


def test_deaths_at_other_offsets_each_time_take_three_times_as_many(folder: Folder) -> None:
    _dies(folder, 41, *[{P0: (start, start + 10)} for start in range(0, 80, 10)])
    assert _started(folder, 41).loop is None
    _dies(folder, 41, {P0: (0, 10)})
    loop = _started(folder, 41).loop
    assert loop is not None
    assert (loop.starts, loop.suspects) == (9, {})
    assert str(loop).endswith("in between; each at other offsets")


def test_an_orderly_end_forgets_the_deaths_and_an_end_by_an_error_does_not(folder: Folder) -> None:
    _dies(folder, 41, *[{P0: (0, 100)}] * 3)
    _started(folder, 41).close(well=False)
    assert _started(folder, 41).loop is not None
    _started(folder, 41).close(well=True)
    assert folder.started_terms() == []
    assert _started(folder, 41).loop is None


def test_an_error_in_a_call_does_not_count_as_a_death(folder: Folder) -> None:
    guard = _started(folder, 41)
    with pytest.raises(ValueError, match="the step"), guard.in_flight(block({P0: (0, 100)})):
        raise ValueError("the step")
    assert _started(folder, 41, after=1).loop is None


def test_without_a_crash_guard_nothing_is_recorded_and_no_start_is_paused(folder: Folder) -> None:
    _dies(folder, 41, *[{P0: (0, 100)}] * 3)
    guard = _started(folder, 41, after=None)
    assert guard.loop is None
    with guard.in_flight(block({P0: (0, 100)})):
        assert not folder.start(folder.highest_term()).exists()
    guard.close(well=True)


def test_a_folder_that_takes_no_record_does_not_stop_the_trainer(folder: Folder) -> None:
    folder.starts.touch()
    guard = _started(folder, 41)
    assert guard.record is None
    with guard.in_flight(block({P0: (0, 100)})):
        pass
    guard.close(well=True)


@given(
    culprit=st.integers(0, 1000),
    reaches=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=AFTER, max_size=3 * AFTER),
)
def test_a_record_that_was_in_flight_each_time_is_always_among_the_suspects(
    culprit: int, reaches: list[tuple[int, int]]
) -> None:
    starts = [
        Death(term=term, number=41, in_flight={P0: (culprit - before, culprit + after), P1: (term, term + 1)})
        for term, (before, after) in enumerate(reaches)
    ]
    loop = crash_loop(starts, AFTER)
    assert loop is not None
    assert loop.starts == len(reaches)
    start, end = loop.suspects[P0]
    assert start <= culprit < end
    assert set(loop.suspects) == {P0}


@pytest.mark.tensorflow
def test_a_block_is_in_flight_while_its_call_runs_and_never_if_it_needs_no_call(tmp_path: Path) -> None:
    from tests.training.trainer_rig import SHARE, Topic, running

    log: list[tuple[str, Range]] = []

    @contextmanager
    def in_flight(facts: BlockFacts) -> Iterator[None]:
        (span,) = facts.spans
        log.append(("begins", (span.start, span.end)))
        yield
        log.append(("has ended", (span.start, span.end)))

    topic = Topic()
    topic.bad = {(P0, offset) for offset in range(SHARE, 2 * SHARE)}
    topic.produce(3 * SHARE)
    with running(tmp_path, topic, in_flight=in_flight) as run:
        run.reaches(3 * SHARE)
    first, third = (0, SHARE), (2 * SHARE, 3 * SHARE)
    assert log == [("begins", first), ("has ended", first), ("begins", third), ("has ended", third)]
