"""The probes of the server of predictions: whether it may live, and whether requests may come. Any loop."""

import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from millrace.app.monitoring.envelope import stamp_now
from millrace.app.settings import Settings
from millrace.app.tools.serve.follower import ServingBoard


class ServingProbes:
    """Answers both probes."""

    def __init__(
        self, settings: Settings, board: Callable[[], ServingBoard], call_began: Callable[[], float | None]
    ) -> None:
        self._name, self._longest_s = settings.name, settings.limits.call
        self._board, self._call_began = board, call_began
        self.ending = False
        """Whether the server drains. Any thread may set it."""

    def routes(self) -> list[Route]:
        """Return both routes."""
        return [Route("/livez", self.livez), Route("/readyz", self.readyz)]

    async def livez(self, _request: Request) -> Response:
        """Answer whether the process may live: no call of the model has hung."""
        began = self._call_began()
        hung = began is not None and time.monotonic() - began > self._longest_s
        return self._answer(
            [f"a call of the model takes longer than limits.call ({self._longest_s:g} s)"] if hung else []
        )

    async def readyz(self, _request: Request) -> Response:
        """Answer whether requests may come: a version is loaded, and the server is not ending."""
        return self._answer(self._reasons())

    def is_ready(self) -> bool:
        """Return whether requests may come."""
        return not self._reasons()

    def _reasons(self) -> list[str]:
        board, reasons = self._board(), []
        if self.ending:
            reasons.append("the server is ending")
        if board.served is None:
            reasons.append(board.problem or "no version is loaded yet")
        return reasons

    def _answer(self, reasons: list[str]) -> Response:
        body: dict[str, Any] = {**stamp_now(self._name), "status": "failing" if reasons else "ok"}
        if reasons:
            body["reasons"] = reasons
        return JSONResponse(body, 503 if reasons else 200, {"cache-control": "no-store"})
