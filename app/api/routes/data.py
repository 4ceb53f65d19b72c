"""The reads of the records themselves: whether their fields are as they were.

What they show is what the trainer knew at the end of a window. An answer is made of it on a thread, since to sort the
values of hundreds of fields takes some 20 ms.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import anyio
from fastapi import APIRouter, Path, Query

from millrace.app.api.offload import run_on_thread
from millrace.app.api.problem_documents import ProblemError
from millrace.app.api.routes.reads import NOT_FOUND
from millrace.app.monitoring.data_view import (
    DataAnswer,
    FieldAnswer,
    histogram_of,
    input_of,
    inputs_of,
    portrait_of,
    top_of,
    unread_of,
)
from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.shapes import Stamp, event_moment, stamp
from millrace.training.checkpoints.exports.version_folder import VersionFolder
from millrace.training.trainer.inputs.hours import DAY, HOUR_MS, WEEK, portrait_in
from millrace.training.trainer.inputs.inputs_view import InputsView
from millrace.training.trainer.inputs.portraits import apart

FieldName = Annotated[str, Path(max_length=300, description="The field, as `/data` names it.")]


Against = Annotated[
    str,
    Query(
        max_length=40,
        description="What the field is compared with: `before`, the same hour a `day` or a `week` ago, the hour of the "
        "newest `export`, or the hour of a time, as `2026-11-21T14:02:10Z`.",
    ),
]
BEFORE = "before"
_AGO = {"day": DAY, "week": WEEK}


class DataRoutes:
    """The routes of the records, which change nothing."""

    def __init__(
        self,
        observer: Observer,
        view: Callable[[], InputsView | None],
        folder: VersionFolder | None,
        *,
        values: bool,
    ) -> None:
        """`folder` has the exports; `values` says whether readers may see values of texts."""
        self._observer, self._view, self._folder, self._values = observer, view, folder, values
        self._limit = anyio.CapacityLimiter(1)

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(tags=["How it goes"])
        add = partial(router.add_api_route, response_model_exclude_none=True)
        add("/data", self.data, response_model=DataAnswer)
        add("/data/{field:path}", self.field, response_model=FieldAnswer, responses=NOT_FOUND)
        return router

    async def data(self) -> DataAnswer:
        """Return whether the fields of the records are as they were, the worst first."""
        stamped, view = stamp(self._observer.look().snapshot), self._view()
        if view is None:
            return DataAnswer(**stamped, records=0, sampled=0, fields=[], unread=[], looked_at=0)
        fields = await run_on_thread(lambda: [*inputs_of(view)], self._limit)
        return DataAnswer(
            **stamped,
            until=event_moment(view.ended_ms),
            records=view.records,
            sampled=view.now.rows,
            fields=fields,
            unread=unread_of(view),
            looked_at=view.looked_at,
            hours_since=event_moment(min(view.hours) * HOUR_MS) if view.hours else None,
        )

    async def field(self, field: FieldName, against: Against = BEFORE) -> FieldAnswer:
        """Return one field of the records, now and before."""
        view = self._view()
        if view is None:
            raise ProblemError(404, "Not Found", "No window of records is over yet.", fix="Ask again in some seconds.")
        places = {one.name: at for at, one in enumerate(view.fields)}
        if field not in places:
            known = ", ".join([*places][:20]) or "none"
            raise ProblemError(404, "Not Found", "No field of that name is watched.", fix=f"There are: {known}")
        stamped = stamp(self._observer.look().snapshot)
        return await run_on_thread(partial(self._answer, stamped, view, places[field], against), self._limit)

    def _answer(self, stamped: Stamp, view: InputsView, at: int, against: str) -> FieldAnswer:
        now, text, hour = view.now_of(at), view.fields[at].text, None
        if against == BEFORE:
            before = view.before(at)
        else:
            hour = view.ended_ms // HOUR_MS - _AGO[against] if against in _AGO else self._hour(against)
            before = portrait_in(view.hours[hour], view.fields[at].name) if hour in view.hours else None
            if before is None:
                kept = f"Hours are kept since {event_moment(min(view.hours) * HOUR_MS)}." if view.hours else None
                fix = kept or "The first one is kept when it is over."
                raise ProblemError(404, "Not Found", "Nothing is kept of this field in that hour.", fix=fix)
        return FieldAnswer(
            **stamped,
            until=event_moment(view.ended_ms),
            field=input_of(view, at),
            against=against,
            hour=None if hour is None else event_moment(hour * HOUR_MS),
            apart=None if before is None else apart(now, before),
            before=None if before is None else portrait_of(before),
            histogram=None if text else histogram_of(now, before),
            top=top_of(now, before, values=self._values) if text else None,
        )

    def _hour(self, against: str) -> int:
        """Return the hour of the newest export, or of a time."""
        text, newest = against, [] if self._folder is None else self._folder.numbers()[-1:]
        if against == "export":
            if self._folder is None or not newest:
                raise ProblemError(404, "Not Found", "Nothing is exported yet.", fix="Compare with `before`.")
            text = self._folder.manifest(newest[0]).made_at
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            known = ", ".join((BEFORE, *_AGO, "export"))
            raise ProblemError(
                422, "Unprocessable Content", "That is nothing to compare with.", fix=f"Ask for {known}, or a time."
            ) from None
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000) // HOUR_MS
