"""The reads of the records themselves: whether their fields are as they were.

What they show is what the trainer knew at the end of a window. An answer is made of it on a thread, since to sort the
values of hundreds of fields takes some 20 ms.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import anyio
from fastapi import APIRouter, Path

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
)
from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.shapes import Stamp, event_moment, stamp
from millrace.training.trainer.inputs.inputs_view import InputsView

FieldName = Annotated[str, Path(max_length=300, description="The field, as `/data` names it.")]


class DataRoutes:
    """The routes of the records, which change nothing."""

    def __init__(self, observer: Observer, view: Callable[[], InputsView | None], *, values: bool) -> None:
        """`values` says whether readers may see values of texts."""
        self._observer, self._view, self._values = observer, view, values
        self._limit = anyio.CapacityLimiter(1)

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(tags=["How it goes"])
        add = partial(router.add_api_route, response_model_exclude_none=True)
        add("/data", self.data, response_model=DataAnswer)
        add("/data/{field}", self.field, response_model=FieldAnswer, responses=NOT_FOUND)
        return router

    async def data(self) -> DataAnswer:
        """Return whether the fields of the records are as they were, the worst first."""
        stamped, view = stamp(self._observer.look().snapshot), self._view()
        if view is None:
            return DataAnswer(**stamped, records=0, sampled=0, fields=[])
        fields = await run_on_thread(lambda: [*inputs_of(view)], self._limit)
        return DataAnswer(
            **stamped,
            until=event_moment(view.ended_ms),
            records=view.records,
            sampled=view.now.rows,
            fields=fields,
        )

    async def field(self, field: FieldName) -> FieldAnswer:
        """Return one field of the records, now and before."""
        view = self._view()
        if view is None:
            raise ProblemError(404, "Not Found", "No window of records is over yet.", fix="Ask again in some seconds.")
        places = {one.name: at for at, one in enumerate(view.fields)}
        if field not in places:
            known = ", ".join([*places][:20]) or "none"
            raise ProblemError(404, "Not Found", "No field of that name is watched.", fix=f"There are: {known}")
        stamped = stamp(self._observer.look().snapshot)
        return await run_on_thread(partial(self._answer, stamped, view, places[field]), self._limit)

    def _answer(self, stamped: Stamp, view: InputsView, at: int) -> FieldAnswer:
        now, before, text = view.now_of(at), view.before(at), view.fields[at].text
        return FieldAnswer(
            **stamped,
            until=event_moment(view.ended_ms),
            field=input_of(view, at),
            before=None if before is None else portrait_of(before),
            histogram=None if text else histogram_of(now, before),
            top=top_of(now, before, values=self._values) if text else None,
        )
