"""The machines of `lives`: all the stages in one, and in deterministic mode."""

from collections import deque

import pytest
from hypothesis.stateful import initialize, invariant

from tests.properties.effort import tried
from tests.properties.lives.log import GAP, GOOD, UNDECODED, identity
from tests.properties.lives.machine import LivesMachine

pytestmark = pytest.mark.tensorflow


class RotatingLivesMachine(LivesMachine):
    """Deterministic mode: which rows a call has, and in which order, depends on what stands in the log alone."""

    rotates = True
    kinds = (*[GOOD] * 8, *UNDECODED, GAP)

    @initialize()
    def remember(self) -> None:
        self.first_made: list[list[int]] = []
        """Every call, as it was made the first time, in whatever life."""
        self.ended = False

    @invariant()
    def calls_are_cut_out_of_one_order_of_rows(self) -> None:
        if not hasattr(self, "life") or not hasattr(self, "first_made"):
            return
        calls, made, size = self.life.learner.seen.calls, len(self.first_made), self.world.options.capacity
        order = self._rows()
        for number, call in enumerate(calls):
            assert sorted(call) == sorted(order[number * size : (number + 1) * size])
        assert calls[:made] == self.first_made[: len(calls)], "another order when it was learnt again"
        self.first_made += [list(call) for call in calls[made:]]

    def _rows(self) -> list[int]:
        """Return a share of each partition in turn, up to the first with too few rows, or to the end of all."""
        assert self.world.rotation is not None
        queues = [
            deque(identity(p, at) for at, kind in enumerate(kinds) if kind == GOOD)
            for p, kinds in sorted(self.world.log.kinds.items())
        ]
        rows: list[int] = []
        while any(queues):
            for queue in queues:
                if len(queue) < self.world.rotation.share and not self.ended:
                    return rows + list(queue)
                rows += [queue.popleft() for _ in range(min(self.world.rotation.share, len(queue)))]
        return rows

    def _to_the_end(self) -> None:
        """Learn what is there to its last row: no more will come."""
        # No ends are given to this rotation, so it waits for a partition without further rows, and a full hand-off
        # would refuse the last chunks of the others for ever. The question here is what happens once all were sent.
        self._line().handoff._capacity = 1 << 20
        for _ in range(200):
            for partition in sorted(self.world.log.kinds):
                self._fetch(partition, 50)
            if self._line().positions == self._ends():
                break
            self._turn()
        line = self._line()
        line.handoff.end()
        self.ended = True
        while self.life.turn():
            self._note()
            self._follow()
        assert self._line() is line
        self._follow()
        assert self.history.positions() == self._ends()
        self.every_good_offset_was_learnt_once_and_all_else_has_its_name()
        self.calls_are_cut_out_of_one_order_of_rows()
        self.life.stop()


TestLivesMachine = LivesMachine.TestCase
TestLivesMachine.settings = tried(10, steps=40)
TestRotatingLivesMachine = RotatingLivesMachine.TestCase
TestRotatingLivesMachine.settings = tried(7, steps=40)
