"""One broker for all lanes: started once and only if one of them wants it, ended with the controller's session."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.shared_broker import SharedBroker, Start, address_of


@pytest.fixture
def steps() -> list[str]:
    """What was done to the broker."""
    return []


@pytest.fixture
def start(steps: list[str]) -> Start:
    """Start a broker that only says so."""

    @contextmanager
    def run(_folder: Path) -> Iterator[str]:
        steps.append("started")
        yield "127.0.0.1:9"
        steps.append("ended")

    return run


def test_all_lanes_are_given_one_broker_and_it_ends_with_the_session(
    tmp_path: Path, start: Start, steps: list[str]
) -> None:
    shared = SharedBroker(tmp_path, start)
    with ThreadPoolExecutor(3) as lanes:
        assert [*lanes.map(address_of, [tmp_path] * 3)] == ["127.0.0.1:9"] * 3
    assert steps == ["started"]
    shared.end()
    assert steps == ["started", "ended"]


def test_no_broker_is_started_where_no_lane_wants_one(tmp_path: Path, start: Start, steps: list[str]) -> None:
    SharedBroker(tmp_path, start).end()
    assert steps == []


def test_a_broker_that_does_not_start_fails_each_lane_with_the_reason(tmp_path: Path) -> None:
    def fails(_folder: Path) -> AbstractContextManager[str]:
        raise OSError("no space")

    shared = SharedBroker(tmp_path, fails)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="did not start: OSError: no space"):
            address_of(tmp_path)
    shared.end()
