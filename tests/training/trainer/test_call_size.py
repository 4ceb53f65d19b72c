"""The number of batches of a call follows the duration of a step."""

import pytest

from millrace.training.trainer.learning import CallSize


def _after(size: CallSize, *, batch_s: float, calls: int = 20) -> int:
    for _ in range(calls):
        size.called(size.target.batches, size.target.batches * batch_s)
    return size.target.batches


@pytest.mark.parametrize(("batch_s", "batches"), [(0.0001, 16), (0.01, 16), (0.05, 5), (0.2, 1), (3.0, 1)], ids=str)
def test_calls_get_shorter_as_steps_get_longer(batch_s: float, batches: int) -> None:
    assert _after(CallSize(16, aim_s=0.25), batch_s=batch_s) == batches


def test_no_call_of_a_slow_model_is_long_not_even_the_first_ones() -> None:
    size, longest = CallSize(16, aim_s=0.25), 0.0
    for _ in range(20):
        seconds = size.target.batches * 0.3
        longest = max(longest, seconds)
        size.called(size.target.batches, seconds)
    assert longest == 0.3


def test_a_fast_model_has_calls_of_full_size_after_one_call() -> None:
    assert _after(CallSize(16, aim_s=0.25), batch_s=0.001, calls=1) == 16


def test_a_first_call_that_is_slow_alone_delays_growth_by_one_call() -> None:
    size = CallSize(16, aim_s=0.25)
    size.called(1, 8.0)
    assert size.target.batches == 1
    assert _after(size, batch_s=0.001, calls=1) == 16


def test_calls_grow_again_when_steps_get_faster_but_never_beyond_the_setting() -> None:
    size = CallSize(16, aim_s=0.25)
    assert _after(size, batch_s=1.0) == 1
    assert _after(size, batch_s=0.001) == 16


def test_one_delayed_call_changes_nothing() -> None:
    size = CallSize(16, aim_s=0.25)
    _after(size, batch_s=0.001)
    size.called(16, 30.0)
    assert size.target.batches == 16


def test_a_size_between_two_does_not_change_back_and_forth() -> None:
    size = CallSize(16, aim_s=0.25)
    _after(size, batch_s=0.05)
    settled = size.target.batches
    for call in range(50):
        size.called(size.target.batches, size.target.batches * (0.05 if call % 2 else 0.052))
        assert size.target.batches == settled
