"""Events and history: `/events`, `/history`, and the page's own stream `/page/updates`.

Owns the history and the streams; the events are the service's. It lives on the HTTP side's loop and takes each look of
the observer in, once a second. The page's update is made once a look for all listeners.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from millrace.app.api.problem_documents import ProblemError
from millrace.app.monitoring.models import EventsAnswer, EventView, HistoryAnswer, PageUpdate, ProblemDocument
from millrace.app.monitoring.observer import Observation, Observer
from millrace.app.monitoring.sample_history import SampleHistory, shortened
from millrace.app.monitoring.shapes import stamp
from millrace.app.monitoring.status import status_of
from millrace.app.monitoring.status_log import Noticing
from millrace.app.service.kept_history import KeptHistory
from millrace.consumers.units import whole_number
from millrace.training.telemetry.events import Events

MAX_LISTENERS = 32
_POLL_S = 5.0
_KEEPALIVE_S = 15.0
_RETRY_MS = 2000
MEDIA_TYPE = "text/event-stream"
Draw = Callable[[], str]
"""Returns what is new since its last call, as frames; empty if nothing is."""
_MAX_ID = 10**15
Since = Annotated[int, Query(ge=0, le=_MAX_ID, description="Only events after the one of this id.")]
LastEventId = Annotated[str | None, Header(max_length=40, description="The same, as browsers send it.")]
SpanName = Annotated[Literal["10m", "2h", "24h"], Query(description="How far back; by 1 s, 10 s or 1 min.")]
MetricName = Annotated[
    str | None, Query(max_length=200, description="The live metric; without it, the one that the model is judged by.")
]
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {MEDIA_TYPE: {}},
        "description": "As JSON; with Accept: text/event-stream as they come.",
    },
    503: {"model": ProblemDocument},
}


class EventRoutes:
    """The routes of events and history."""

    def __init__(self, observer: Observer, events: Events, kept: KeptHistory) -> None:
        self._observer, self._events = observer, events
        self._noticing = Noticing(events.report)
        self._history = SampleHistory()
        kept.attach(self._history)
        self.streams = EventStreams()
        self._seen: Observation | None = None
        self._page: PageUpdate | None = None
        """The page's update of the last look, without events, which differ between listeners; None until one draws it,
        because it takes a while to make."""

    def look(self, observation: Observation) -> None:
        """Take an observation in, and wake the listeners."""
        self._seen, self._page = observation, None
        self._history.add(observation)
        self._noticing.look(observation)
        self.streams.wake()

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(tags=["How it goes"])
        add = partial(router.add_api_route, response_model_exclude_none=True)
        add("/events", self.events, response_model=EventsAnswer, responses=_EVENTS)
        add("/history", self.history, response_model=HistoryAnswer, responses={404: {"model": ProblemDocument}})
        router.add_api_route("/page/updates", self.updates, include_in_schema=False)
        return router

    async def events(
        self, request: Request, since: Since = 0, last_event_id: LastEventId = None
    ) -> EventsAnswer | Response:
        """Return what has happened, in words: the newest few hundred events."""
        # What a browser sends may be no id.
        told = whole_number(last_event_id or "")
        after = told if told is not None and 0 < told <= _MAX_ID else since
        if MEDIA_TYPE in request.headers.get("accept", ""):

            def draw() -> str:
                nonlocal after
                events = self._events.since(after)
                after = events[-1].id if events else after
                views = ((event.id, EventView.model_validate(event).model_dump_json()) for event in events)
                return "".join(frame(view, event_id=number) for number, view in views)

            return self.streams.open(draw)
        newest = self._events.newest
        events = self._events.since(after)
        return EventsAnswer(**stamp(self._observer.look().snapshot), events=events, newest=newest)

    async def history(self, span: SpanName = "10m", metric: MetricName = None) -> HistoryAnswer:
        """Return how it went: the means over each step, and the least and the greatest value in it."""
        snapshot = self._observer.look().snapshot
        try:
            stretch = self._history.stretch(span, snapshot.clock, metric)
        except KeyError:
            known = ", ".join(self._history.metrics) or "none yet"
            raise ProblemError(
                404, "Not Found", "No metric of that name has a history.", fix=f"There are: {known}"
            ) from None
        return HistoryAnswer(**stamp(snapshot), **dict(stretch))

    async def updates(self, since: Since = 0) -> Response:
        """Stream to the page: the status once a second, with the events since the last time."""
        after, drawn = since, None

        def draw() -> str:
            nonlocal after, drawn
            if self._seen is None or self._seen is drawn:
                return ""
            drawn = self._seen
            if self._page is None:
                self._page = PageUpdate(
                    at=round(drawn.snapshot.at, 3),
                    status=status_of(drawn),
                    metric=self._history.metric,
                    sample={name: shortened(value) for name, value in self._history.latest.items()},
                    last=dict(self._history.last),
                    events=[],
                )
            events = self._events.since(after)
            after = events[-1].id if events else after
            views = [EventView.model_validate(event) for event in events]
            return frame(self._page.model_copy(update={"events": views}).model_dump_json(exclude_none=True))

        return self.streams.open(draw)


class EventStreams:
    """All listeners of one application: server-sent events, woken after each observation.

    A listener draws what is new when it is woken, so nothing queues up for a slow one; the protocol closes one
    that does not read. Too many listeners are refused. `close` ends all of them.
    """

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
        return EventStream(self._frames(draw), self._leave)

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

    def _leave(self) -> None:
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
