"""Problem documents (RFC 9457): why a request was not carried out, each with a fix.

Owns the only way in which an error becomes an answer. Values that a client sent are not repeated, except the few that
an error quotes. A defect of ours is answered by 500; its traceback goes to the log alone (uvicorn writes it).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from millrace.app.monitoring.models import ProblemDocument
from millrace.app.monitoring.shapes import Stamp
from millrace.consumers.errors import ConfigError, DataLossError, MillraceError
from millrace.training.errors import (
    CheckpointError,
    CorruptError,
    LossyRewindError,
    MissingCheckpointError,
    MissingExportError,
    NewerFormatError,
    ProfileBusyError,
    ProfileError,
)

MEDIA_TYPE = "application/problem+json"
StampNow = Callable[[], Stamp]

_DETAILS: Mapping[int, str] = {
    404: "There is nothing at this path.",
    405: "This path does not take this method.",
}
_FIXES: Mapping[int, str] = {
    400: "Send what docs/api.md describes; bodies are JSON.",
    404: "GET /openapi.json lists what there is.",
    405: "GET /openapi.json lists the methods of each path; the Allow header has those of this one.",
    422: "Send what docs/api.md describes for this path.",
}
_MILLRACE: tuple[tuple[type[MillraceError], int, str], ...] = (
    (MissingCheckpointError, 404, "GET /checkpoints lists those that there are."),
    (MissingExportError, 404, "GET /exports lists those that there are."),
    (NewerFormatError, 409, "Choose another checkpoint, or run the version that wrote it."),
    (CorruptError, 409, "Choose another checkpoint: GET /checkpoints says which are good."),
    (LossyRewindError, 409, "Ask with dry_run what a newer checkpoint comes to."),
    (DataLossError, 409, "Go back to a checkpoint before the range."),
    (ConfigError, 422, "Send what docs/api.md describes for this path."),
    (ProfileBusyError, 409, "The learning goes on. Ask again."),
    (ProfileError, 503, "The learning goes on. Ask again."),
    (CheckpointError, 503, "The learning goes on. Remove the cause, and ask again."),
)


class ProblemError(Exception):
    """An error that ends a request with a problem document."""

    def __init__(
        self, status: int, title: str, detail: str, *, fix: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail, self.fix = status, title, detail, fix
        self.headers = dict(headers or {})

    @classmethod
    def of(cls, error: MillraceError) -> "ProblemError":
        """Return the answer for an error of millrace, by its kind."""
        for kind, status, fix in _MILLRACE:
            if isinstance(error, kind):
                return cls(status, _phrase(status), str(error), fix=fix)
        return cls(503, _phrase(503), str(error), fix="See the log and /status.")


def document(problem: ProblemError, stamp: Stamp) -> Response:
    """Return the problem as a response, in ASCII: text from a client may hold what UTF-8 cannot encode."""
    body = ProblemDocument(
        **stamp,
        type=f"urn:millrace:{problem.title.lower().replace(' ', '-')}",
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        fix=problem.fix,
    )
    return Response(json.dumps(body.__dict__), problem.status, problem.headers, media_type=MEDIA_TYPE)


def install(app: FastAPI, stamp: StampNow) -> None:
    """Answer every error of the application with a problem document."""

    async def on_problem(request: Request, error: Exception) -> Response:
        problem = as_problem(error)
        if problem.status == 405:
            methods = {method for _, route in routes_at(app.routes, request.scope) for method in route.methods or ()}
            problem.headers = {"allow": ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))}
        return document(problem, stamp())

    for kind in (ProblemError, HTTPException, RequestValidationError, MillraceError, Exception):
        app.add_exception_handler(kind, on_problem)


def routes_at(routes: Iterable[BaseRoute], scope: Scope) -> Iterator[tuple[Match, Route]]:
    """Yield all routes of this path, in order; Match.FULL if the method matches too.

    Starlette's router reports only the first.
    """
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from routes_at(included.routes, scope)
        elif isinstance(route, Route) and (match := route.matches(scope)[0]) is not Match.NONE:
            yield match, route


def as_problem(error: Exception) -> ProblemError:
    """Return any error as a problem; an unknown one is a defect of millrace (500)."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RequestValidationError):
        # What is wrong, field by field, without the values that the client sent.
        places = [(".".join(str(part)[:60] for part in each["loc"]), each["msg"]) for each in error.errors()[:10]]
        complaints = "; ".join(f"{where}: {message}" for where, message in places)
        return ProblemError(422, _phrase(422), complaints, fix=_FIXES[422])
    if isinstance(error, HTTPException):
        code = error.status_code
        detail, fix = _DETAILS.get(code, str(error.detail)), _FIXES.get(code, _FIXES[400])
        return ProblemError(code, _phrase(code), detail, fix=fix, headers=error.headers)
    if isinstance(error, MillraceError):
        return ProblemError.of(error)
    return ProblemError(
        500, _phrase(500), "This is a defect of millrace; the training goes on.", fix="Report it with the log."
    )


def _phrase(status: int) -> str:
    """Return the status in words; Python's own text for 422 differs between versions."""
    return "Unprocessable Content" if status == 422 else HTTPStatus(status).phrase
