"""The reads: GET routes, which change nothing. They run on the HTTP side's loop; threads read the disk."""

import gzip
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from millrace.app.api.checkpoint_reads import CheckpointReader, in_full
from millrace.app.api.operations import Operations
from millrace.app.api.routes.page import accepts_gzip
from millrace.app.api.routes.probes import add_probe, probed
from millrace.app.monitoring.checkpoint_models import CheckpointList, LineageAnswer
from millrace.app.monitoring.health import alive
from millrace.app.monitoring.lineage_view import lineage_fields
from millrace.app.monitoring.metrics.collector import ServiceCollector
from millrace.app.monitoring.models import (
    Health,
    LagAnswer,
    OperationAnswer,
    ProblemDocument,
    Status,
    ThroughputAnswer,
)
from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.shapes import stamp
from millrace.app.monitoring.status import lag_answer, status_of, throughput_answer

MAX_PER_PAGE = 100
_FASTEST = 1
"""gzip's level for the loop: 51 kB, the text of 64 partitions, become 7.3 kB within 0.1 ms (measured 2026-11-22).
Level 6 takes five times as long and saves 1 kB more. To write the text takes 4 ms."""
Number = Annotated[int, Path(ge=0, le=10**15, description="A checkpoint's number.")]
Verify = Annotated[bool, Query(description="Read and hash every byte of it.")]
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": ProblemDocument}}


class ReadRoutes:
    """The routes that change nothing."""

    def __init__(self, observer: Observer, reader: CheckpointReader, operations: Operations) -> None:
        self._observer, self._reader, self._operations = observer, reader, operations

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter()
        add_probe(router, "/health", self.health)
        add = partial(router.add_api_route, response_model_exclude_none=True)
        live = partial(add, tags=["How it goes"])
        live("/status", self.status, response_model=Status)
        live("/lag", self.lag, response_model=LagAnswer)
        live("/throughput", self.throughput, response_model=ThroughputAnswer)
        kept = partial(add, tags=["Checkpoints"])
        kept("/checkpoints", self.checkpoints, response_model=CheckpointList)
        # Before the route with a number, which would refuse the words.
        kept("/checkpoints/latest", self.latest, response_model=LineageAnswer, responses=NOT_FOUND)
        kept("/checkpoints/best", self.best, response_model=LineageAnswer, responses=NOT_FOUND)
        kept("/checkpoints/{number}", self.checkpoint, response_model=LineageAnswer, responses=NOT_FOUND)
        kept("/operations/{operation_id}", self.operation, response_model=OperationAnswer, responses=NOT_FOUND)
        return router

    async def health(self, response: Response) -> Health:
        """Answer as `/livez?verbose` does, for people who type it."""
        snapshot = self._observer.look().snapshot
        return probed(response, snapshot, alive(snapshot), verbose=True)

    async def status(self) -> Status:
        """Return everything at a glance."""
        return status_of(self._observer.look())

    async def lag(self) -> LagAnswer:
        """Return how far behind the training is, by partition."""
        return lag_answer(self._observer.look())

    async def throughput(self) -> ThroughputAnswer:
        """Return how fast the model learns, and what limits it."""
        return throughput_answer(self._observer.look())

    async def checkpoints(
        self,
        limit: Annotated[int, Query(ge=1, le=MAX_PER_PAGE, description="How many.")] = 20,
        before: Annotated[int | None, Query(ge=0, le=10**15, description="Only smaller numbers.")] = None,
    ) -> CheckpointList:
        """List the checkpoints, the newest first."""
        listing = await self._reader.listing()
        older = [checkpoint for checkpoint in listing.checkpoints if before is None or checkpoint.number < before]
        more = len(older) > limit
        return CheckpointList(
            **stamp(self._observer.look().snapshot),
            checkpoints=older[:limit],
            others=listing.others if before is None else [],
            total=len(listing.checkpoints),
            best=listing.best,
            next=f"/checkpoints?limit={limit}&before={older[limit - 1].number}" if more else None,
        )

    async def latest(self, verify: Verify = False) -> LineageAnswer:
        """Return the newest checkpoint of the present timeline, as `/checkpoints/{number}` does."""
        return await self.checkpoint(await self._reader.named("latest"), verify)

    async def best(self, verify: Verify = False) -> LineageAnswer:
        """Return the best checkpoint of the present timeline by the watched metric, as `/checkpoints/{number}` does."""
        return await self.checkpoint(await self._reader.named("best"), verify)

    async def checkpoint(self, number: Number, verify: Verify = False) -> LineageAnswer:
        """Return one checkpoint in full, with its history and its ancestors."""
        lineage = await self._reader.read(number, verify=verify)
        checkpoint = in_full(lineage.found)
        return LineageAnswer(**stamp(self._observer.look().snapshot), checkpoint=checkpoint, **lineage_fields(lineage))

    async def operation(self, operation_id: Annotated[str, Path(max_length=40)]) -> OperationAnswer:
        """Return the state of an operation."""
        operation = self._operations.get(operation_id)
        return OperationAnswer(**stamp(self._observer.look().snapshot), operation=operation.view())


def metrics_router(collector: ServiceCollector) -> APIRouter:
    """Return the route of `GET /metrics`, for Prometheus."""
    router = APIRouter()

    async def metrics(request: Request) -> Response:
        """Return all metrics, for Prometheus; docs/metrics.md explains each."""
        text, content_type = collector.render(request.headers.get("accept", ""))
        headers = {"content-type": content_type, "vary": "accept, accept-encoding"}
        if not accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(text, headers=headers)
        compressed = gzip.compress(text, _FASTEST, mtime=0)
        return Response(compressed, headers={**headers, "content-encoding": "gzip"})

    responses: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
    router.add_api_route("/metrics", metrics, tags=["How it goes"], response_class=Response, responses=responses)
    return router
