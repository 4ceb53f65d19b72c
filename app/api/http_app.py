"""The application: routes, middleware and observer, put together for one service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware import Middleware

from millrace.app.api import problem_documents
from millrace.app.api.audit import Audit
from millrace.app.api.authorization import Authorizer, ReadAuthorizer
from millrace.app.api.checkpoint_reads import CheckpointReader
from millrace.app.api.cpu_budget import CpuBudget
from millrace.app.api.export_reads import ExportReader
from millrace.app.api.middleware import ApiMiddleware
from millrace.app.api.openapi import TAGS, Application, operation_id
from millrace.app.api.operations import Operations
from millrace.app.api.routes.commands import CommandRoutes
from millrace.app.api.routes.docs import DocsRoutes
from millrace.app.api.routes.events import EventRoutes
from millrace.app.api.routes.exports import ExportRoutes
from millrace.app.api.routes.metrics import metrics_router
from millrace.app.api.routes.page import PageRoutes
from millrace.app.api.routes.probes import ProbeRoutes
from millrace.app.api.routes.reads import ReadRoutes
from millrace.app.api.server_certificate import ServerCertificate
from millrace.app.monitoring.envelope import stamp_now
from millrace.app.monitoring.models import ProblemDocument
from millrace.app.monitoring.observer import Observation, Observer
from millrace.app.monitoring.rewind_view import beginnings_of
from millrace.app.monitoring.snapshot import take
from millrace.app.monitoring.status_log import StatusLog
from millrace.app.version import version
from millrace.training.checkpoints.exports.version_folder import VersionFolder
from millrace.training.checkpoints.folder import Folder

if TYPE_CHECKING:
    from millrace.app.service.service import Service

Look = Callable[[Observation], None]
_DESCRIPTION = "A Kafka topic goes in; a Keras model that never stops learning comes out."


def make_application(
    service: "Service",
    authorizer: Authorizer,
    readers: ReadAuthorizer | None = None,
    certificate: ServerCertificate | None = None,
) -> FastAPI:
    """Return the application of one service, whose commands pass the authorizer, and its reads the readers' one."""
    observer = Observer(partial(take, service))
    budget = CpuBudget()
    reader = CheckpointReader(Folder(service.settings.checkpoints.path / service.settings.name), budget.charge)
    events = EventRoutes(observer, service.events, service.kept_history)
    operations = Operations(service.commands, lambda: service.alive)
    stamp, audit = partial(stamp_now, service.settings.name), Audit()
    app = Application(
        title="millrace",
        version=version(),
        description=_DESCRIPTION,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        openapi_url=None,
        redirect_slashes=False,
        lifespan=partial(_watching, observer, (events.look, StatusLog(service.settings.logs.progress).look)),
        middleware=[
            Middleware(ApiMiddleware, stamp=stamp, authorizer=authorizer, audit=audit, budget=budget, readers=readers)
        ],
        responses={422: {"model": ProblemDocument}},
        generate_unique_id_function=operation_id,
    )
    app.commands_need_token, app.reads_need_token = authorizer.asks_for_token, readers is not None
    problem_documents.install(app, stamp)
    app.include_router(ProbeRoutes(lambda: observer.look().snapshot).router())
    app.include_router(ReadRoutes(observer, reader, operations).router())
    exports = service.settings.export.path
    versions = None if exports is None else VersionFolder(exports / service.settings.name)
    app.include_router(ExportRoutes(observer, ExportReader(versions, budget.charge)).router())
    app.include_router(metrics_router(observer, audit, certificate))
    commands = CommandRoutes(observer, reader, operations, lambda: beginnings_of(service.source))
    app.include_router(commands.router())
    app.include_router(events.router())
    app.include_router(PageRoutes().router())
    app.include_router(DocsRoutes(app.openapi).router())
    app.state.end_streams = events.streams.close
    return app


@contextlib.asynccontextmanager
async def _watching(observer: Observer, looks: Iterable[Look], _app: FastAPI) -> AsyncIterator[None]:
    """Run the observer while the application is served; each observation goes to the event routes and the log."""

    def look(observation: Observation) -> None:
        for each in looks:
            each(observation)

    watching = asyncio.create_task(observer.watch(look), name="observer")
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
