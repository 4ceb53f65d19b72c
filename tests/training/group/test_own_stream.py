"""How a member waits for its own next block."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from millrace.pipelines.shaping import BalanceSettings, ReservoirSettings
from millrace.training.group.own_stream import OwnStream, Sieve
from millrace.training.model.learner import Learner
from millrace.training.model.variables import read
from tests.training.conftest import block, mlp, options_of


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


@pytest.mark.tensorflow
def test_a_suspect_block_is_tried_with_the_present_weights_whatever_shapes_the_learning() -> None:
    balance = BalanceSettings(target={"0": 0.3, "1": 0.7})
    learner = Learner(mlp, None, replace(options_of(), balance=balance, reservoir=ReservoirSettings(size=50)))
    learner.learn(block(2))
    copies = list[Learner]()
    steps = SimpleNamespace(sieved=lambda _delivery, present: copies.append(present()))
    Sieve(learner, cast("Any", steps)).sieved(cast("Any", None))
    for mine, theirs in zip(copies[0].variables, learner.variables, strict=True):
        np.testing.assert_array_equal(read(mine), read(theirs))
