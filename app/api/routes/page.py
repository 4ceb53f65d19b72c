"""Files that browsers load, and the API's description: `/`, `/page/`, `/docs` and `/openapi.json`.

Starlette's StaticFiles finds them, so that no name leads out of its folder. Each is then read, hashed and compressed
once, and answered from memory under the strict policy. Its ETag is a hash of what it holds: Starlette's own is one of
size and time of change, and builds that set all times alike would answer 304 to who has the script of an earlier one.
Swagger UI comes out of the package fastapi-offline, so that a browser needs nothing from another origin.
"""

import gzip
import hashlib
import mimetypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from millrace.app.api.offload import run_on_thread
from millrace.app.api.problem_documents import ProblemError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""Lets a browser load nothing from another origin, run no script that stands in markup, and frame nothing."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
"""What a machine's own table says of them differs."""
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}
_SWAGGER_UI = ("swagger-ui-bundle.js", "swagger-ui.css")


class _PageFiles(StaticFiles):
    """A folder of files; whether a browser has one already is for the hash of what it holds to say."""

    def is_not_modified(self, response_headers: Headers, request_headers: Headers) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file as it was at its first request."""

    body: bytes
    compressed: bytes
    headers: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> "_File":
        body = path.read_bytes()
        etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
        headers = {**_HEADERS, "etag": etag, "content-type": _TYPES[path.suffix]}
        return cls(body=body, compressed=gzip.compress(body, mtime=0), headers=headers)


class PageRoutes:
    """The routes of the page, and of the description for programs and people."""

    def __init__(self, describe: Callable[[], dict[str, Any]]) -> None:
        """Take what makes the OpenAPI document, which takes a while at its first call."""
        if not mimetypes.inited:
            mimetypes.init()  # or the first request reads the machine's table, on the loop
        ours = Path(str(files("millrace.app.page")))
        self._page, self._docs = _PageFiles(directory=ours / "static"), _PageFiles(directory=ours / "docs")
        self._swagger_ui = _PageFiles(packages=[("fastapi_offline", "static")])
        self._describe = describe
        self._document: bytes | None = None
        self._files: dict[Path, _File] = {}
        self._one_at_a_time = anyio.CapacityLimiter(1)

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter()
        add = partial(router.add_api_route, include_in_schema=False)
        add("/", self.index)
        add("/page/{name}", self.page)
        add("/openapi.json", self.document)
        add("/docs", self.docs)
        add("/docs/{name}", self.docs)
        return router

    async def index(self, request: Request) -> Response:
        """Return the page itself."""
        return await self._answer(self._page, "index.html", request)

    async def page(self, request: Request, name: str) -> Response:
        """Return a file that the page loads."""
        return await self._answer(self._page, name, request)

    async def docs(self, request: Request, name: str = "index.html") -> Response:
        """Return the page that starts Swagger UI, or a file that it needs."""
        return await self._answer(self._swagger_ui if name in _SWAGGER_UI else self._docs, name, request)

    async def document(self) -> Response:
        """Return the OpenAPI document. It is made at the first request, on a thread, and then kept."""
        if self._document is None:
            self._document = await run_on_thread(
                lambda: bytes(JSONResponse(self._describe()).body), self._one_at_a_time
            )
        return Response(self._document, media_type="application/json")

    async def _answer(self, folder: _PageFiles, name: str, request: Request) -> Response:
        """Return the file as a response: 304 if the client has it already, compressed if the client accepts that.

        Raises ProblemError (404) if the folder has none of this name.
        """
        try:
            found = await folder.get_response(name, request.scope)
        except HTTPException:
            found = None
        if not isinstance(found, FileResponse):
            raise ProblemError(404, "Not Found", "The page has no such file.", fix="GET / is the page.")
        path = Path(found.path)
        if (file := self._files.get(path)) is None:
            file = await run_on_thread(partial(_File.read, path), self._one_at_a_time)
            self._files[path] = file
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if known & {"*", file.headers["etag"]}:
            return Response(status_code=304, headers=file.headers)
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(file.compressed, headers={**file.headers, "content-encoding": "gzip"})
        return Response(file.body, headers=file.headers)


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the header Accept-Encoding allows gzip, by its weights; an absent header does not."""
    weights = {}
    for each in accept_encoding.split(","):
        name, _, parameter = each.partition(";")
        key, _, value = parameter.partition("=")
        try:
            weights[name.strip().lower()] = float(value) if key.strip().lower() == "q" else 1.0
        except ValueError:
            weights[name.strip().lower()] = 0.0
    return weights.get("gzip", weights.get("*", 0.0)) > 0
