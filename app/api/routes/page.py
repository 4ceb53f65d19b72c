"""The page's files: `/` and what it loads from `/page/`.

Reads the files of app/page/static once, when the application is made: some 60 kB.
"""

from functools import partial
from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from millrace.app.api.static_files import StaticFiles


class PageRoutes:
    """The routes of the page."""

    def __init__(self) -> None:
        folder = files("millrace.app.page") / "static"
        self._files = StaticFiles(file for file in folder.iterdir() if file.is_file())

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter()
        add = partial(router.add_api_route, include_in_schema=False)
        add("/", self.index)
        add("/page/{name}", self.file)
        return router

    async def index(self, request: Request) -> Response:
        """Return the page itself."""
        return self._files.respond(request, "index.html")

    async def file(self, request: Request, name: str) -> Response:
        """Return a file that the page loads."""
        return self._files.respond(request, name)
