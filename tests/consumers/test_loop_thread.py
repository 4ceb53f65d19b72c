"""A loop in its own thread starts, ends, and cancels the tasks that are left."""

import asyncio
import threading

import pytest

from millrace.consumers.loop_thread import LoopThread


async def _forever(cancelled: threading.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()


async def _name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


def test_work_runs_in_the_named_thread_and_a_stop_cancels_what_is_left() -> None:
    loop = LoopThread("of-a-test")
    loop.start()
    assert loop.run(_name(), 20) == "of-a-test"
    left = loop.submit(_forever(threading.Event()))
    assert loop.stop(20)
    assert left.cancelled()
    assert "of-a-test" not in [thread.name for thread in threading.enumerate()]


def test_work_that_takes_too_long_is_cancelled() -> None:
    loop = LoopThread("of-a-test")
    loop.start()
    cancelled = threading.Event()
    with pytest.raises(TimeoutError):
        loop.run(_forever(cancelled), 0.01)
    assert cancelled.wait(20)
    assert loop.stop(20)


def test_a_stopped_loop_refuses_work_and_ignores_calls() -> None:
    loop = LoopThread("of-a-test")
    loop.start()
    assert loop.stop(20)
    loop.call(lambda: None)
    with pytest.raises(RuntimeError, match="not running"):
        loop.submit(_name())
    assert loop.stop(1)
