"""Every path that can be read, those that the OpenAPI document leaves out included."""

import re
from collections.abc import Iterable, Iterator

from starlette.routing import BaseRoute, Route

from tests.app.api_rig import Client

_FILLED = {"/page/{name}": "/page/charts.js", "/docs/{name}": "/docs/index.html"}


def readable(client: Client) -> list[str]:
    """Return the path of each route for GET, its parameters filled in."""
    paths = [route.path for route in _routes(client.app.routes) if "GET" in (route.methods or ())]
    return [_FILLED.get(path, re.sub(r"\{\w+\}", "0", path)) for path in paths]


def _routes(routes: Iterable[BaseRoute]) -> Iterator[Route]:
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from _routes(included.routes)
        elif isinstance(route, Route):
            yield route
