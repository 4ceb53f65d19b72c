"""Streams: answers that go on, as server-sent events. A bounded number of them, woken once a look.

Owns who listens. It lives on the HTTP side's loop. A listener draws what is new when it is woken, so nothing queues up
for one that is slow; one that takes nothing for a while is let go by the protocol. Too many are refused. `close` ends
them all at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.api.problem_documents import ProblemError

MOST_LISTENERS = 32
_TURN_WITHIN_S = 5.0
_STILL_HERE_S = 15.0
_AGAIN_AFTER_MS = 2000
MEDIA_TYPE = "text/event-stream"
Draw = Callable[[], str]
"""What is new since it was called before, as frames; empty where nothing is."""


class Streams:
    """All listeners."""

    def __init__(self) -> None:
        self._listeners = 0
        self._closed = False
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There may be something new."""
        self._woken.set()
        self._woken = asyncio.Event()

    def close(self) -> None:
        """End all of them."""
        self._closed = True
        self.wake()

    @property
    def listeners(self) -> int:
        """How many there are."""
        return self._listeners

    def open(self, draw: Draw) -> "EventStream":
        """An answer that goes on with whatever is drawn; ProblemError where too many listen."""
        if self._closed or self._listeners >= MOST_LISTENERS:
            raise ProblemError(
                503,
                "Too Many Listeners",
                f"{MOST_LISTENERS} listeners are the most." if not self._closed else "The service is ending.",
                fix="Close some, or ask every few seconds without Accept: text/event-stream.",
                headers={"retry-after": "10"},
            )
        self._listeners += 1
        return EventStream(self._frames(draw), self._gone)

    async def _frames(self, draw: Draw) -> AsyncIterator[str]:
        clock = asyncio.get_running_loop().time
        yield f"retry: {_AGAIN_AFTER_MS}\n\n"
        said_at = clock()
        while not self._closed:
            woken = self._woken
            frames = draw()
            if not frames and clock() - said_at >= _STILL_HERE_S:
                frames = ": still here\n\n"
            if frames:
                yield frames
                said_at = clock()
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), _TURN_WITHIN_S)

    def _gone(self) -> None:
        self._listeners -= 1


class EventStream(StreamingResponse):
    """One listener's answer."""

    def __init__(self, frames: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(
            frames, headers={"cache-control": "no-store", "x-accel-buffering": "no"}, media_type=MEDIA_TYPE
        )
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Go on until the listener has left, or is told to."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def frame(data: str, *, event_id: int | None = None) -> str:
    """One message; `data` is a line of JSON."""
    name = "" if event_id is None else f"id: {event_id}\n"
    return f"{name}data: {data}\n\n"
