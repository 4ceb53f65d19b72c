"""Which routes a request comes to, asked of them one by one: the router tells only the first. Pure."""

from collections.abc import Iterable, Iterator

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope


def routes_at(routes: Iterable[BaseRoute], scope: Scope) -> Iterator[tuple[Match, Route]]:
    """All of this path, in order; a full match takes the method too."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from routes_at(included.routes, scope)
        elif isinstance(route, Route) and (match := route.matches(scope)[0]) is not Match.NONE:
            yield match, route


def route_of(scope: Scope) -> Route | None:
    """The route that will answer; None where the path or the method has none."""
    return next((route for match, route in routes_at(scope["app"].routes, scope) if match is Match.FULL), None)
