"""The application: routes, middleware and observer, put together for one service, and its OpenAPI document."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware

from millrace.app.api import problem_documents
from millrace.app.api.audit import Audit
from millrace.app.api.authorization import Authorizer, ReadAuthorizer, is_open
from millrace.app.api.checkpoint_reads import CheckpointReader
from millrace.app.api.middleware import ApiMiddleware
from millrace.app.api.operations import Operations
from millrace.app.api.routes.commands import CommandRoutes
from millrace.app.api.routes.data import DataRoutes
from millrace.app.api.routes.events import EventRoutes
from millrace.app.api.routes.exports import ExportRoutes
from millrace.app.api.routes.page import PageRoutes
from millrace.app.api.routes.probes import ProbeRoutes
from millrace.app.api.routes.reads import ReadRoutes, metrics_router
from millrace.app.api.server_certificate import ServerCertificate
from millrace.app.monitoring.lineage_view import beginnings_of
from millrace.app.monitoring.metrics.collector import ServiceCollector
from millrace.app.monitoring.models import ProblemDocument
from millrace.app.monitoring.observer import Observation, Observer
from millrace.app.monitoring.shapes import stamp_now
from millrace.app.monitoring.snapshot import take
from millrace.app.monitoring.status_log import StatusLog
from millrace.app.version import version
from millrace.training.checkpoints.exports.version_folder import VersionFolder
from millrace.training.checkpoints.folder import Folder
from millrace.training.trainer.inputs.input_watch import Inputs
from millrace.training.trainer.inputs.inputs_view import InputsView

if TYPE_CHECKING:
    from millrace.app.service.senders import Sender
    from millrace.app.service.service import Service

Look = Callable[[Observation], None]
TAGS: Mapping[str, str] = {
    "Probes": "For the platform that starts, restarts and routes.",
    "How it goes": "Reads, at any time; the training waits for none of them.",
    "Checkpoints": "What a restart resumes from, and how to go back.",
    "The trainer": "Commands, which it carries out between two training calls.",
}
"""In the order in which they are shown."""
_MEANINGS: Mapping[str, str] = {
    "200": "As described.",
    "201": "Done; the checkpoint is durable, and Location names it.",
    "202": "Under way; Location names the operation to ask for.",
    "400": "The body cannot be read.",
    "401": "There are tokens, and the request has none of them.",
    "403": "There are no tokens, and the request does not come from this machine; or the token may only read.",
    "404": "No such checkpoint or operation.",
    "408": "The body did not come in time.",
    "409": "The trainer is ending, or the checkpoint or the range does not allow it.",
    "413": "The body is too large.",
    "422": "The body, the path or the query is not as described here.",
    "429": "Too many commands wait for the trainer already.",
    "503": "Not now; `detail` says why, and `fix` what to do.",
}
_OF_ANY = ("408", "413", "503")
"""What the middleware may answer on any route."""
_PROBLEM = {"$ref": "#/components/schemas/ProblemDocument"}
_TOKEN = "token"  # noqa: S105 - the name of the scheme
_SCHEMES = {
    _TOKEN: {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of api.tokens_dir, or for reads of api.read_tokens_dir.",
    }
}
_DESCRIPTION = "A Kafka topic goes in; a Keras model that never stops learning comes out."


def make_application(
    service: "Service",
    authorizer: Authorizer,
    readers: ReadAuthorizer | None = None,
    certificate: ServerCertificate | None = None,
) -> FastAPI:
    """Return the application of one service, whose commands pass the authorizer, and its reads the readers' one."""
    observer = Observer(partial(take, service))
    reader = CheckpointReader(Folder(service.settings.checkpoints.path / service.settings.name))
    events = EventRoutes(observer, service.events, service.kept_history)
    operations = Operations(service.commands, lambda: service.alive)
    stamp, audit = partial(stamp_now, service.settings.name), Audit()
    ends_at = None if certificate is None else lambda: certificate.ends_at
    collector = ServiceCollector(observer.look, audit.counts, ends_at)
    app = Application(
        title="millrace",
        version=version(),
        description=_DESCRIPTION,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        openapi_url=None,
        redirect_slashes=False,
        lifespan=partial(
            _watching,
            observer,
            (
                events.look,
                StatusLog(service.settings.logs.progress).look,
                *(_looking(sender, collector) for sender in service.senders),
            ),
            [partial(sender.stop, collector.collect) for sender in service.senders],
        ),
        middleware=[Middleware(ApiMiddleware, stamp=stamp, commands=(authorizer, audit), readers=readers)],
        responses={422: {"model": ProblemDocument}},
        generate_unique_id_function=operation_id,
    )
    app.commands_need_token, app.reads_need_token = authorizer.asks_for_token, readers is not None
    problem_documents.install(app, stamp)
    app.include_router(ProbeRoutes(lambda: observer.look().snapshot).router())
    app.include_router(ReadRoutes(observer, reader, operations).router())
    exports = service.settings.export.path
    versions = None if exports is None else VersionFolder(exports / service.settings.name)
    values = service.settings.api.read_values
    app.include_router(DataRoutes(observer, partial(_inputs, service), versions, values=values).router())
    app.include_router(ExportRoutes(observer, versions).router())
    app.include_router(metrics_router(collector))
    commands = CommandRoutes(observer, reader, operations, lambda: beginnings_of(service.source))
    app.include_router(commands.router())
    app.include_router(events.router())
    app.include_router(PageRoutes(app.openapi).router())
    app.state.end_long_answers = events.streams.close, operations.end_waits
    return app


def _inputs(service: "Service") -> InputsView | None:
    """Return what is known of the records; None before the first window, and where nothing watches them."""
    return next((one.view for one in service.watchers if isinstance(one, Inputs)), None)


def _looking(sender: "Sender", collector: ServiceCollector) -> Look:
    return lambda _observation: sender.look(collector.collect)


@contextlib.asynccontextmanager
async def _watching(
    observer: Observer, looks: Iterable[Look], ends: Iterable[Callable[[], None]], _app: FastAPI
) -> AsyncIterator[None]:
    """Run the observer while the application is served, pass each observation on, and call `ends` when all is over."""

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
        await asyncio.gather(*map(asyncio.to_thread, ends))


def operation_id(route: APIRoute) -> str:
    """Return the id of a route's operation: `get_status`, `pause`."""
    return f"get_{route.name}" if "GET" in (route.methods or ()) else route.name


class Application(FastAPI):
    """FastAPI with an OpenAPI document that is complete beyond what FastAPI derives by itself.

    The first line of a route's docstring is its summary; every possible status has a meaning; problem documents have
    their own media type; operations that need a token say so. Their ids are short, because generated clients have
    methods of these names.
    """

    commands_need_token = reads_need_token = False
    _one_at_a_time = threading.Lock()

    def openapi(self) -> dict[str, Any]:
        """Return the document. The first call takes half a second, so it must not run on an event loop."""
        with self._one_at_a_time:
            if not self.openapi_schema:
                described = super().openapi()
                described["components"]["securitySchemes"] = _SCHEMES
                for path, operations in described["paths"].items():
                    for method, operation in operations.items():
                        # A command that needs no token takes one all the same.
                        if method != "get":
                            operation["security"] = [{_TOKEN: []}] if self.commands_need_token else [{}, {_TOKEN: []}]
                        elif self.reads_need_token and not is_open(path):
                            operation["security"] = [{_TOKEN: []}]
                            operation["responses"].setdefault(
                                "401", {"content": {"application/json": {"schema": _PROBLEM}}}
                            )
                        _complete(operation)
            return self.openapi_schema or {}


def _complete(operation: dict[str, Any]) -> None:
    summary, _, more = str(operation.pop("description", "")).partition("\n")
    operation["summary"] = summary.strip().rstrip(".") or operation["summary"]
    if more.strip():
        operation["description"] = " ".join(more.split())
    responses = operation["responses"]
    for status in (*_OF_ANY, *(["400"] if "requestBody" in operation else [])):
        responses.setdefault(status, {"content": {"application/json": {"schema": _PROBLEM}}})
    for status, response in responses.items():
        said = response.get("description", "")
        response["description"] = said if said.endswith(".") else _MEANINGS.get(status, said)
        content = response.get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        if "$ref" in schema:  # FastAPI puts the union of all answers beside the one of this status
            for beside in ("anyOf", "title"):
                schema.pop(beside, None)
        if schema == _PROBLEM:
            content[problem_documents.MEDIA_TYPE] = content.pop("application/json")
    operation["responses"] = dict(sorted(responses.items()))
