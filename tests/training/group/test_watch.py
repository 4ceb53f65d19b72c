"""The watch over what waits for other members."""

import threading
import time

from millrace.training.group.exchange import Watch
from tests.conftest import WaitFor


def test_what_takes_longer_than_it_may_is_given_up_once() -> None:
    given_up = threading.Event()
    watch = Watch(given_up.set)
    watch.start()
    with watch.within(0.1):
        assert given_up.wait(20)
    watch._thread.join(20)
    assert not watch._thread.is_alive()


def test_what_ends_in_time_or_has_an_inner_limit_of_its_own_is_not_given_up(wait_for: WaitFor) -> None:
    now, given_up = [0.0], threading.Event()
    looked = [0]

    def clock() -> float:
        looked[0] += threading.current_thread().name == "group-watch"
        return now[0]

    watch = Watch(given_up.set, clock=clock)
    watch.start()
    with watch.within(10):
        now[0] = 5.0
        with watch.within(10):
            now[0] = 12.0
            seen = looked[0]
            wait_for(lambda: looked[0] > seen + 1)
        now[0] = 9.0
    now[0] = 1000.0
    time.sleep(1.2)
    assert not given_up.is_set()
