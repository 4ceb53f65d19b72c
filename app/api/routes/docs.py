"""The API's description: `/openapi.json` for programs, and Swagger UI at `/docs` for people.

Swagger UI comes out of the package fastapi-offline, so that a browser needs nothing from another origin. Document and
files are made at the first request, on a thread, because that takes a while, and then kept.
"""

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from millrace.app.api.offload import MadeOnce
from millrace.app.api.static_files import StaticFiles

_SWAGGER_UI = ("swagger-ui-bundle.js", "swagger-ui.css")


class DocsRoutes:
    """The routes of the description."""

    def __init__(self, describe: Callable[[], dict[str, Any]]) -> None:
        self._document = MadeOnce(lambda: bytes(JSONResponse(describe()).body))
        self._files = MadeOnce(_read_files)

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter()
        add = partial(router.add_api_route, include_in_schema=False)
        add("/openapi.json", self.document)
        add("/docs", self.index)
        add("/docs/{name}", self.file)
        return router

    async def document(self) -> Response:
        """Return the OpenAPI document."""
        return Response(await self._document.get(), media_type="application/json")

    async def index(self, request: Request) -> Response:
        """Return the page that starts Swagger UI."""
        return (await self._files.get()).respond(request, "index.html")

    async def file(self, request: Request, name: str) -> Response:
        """Return a file that Swagger UI needs."""
        return (await self._files.get()).respond(request, name)


def _read_files() -> StaticFiles:
    ours, theirs = files("millrace.app.page") / "docs", files("fastapi_offline") / "static"
    return StaticFiles([*ours.iterdir(), *(theirs / name for name in _SWAGGER_UI)])
