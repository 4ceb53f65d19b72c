"""The detector `drift`: it marks a rise of the loss soon, and nothing where there is none."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import Span
from millrace.training.detectors.conformance import complaints
from millrace.training.detectors.detector import CallEnd, CallSums, Mark
from millrace.training.detectors.drift import LossRise

Losses = npt.NDArray[np.float64]


def marked(losses: Losses, call: int = 32) -> list[tuple[int, Mark]]:
    """Return the marks of a stream of losses, each with the records up to it."""
    drift, found = LossRise(), list[tuple[int, Mark]]()
    sums: Sequence[float] = losses[: len(losses) // call * call].reshape(-1, call).sum(1).tolist()
    for number, loss in enumerate(sums, 1):
        end = number * call
        span = Span(partition=Partition("clicks", 0), index=0, start=end - call, end=end)
        at = CallEnd(step=number, records=end, newest_ms=1000 * number, spans=(span,))
        found += [(end, mark) for mark in drift.update(CallSums(records=call, scored=call, loss=loss), at)]
    return found


def errors(seed: int, records: int, share: float) -> Losses:
    return (np.random.default_rng(seed).random(records) < share).astype(float)


def heavy(seed: int, records: int) -> Losses:
    """The logarithmic loss of a model that is mostly right, and sometimes far off."""
    draws = np.random.default_rng(seed)
    off = draws.exponential(1.5, records) + 0.7
    return np.where(draws.random(records) < 0.15, off, draws.exponential(0.12, records))


def test_it_keeps_what_every_detector_keeps() -> None:
    assert [*complaints(LossRise)] == []


@pytest.mark.parametrize("call", [8, 32, 256, 8192])
def test_a_stationary_loss_is_no_change(call: int) -> None:
    for seed in range(4):
        assert marked(errors(seed, 200_000, 0.15), call) == []
        assert marked(heavy(seed, 200_000), call) == []


def test_more_errors_are_marked_within_some_hundred_records() -> None:
    delays = []
    for seed in range(20):
        found = marked(np.concatenate([errors(seed, 8_000, 0.15), errors(1000 + seed, 4_000, 0.30)]))
        assert found
        end, mark = found[0]
        delays.append(end - 8_000)
        assert 0.1 < mark.facts["before"] < 0.22
        assert mark.facts["now"] > mark.facts["before"] + 0.05
        assert mark.facts["ends"] == {"clicks:0": end}
        assert mark.facts["since_records"] < end
        assert f"in the last {end - mark.facts['since_records']:,} records" in mark.text
    assert min(delays) > 0
    assert np.median(delays) <= 320
    assert max(delays) <= 640


def test_day_and_night_are_no_change_and_neither_is_a_loss_that_falls() -> None:
    records = 350_000
    share = 0.15 + 0.05 * np.sin(np.arange(records) * 2 * math.pi / 100_000)
    assert marked((np.random.default_rng(3).random(records) < share).astype(float)) == []
    assert marked(np.linspace(2.0, 0.1, 50_000) + 0.05 * np.random.default_rng(1).normal(size=50_000)) == []
    assert marked(np.full(20_000, 0.25)) == []


def test_a_single_absurd_block_is_no_change_and_hides_none() -> None:
    for seed in range(4):
        losses = np.concatenate([heavy(seed, 24_000), 2 * heavy(10 + seed, 4_000)])
        losses[20_000:20_032] = 1e6
        found = [end for end, _ in marked(losses)]
        assert found
        assert 24_000 < found[0] <= 24_640
