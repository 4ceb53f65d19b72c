"""The probes for liveness and readiness, and the application of a listener that answers nothing else.

Each request takes a snapshot of its own, so the routes may run on any loop.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, FastAPI, Query
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import Response

from millrace.app.api import problem_documents
from millrace.app.api.audit import Audit
from millrace.app.api.middleware import ApiMiddleware
from millrace.app.api.problem_documents import ProblemError
from millrace.app.monitoring.health import alive, health_of, ready
from millrace.app.monitoring.models import Check, Health
from millrace.app.monitoring.shapes import stamp_now
from millrace.app.monitoring.snapshot import Snapshot, take

if TYPE_CHECKING:
    from millrace.app.service.service import Service

_FAILING: dict[int | str, dict[str, Any]] = {503: {"model": Health}}
Verbose = Annotated[str | None, Query(description="Present: list all checks.")]


class ProbeRoutes:
    """The routes of the probes."""

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        self._look = look

    def router(self) -> APIRouter:
        """Return both routes."""
        router = APIRouter()
        add_probe(router, "/livez", self.livez)
        add_probe(router, "/readyz", self.readyz)
        return router

    async def livez(self, response: Response, verbose: Verbose = None) -> Health:
        """Answer whether the service may live: the trainer makes progress, or waits for a good reason."""
        snapshot = self._look()
        return probed(response, snapshot, alive(snapshot), verbose=verbose is not None)

    async def readyz(self, response: Response, verbose: Verbose = None) -> Health:
        """Answer whether the service is ready: its state is restored, the trainer works, Kafka answers."""
        snapshot = self._look()
        return probed(response, snapshot, ready(snapshot), verbose=verbose is not None)


def add_probe(router: APIRouter, path: str, answer: Callable[..., Awaitable[Health]]) -> None:
    """Add the route of a probe."""
    router.add_api_route(
        path, answer, tags=["Probes"], response_model=Health, responses=_FAILING, response_model_exclude_none=True
    )


def probed(response: Response, snapshot: Snapshot, checks: list[Check], *, verbose: bool) -> Health:
    """Return the answer of a probe, and set its status: 200 if all checks pass, else 503."""
    health = health_of(snapshot, checks, verbose=verbose)
    response.status_code = 200 if health.status == "ok" else 503
    return health


def make_probes_application(service: "Service") -> FastAPI:
    """Return the application for the probes' own listener."""
    look, stamp = partial(take, service), partial(stamp_now, service.settings.name)
    app = FastAPI(
        openapi_url=None,
        redirect_slashes=False,
        middleware=[Middleware(ApiMiddleware, stamp=stamp, commands=(_ProbesOnly(), Audit()))],
    )
    problem_documents.install(app, stamp)
    app.include_router(ProbeRoutes(look).router())
    app.add_api_route("/{path:path}", _nothing_else)
    return app


class _ProbesOnly:
    """Refuses every command: this listener has none."""

    asks_for_token = False

    async def authorize(self, headers: Headers, client: str) -> str:
        """Raise ProblemError (405)."""
        del headers, client
        raise _here_is_nothing(405, "Method Not Allowed", {"allow": "GET, HEAD"})


async def _nothing_else(path: str) -> None:
    del path
    raise _here_is_nothing(404, "Not Found")


def _here_is_nothing(status: int, title: str, headers: dict[str, str] | None = None) -> ProblemError:
    return ProblemError(
        status, title, "This listener answers probes alone.", fix="Ask the address of api.listen.", headers=headers
    )
