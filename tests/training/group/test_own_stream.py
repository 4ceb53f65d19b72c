"""How a member waits for its own next block."""

import time
from types import SimpleNamespace
from typing import Any, cast

from millrace.training.group.own_stream import OwnStream


class Ticking:
    """A stream that has nothing but ticks."""

    ready = True
    ticks = 0

    def draw_ahead(self) -> None:
        """Nothing to draw."""

    def wait(self, _timeout_s: float) -> None:
        """Come with the next tick."""
        time.sleep(0.01)

    def take(self) -> None:
        """Give a tick."""
        self.ticks += 1


def test_a_tick_does_not_end_the_wait_for_a_block() -> None:
    steps = SimpleNamespace(take=lambda stream: stream.take())
    stream, nothing = Ticking(), cast("Any", None)
    own = OwnStream(nothing, cast("Any", steps), nothing)
    own.open(cast("Any", stream))
    began = time.monotonic()
    own.wait(0.2, nothing)
    assert time.monotonic() - began >= 0.2
    assert stream.ticks > 1
