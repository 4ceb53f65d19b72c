"""A trainer that runs, asked over its own HTTP side. For the command line; runs on the caller's thread.

One request a connection, bounded in time. A refusal becomes an error of ours, with the exit code that the same refusal
has when it is found out here.
"""

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any

from app.settings import Settings
from consumers.errors import ConfigError, MillraceError, UnreachableError

_ASK_S = 10.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what api.listen may say; nothing is bound here
_EXIT_CODES: Mapping[int, int] = {401: 2, 403: 2, 404: 2, 409: 4, 422: 2, 503: 3}


class RefusedError(MillraceError):
    """The trainer refused."""

    def __init__(self, text: str, *, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class RunningTrainer:
    """The trainer behind `api.listen`. Raises UnreachableError where nobody, or another one, answers."""

    def __init__(self, settings: Settings, holder: str) -> None:
        self._listen, self._name, self._holder = settings.api, settings.name, holder
        if settings.api.port == 0:
            raise ConfigError(
                f"{holder} runs here, and api.listen {settings.api.listen} does not tell its port; name the port by "
                "MILLRACE_API__LISTEN (the trainer's log has it), or stop the trainer"
            )
        found = self.ask("GET", "/livez").get("name")
        if found != self._name:
            raise UnreachableError(
                f"{settings.api.listen} is answered by the trainer of {found!r}, not of {self._name!r}, which is held "
                f"by {holder}; set MILLRACE_API__LISTEN to where that one answers, or stop it"
            )

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, within_s: float = _ASK_S
    ) -> dict[str, Any]:
        """Send one request and give the answer."""
        host = _EVERYWHERE.get(self._listen.host, self._listen.host)
        connection = HTTPConnection(host, self._listen.port, timeout=within_s)
        try:
            headers = {"content-type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            raise UnreachableError(
                f"{self._holder} runs here and does not answer at {self._listen.listen} ({type(error).__name__}): stop "
                "it first, or set MILLRACE_API__LISTEN to where it answers"
            ) from error
        finally:
            connection.close()
        if response.status >= 400 and path != "/livez":
            said = [str(answer[key]).rstrip(".") for key in ("detail", "fix") if key in answer] or [response.reason]
            raise RefusedError(". ".join(said), exit_code=_EXIT_CODES.get(response.status, 1))
        return dict(answer)
