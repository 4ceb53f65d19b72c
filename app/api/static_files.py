"""Files that browsers load: held in memory, with their headers.

Starlette's StaticFiles would read the disk for each request, does not compress, and sends no policy. These few files
are read and compressed once instead. A name is looked up in a table and never becomes a path.
"""

import gzip
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from millrace.app.api.content_coding import accepts_gzip
from millrace.app.api.problem_documents import ProblemError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""Lets a browser load nothing from another origin, run no script that stands in markup, and frame nothing."""
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
    body: bytes
    compressed: bytes | None
    """None if compression hardly makes it smaller."""
    media_type: str
    etag: str

    @classmethod
    def of(cls, name: str, body: bytes) -> "_File":
        compressed = gzip.compress(body, mtime=0)
        return cls(
            body=body,
            compressed=compressed if len(compressed) < 0.9 * len(body) else None,
            media_type=_TYPES[name[name.rindex(".") :]],
            etag=f'"{hashlib.sha256(body).hexdigest()[:20]}"',
        )


class StaticFiles:
    """Files by name, in memory. To make it reads the disk; to answer does not."""

    def __init__(self, files: Iterable[Traversable]) -> None:
        self._files = {file.name: _File.of(file.name, file.read_bytes()) for file in files}

    def respond(self, request: Request, name: str) -> Response:
        """Return the file as a response: 304 if the client has it already, compressed if the client accepts that.

        Raises ProblemError (404) for a name that is not in the table.
        """
        file = self._files.get(name)
        if file is None:
            raise ProblemError(404, "Not Found", "The page has no such file.", fix="GET / is the page.")
        headers = {**_HEADERS, "etag": file.etag}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if file.compressed is not None and accepts_gzip(request.headers.get("accept-encoding", "")):
            headers["content-encoding"] = "gzip"
            return Response(file.compressed, headers=headers, media_type=file.media_type)
        return Response(file.body, headers=headers, media_type=file.media_type)
