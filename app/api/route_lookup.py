"""Find the routes that match a request: Starlette's router reports only the first. Pure."""

from collections.abc import Iterable, Iterator

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope


def routes_at(routes: Iterable[BaseRoute], scope: Scope) -> Iterator[tuple[Match, Route]]:
    """Yield all routes of this path, in order; Match.FULL if the method matches too."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from routes_at(included.routes, scope)
        elif isinstance(route, Route) and (match := route.matches(scope)[0]) is not Match.NONE:
            yield match, route


def route_of(scope: Scope) -> Route | None:
    """Return the route that will answer; None if no route has this path and method."""
    return next((route for match, route in routes_at(scope["app"].routes, scope) if match is Match.FULL), None)
