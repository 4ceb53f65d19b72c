"""Work on threads: done once, and bounded in number."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from starlette.responses import JSONResponse

from millrace.app.api import checkpoint_reads
from millrace.app.api.checkpoint_reads import MAX_VERIFICATIONS, CheckpointReader, VerificationQueue
from millrace.app.api.offload import run_on_thread
from millrace.app.api.problem_documents import ProblemError
from millrace.app.api.routes import page
from millrace.training.checkpoints.inspection import inspect
from tests.app.api_rig import Client, Rig


def test_the_openapi_document_is_made_once_for_all_requests(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make: Callable[..., Any] = JSONResponse

    def counted(*given: Any) -> Any:
        made.append(given)
        return make(*given)

    monkeypatch.setattr(page, "JSONResponse", counted)
    assert len({api.get("/openapi.json").text for _ in range(3)}) == 1
    assert len(made) == 1


def test_a_read_that_is_under_way_at_the_end_does_not_delay_the_exit() -> None:
    """For example a hash on a slow disk, requested just before a stop."""
    reading, ended = threading.Event(), threading.Event()
    on: list[threading.Thread] = []

    def read() -> None:
        on.append(threading.current_thread())
        reading.set()
        assert ended.wait(20)

    async def stopped() -> bool:
        limiter = anyio.CapacityLimiter(1)
        asked = asyncio.create_task(run_on_thread(read, limiter))
        assert await asyncio.to_thread(reading.wait, 20)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        return await run_on_thread(ended.is_set, limiter)

    assert not asyncio.run(stopped())
    assert on[0].is_alive()
    assert on[0].daemon
    ended.set()
    on[0].join(20)


def test_one_checkpoint_is_verified_at_a_time_and_few_may_wait() -> None:
    go_on, at_once, most = threading.Event(), [0], [0]

    def read() -> int:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        go_on.wait(20)
        at_once[0] -= 1
        return 1

    async def crowd() -> list[int]:
        line = VerificationQueue()
        asked = [asyncio.create_task(line.run(read)) for _ in range(MAX_VERIFICATIONS)]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError, match="already") as refusal:
            await line.run(read)
        assert (refusal.value.status, refusal.value.headers) == (503, {"retry-after": "30"})
        go_on.set()
        verified = await asyncio.gather(*asked)
        return [*verified, await line.run(read)]

    assert asyncio.run(crowd()) == [1] * (MAX_VERIFICATIONS + 1)
    assert most == [1]


def test_after_a_verification_the_next_waits_until_the_mean_is_a_tenth_of_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(time, "thread_time", iter([0.0, 5.0, 5.0, 5.5, 6.0, 6.0]).__next__)
    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def three() -> None:
        line = VerificationQueue(clock=lambda: 100.0)
        for _ in range(3):
            await line.run(lambda: None)

    asyncio.run(three())
    assert slept == pytest.approx([0.0, 45.0, 4.5])


def test_a_verification_blocks_no_other_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slowly(*given: Any, deep: bool) -> Any:
        if deep:
            assert go_on.wait(20)
        return inspect(*given, deep=deep)

    monkeypatch.setattr(checkpoint_reads, "inspect", slowly)

    async def both() -> bool | None:
        reader = CheckpointReader(rig.folder)
        verified = asyncio.create_task(reader.read(0, verify=True))
        await asyncio.wait_for(reader.read(0, verify=False), 10)
        await asyncio.wait_for(reader.listing(), 10)
        assert not verified.done()
        go_on.set()
        return (await verified).found.verified

    assert asyncio.run(both())
