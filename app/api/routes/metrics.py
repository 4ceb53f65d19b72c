"""`GET /metrics`, for Prometheus. Runs on the HTTP side's loop."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.audit import Audit
from app.monitoring.metrics.collector import ServiceCollector
from app.monitoring.observer import Observer


def metrics_router(observer: Observer, audit: Audit) -> APIRouter:
    """Return the route."""
    collector = ServiceCollector(observer.look, audit.counts)
    router = APIRouter()

    async def metrics(request: Request) -> Response:
        """Return all metrics, for Prometheus; docs/metrics.md explains each."""
        text, content_type = collector.render(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    responses: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
    router.add_api_route("/metrics", metrics, tags=["How it goes"], response_class=Response, responses=responses)
    return router
