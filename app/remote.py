"""A trainer that runs, asked over its own HTTP side. For the command line; runs on the caller's thread.

One request a connection, bounded in time. A refusal becomes an error of ours, with the exit code that the same refusal
has when it is found out here.
"""

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from app.settings import Settings
from consumers.errors import ConfigError, MillraceError, UnreachableError

ASK_S = 10.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what api.listen may say; nothing is bound here
_EXIT_CODES: Mapping[int, int] = {401: 2, 403: 2, 404: 2, 409: 4, 422: 2, 503: 3}
_FAILING = ("/livez", "/readyz")
"""Paths whose 503 is an answer, not a refusal."""


class RefusedError(MillraceError):
    """The trainer refused."""

    def __init__(self, text: str, *, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Remote:
    """The HTTP side at an address. Raises UnreachableError where nobody answers as one would."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ConfigError(f"{url!r} is not an address of a service; write http://host:8080")
        self._connection = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, within_s: float = ASK_S
    ) -> dict[str, Any]:
        """Send one request and give the answer."""
        connection = self._connection(self._host, self._port, timeout=within_s)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, f"{self._path}{path}", content, self._headers)
            response = connection.getresponse()
            answer = dict(json.loads(response.read()))
        except (OSError, HTTPException, ValueError, TypeError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise UnreachableError(f"no millrace answers at {self.url} ({why}); does it run there?") from error
        finally:
            connection.close()
        if response.status >= 400 and not path.startswith(_FAILING):
            said = [str(answer[key]).rstrip(".") for key in ("detail", "fix") if key in answer] or [response.reason]
            raise RefusedError(". ".join(said), exit_code=_EXIT_CODES.get(response.status, 1))
        return answer


def url_of(settings: Settings) -> str:
    """Where a trainer with these settings answers on this machine. ConfigError where they do not tell."""
    if settings.api.port == 0:
        raise ConfigError(
            f"api.listen {settings.api.listen} does not tell the port; name it by MILLRACE_API__LISTEN (the trainer's "
            "log has it)"
        )
    host = _EVERYWHERE.get(settings.api.host, settings.api.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.api.port}"


class RunningTrainer:
    """The trainer behind `api.listen`. Raises UnreachableError where nobody, or another one, answers."""

    def __init__(self, settings: Settings, holder: str, token: str | None = None) -> None:
        self._listen, self._holder = settings.api.listen, holder
        if settings.api.port == 0:
            raise ConfigError(
                f"{holder} runs here, and api.listen {settings.api.listen} does not tell its port; name the port by "
                "MILLRACE_API__LISTEN (the trainer's log has it), or stop the trainer"
            )
        self._remote = Remote(url_of(settings), token)
        found = self.ask("GET", "/livez").get("name")
        if found != settings.name:
            raise UnreachableError(
                f"{self._listen} is answered by the trainer of {found!r}, not of {settings.name!r}, which is held "
                f"by {holder}; set MILLRACE_API__LISTEN to where that one answers, or stop it"
            )

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, within_s: float = ASK_S
    ) -> dict[str, Any]:
        """Send one request and give the answer."""
        try:
            return self._remote.ask(method, path, body, within_s)
        except UnreachableError as error:
            raise UnreachableError(
                f"{self._holder} runs here and does not answer at {self._listen} ({type(error.__cause__).__name__}): "
                "stop it first, or set MILLRACE_API__LISTEN to where it answers"
            ) from error
