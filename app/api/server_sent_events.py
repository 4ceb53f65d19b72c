"""Server-sent events: a bounded number of answers that go on, woken after each observation.

Owns the count of listeners, on the HTTP side's loop. A listener draws what is new when it is woken, so nothing queues
up for a slow one; the protocol closes one that does not read. Too many listeners are refused. `close` ends all of them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from millrace.app.api.problem_documents import ProblemError

MAX_LISTENERS = 32
_POLL_S = 5.0
_KEEPALIVE_S = 15.0
_RETRY_MS = 2000
MEDIA_TYPE = "text/event-stream"
Draw = Callable[[], str]
"""Returns what is new since its last call, as frames; empty if nothing is."""


class EventStreams:
    """All listeners of one application."""

    def __init__(self) -> None:
        self._listeners = 0
        self._closed = False
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Let every listener draw: there may be something new."""
        self._woken.set()
        self._woken = asyncio.Event()

    def close(self) -> None:
        """End all listeners."""
        self._closed = True
        self.wake()

    @property
    def listeners(self) -> int:
        """The number of listeners."""
        return self._listeners

    def open(self, draw: Draw) -> "EventStream":
        """Return an answer that goes on with whatever `draw` returns. Raises ProblemError (503) if too many listen."""
        if self._closed or self._listeners >= MAX_LISTENERS:
            raise ProblemError(
                503,
                "Too Many Listeners",
                f"{MAX_LISTENERS} listeners are the most." if not self._closed else "The service is ending.",
                fix="Close some, or ask every few seconds without Accept: text/event-stream.",
                headers={"retry-after": "10"},
            )
        self._listeners += 1
        return EventStream(self._frames(draw), self._gone)

    async def _frames(self, draw: Draw) -> AsyncIterator[str]:
        clock = asyncio.get_running_loop().time
        yield f"retry: {_RETRY_MS}\n\n"
        sent_at = clock()
        while not self._closed:
            woken = self._woken
            frames = draw()
            if not frames and clock() - sent_at >= _KEEPALIVE_S:
                frames = ": still here\n\n"
            if frames:
                yield frames
                sent_at = clock()
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), _POLL_S)

    def _gone(self) -> None:
        self._listeners -= 1


class EventStream(StreamingResponse):
    """One listener's answer."""

    def __init__(self, frames: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(frames, headers={"x-accel-buffering": "no"}, media_type=MEDIA_TYPE)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the listener has left, or the stream is ended."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def frame(data: str, *, event_id: int | None = None) -> str:
    """Return one message of the stream; `data` is a line of JSON."""
    name = "" if event_id is None else f"id: {event_id}\n"
    return f"{name}data: {data}\n\n"
