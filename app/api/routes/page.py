"""The page's files: `/` and what it needs, out of this package, and from nowhere else.

Owns their bytes, read once, and compressed once where that pays; some 60 kB. Runs on the HTTP side's loop and never
touches the disk there. A name is looked up in a table, so none becomes a path. The policy that goes with them lets a
browser load nothing from anywhere else, run nothing that stands in markup, and show the page in no other.
"""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app.api.problem_documents import ProblemError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_INDEX = "index.html"
_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_HEADERS: Mapping[str, str] = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file, ready to be sent."""

    body: bytes
    compressed: bytes | None
    """None where it would hardly be smaller."""
    media_type: str
    tag: str

    @classmethod
    def of(cls, name: str, body: bytes) -> "_File":
        compressed = gzip.compress(body, mtime=0)
        return cls(
            body=body,
            compressed=compressed if len(compressed) < 0.9 * len(body) else None,
            media_type=_TYPES[name[name.rindex(".") :]],
            tag=f'"{hashlib.sha256(body).hexdigest()[:20]}"',
        )


class PageFiles:
    """All of them."""

    def __init__(self) -> None:
        folder = files("app.page") / "static"
        self._files = {file.name: _File.of(file.name, file.read_bytes()) for file in folder.iterdir() if file.is_file()}

    def router(self) -> APIRouter:
        """The routes."""
        router = APIRouter()
        add = partial(router.add_api_route, methods=["GET", "HEAD"], include_in_schema=False)
        add("/", self.index)
        add("/page/{name}", self.file)
        return router

    async def index(self, request: Request) -> Response:
        """The page itself."""
        return self._send(request, _INDEX)

    async def file(self, request: Request, name: str) -> Response:
        """What the page needs."""
        return self._send(request, name)

    def _send(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            raise ProblemError(404, "Not Found", "The page has no such file.", fix="GET / is the page.")
        headers = {**_HEADERS, "etag": file.tag}
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if file.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(
                file.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=file.media_type
            )
        return Response(file.body, headers=headers, media_type=file.media_type)
