"""What a start leaves behind when it dies: the ranges of the call that it died in, and nothing else."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.checkpoints import Folder
from millrace.training.checkpoints.in_flight import Range, StartRecord, deaths, forget

ROOT = Path(__file__).parents[3]
P0, P1 = Partition("clicks", 0), Partition("clicks", 1)
PROCESS = """
import os, signal, sys
from pathlib import Path
from tests.training.checkpoints.test_in_flight import P0, P1, block
from millrace.training.checkpoints.in_flight import StartRecord

record = StartRecord(Path(sys.argv[1]), 41)
if sys.argv[2] == "before any call":
    os.kill(os.getpid(), signal.SIGKILL)
with record.in_flight(block({P0: (0, 100)})):
    pass
if sys.argv[2] == "between two calls":
    os.kill(os.getpid(), signal.SIGKILL)
with record.in_flight(block({P0: (100, 164), P1: (7, 9)})):
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "aborted":
        os.abort()
    raise ValueError
"""


def block(spans: dict[Partition, Range], *, learnt: int = 1) -> BlockFacts:
    """Make a block of these ranges."""
    return BlockFacts(
        number=0,
        incarnation=1,
        spans=tuple(
            Span(partition=partition, index=index, start=start, end=end, learnt=learnt)
            for index, (partition, (start, end)) in enumerate(spans.items())
        ),
        batches=1,
        rows=1,
        seed=0,
        fetched_at=0.0,
        oldest_ms=0,
        newest_ms=0,
    )


def die(folder: Folder, term: int, number: int, spans: dict[Partition, Range]) -> None:
    """Leave what a start leaves that dies in a call."""
    record = StartRecord(folder.start(term), number)
    with record.in_flight(block(spans)):
        left = folder.start(term).read_bytes()
    folder.start(term).write_bytes(left)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def _end(folder: Folder, how: str) -> int:
    command = [sys.executable, "-c", PROCESS, str(folder.start(1)), how]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False).returncode


@pytest.mark.parametrize(("how", "code"), [("killed", -signal.SIGKILL), ("aborted", -signal.SIGABRT)])
def test_a_death_in_a_call_leaves_the_calls_ranges(folder: Folder, how: str, code: int) -> None:
    folder.create()
    assert _end(folder, how) == code
    (death,) = deaths(folder, 41, before_term=2)
    assert (death.term, death.number, death.in_flight) == (1, 41, {P0: (100, 164), P1: (7, 9)})


@pytest.mark.parametrize(
    ("how", "code"), [("before any call", -signal.SIGKILL), ("between two calls", -signal.SIGKILL), ("raised", 1)]
)
def test_what_dies_outside_of_a_call_or_ends_with_an_error_leaves_nothing(folder: Folder, how: str, code: int) -> None:
    folder.create()
    assert _end(folder, how) == code
    assert deaths(folder, 41, before_term=2) == []
    assert folder.started_terms() == []


def test_deaths_after_another_checkpoint_are_forgotten(folder: Folder) -> None:
    folder.create()
    for term, number in ((1, 40), (2, 41), (3, 41), (5, 42)):
        die(folder, term, number, {P0: (term, 10)})
    assert [death.term for death in deaths(folder, 41, before_term=6)] == [3, 2]
    assert folder.started_terms() == [2, 3]


def test_a_later_term_is_never_judged_nor_removed(folder: Folder) -> None:
    folder.create()
    die(folder, 7, 41, {P0: (0, 10)})
    assert deaths(folder, 41, before_term=7) == []
    assert folder.started_terms() == [7]


def test_ranges_of_which_nothing_is_learnt_are_not_in_flight(folder: Folder, stack: ExitStack) -> None:
    folder.create()
    record = StartRecord(folder.start(1), 41)
    stack.enter_context(record.in_flight(block({P0: (0, 10)}, learnt=0)))
    (death,) = deaths(folder, 41, before_term=2)
    assert death.in_flight == {}


def test_a_shorter_range_leaves_nothing_of_a_longer_one_before_it(folder: Folder, stack: ExitStack) -> None:
    folder.create()
    record = StartRecord(folder.start(1), 41)
    with record.in_flight(block({P0: (10**12, 10**12 + 5), P1: (10**12, 10**12 + 5)})):
        pass
    stack.enter_context(record.in_flight(block({P1: (1, 2)})))
    (death,) = deaths(folder, 41, before_term=2)
    assert death.in_flight == {P1: (1, 2)}


def test_a_torn_record_at_whichever_byte_counts_as_nothing_in_flight(folder: Folder) -> None:
    folder.create()
    die(folder, 1, 41, {P0: (0, 10), P1: (3, 30)})
    whole = folder.start(1).read_bytes()
    said = len(whole.rstrip(b"\n")) + 1
    idle = b"00000000 00000000\n"
    for torn in range(1, said):
        begun, ended = whole[:torn] + b"\n" * (len(whole) - torn), idle[:torn] + whole[torn:]
        for left in (begun, ended if torn < len(idle) else begun):
            folder.start(1).write_bytes(left)
            found = deaths(folder, 41, before_term=2)
            assert all(death.in_flight == {P0: (0, 10), P1: (3, 30)} for death in found), (torn, left[:80])
            assert not found or left.rstrip(b"\n") == whole.rstrip(b"\n")


@pytest.mark.parametrize("left", [b"", b"\n", b"\xff" * 100, b"00000000 99999999\n41\n"])
def test_a_file_of_something_else_counts_as_nothing(folder: Folder, left: bytes) -> None:
    folder.create()
    folder.starts.mkdir()
    folder.start(1).write_bytes(left)
    assert deaths(folder, 41, before_term=2) == []
    assert folder.started_terms() == []


def test_more_partitions_than_there_is_room_for_leave_those_that_there_is_room_for(
    folder: Folder, stack: ExitStack
) -> None:
    folder.create()
    record = StartRecord(folder.start(1), 41)
    many = {Partition("t" * 200, number): (number, number + 1) for number in range(1000)}
    stack.enter_context(record.in_flight(block(many)))
    (death,) = deaths(folder, 41, before_term=2)
    assert 200 < len(death.in_flight) < 1000
    assert death.in_flight.items() <= many.items()


def test_who_closes_leaves_nothing_and_forgetting_leaves_nothing_of_anybody(folder: Folder) -> None:
    folder.create()
    StartRecord(folder.start(2), 41).close()
    assert folder.started_terms() == []
    die(folder, 1, 41, {P0: (0, 10)})
    forget(folder)
    assert folder.started_terms() == []
