"""Drawing one element ahead."""

import logging
import threading
from collections.abc import Iterator

import pytest

from millrace.pipelines.stream.dataset import Ahead

SOON_S = 20.0


@pytest.fixture
def numbers() -> Iterator[int]:
    return iter(range(3))


def test_elements_drawn_ahead_and_on_demand_come_in_one_order(numbers: Iterator[int]) -> None:
    ahead = Ahead(lambda: next(numbers))
    ahead.begin()
    ahead.begin()  # one at most
    assert [ahead.take(), ahead.take(), ahead.take()] == [0, 1, 2]
    ahead.close()


def test_the_end_and_an_error_reach_the_caller_and_not_the_thread(numbers: Iterator[int]) -> None:
    ahead = Ahead(lambda: [next(numbers) for _ in range(4)])
    ahead.begin()
    with pytest.raises(StopIteration):
        ahead.take()

    def broken() -> int:
        raise ValueError("of the dataset")

    failing = Ahead(broken)
    for _ in range(2):  # it goes on, as the next one may be good
        failing.begin()
        with pytest.raises(ValueError, match="of the dataset"):
            failing.take()
    ahead.close()
    failing.close()


def test_it_draws_while_its_caller_does_something_else() -> None:
    drawn = threading.Event()
    ahead = Ahead(drawn.set)
    ahead.begin()
    assert drawn.wait(SOON_S)
    ahead.close()


def test_a_close_waits_for_the_element_being_drawn_but_not_forever(caplog: pytest.LogCaptureFixture) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        began.set()
        assert go_on.wait(SOON_S)
        return 1

    ahead = Ahead(slow, patience_s=0.01)
    ahead.begin()
    assert began.wait(SOON_S)
    with caplog.at_level(logging.WARNING):
        ahead.close()
    assert "left behind" in caplog.text
    go_on.set()
    ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "draw"], "it ended when it could"
