"""A trainer that runs, asked over its own HTTP side. For the command line; runs on the caller's thread.

One request a connection, bounded in time. A refusal becomes an error of ours, with the exit code that the same refusal
has when it is found out here.
"""

import json
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.settings import Settings
from app.settings.connection import read_secret
from consumers.errors import ConfigError, MillraceError, UnreachableError

ASK_S, ORDER_S = 10.0, 30.0
LONGEST_S = 600.0
"""The longest that an answer may be waited for."""
_AGAIN_S = 0.2
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
    """The HTTP side at an address. Raises UnreachableError where nobody, or another one, answers."""

    def __init__(self, url: str, token: str | None = None, *, name: str | None = None) -> None:
        """With a name, only the service of that name is taken for it."""
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
        self._name = name

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
        self._recognise(answer.get("name"))
        if response.status >= 400 and not path.startswith(_FAILING):
            said = [str(answer[key]).rstrip(".") for key in ("detail", "fix") if key in answer] or [response.reason]
            raise RefusedError(". ".join(said), exit_code=_EXIT_CODES.get(response.status, 1))
        return answer

    def ask_patiently(self, path: str, patience_s: float) -> dict[str, Any]:
        """Look at a path of a service that may only just have been started, and not answer yet."""
        until = time.monotonic() + patience_s
        while True:
            try:
                return self.ask("GET", path)
            except UnreachableError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_AGAIN_S)

    def order(self, path: str, body: Mapping[str, Any] | None = None, within_s: float = ORDER_S) -> dict[str, Any]:
        """Have something done. Who answers is known before, so that none but the one that is meant obeys."""
        if self._name is not None:
            self.ask("GET", "/livez")
        return self.ask("POST", path, body, within_s)

    def _recognise(self, name: object) -> None:
        if self._name is not None and name != self._name:
            raise UnreachableError(
                f"{self.url} is answered by the service {name!r}, not by {self._name!r}; name the right one by --url"
            )


def saved(remote: Remote, body: Mapping[str, Any]) -> dict[str, Any]:
    """Have a checkpoint made, and wait until it is durable."""
    answer = remote.order(f"/checkpoints?wait={LONGEST_S:g}s", body, within_s=LONGEST_S + ORDER_S)
    if "operation" in answer:
        raise MillraceError(
            f"the checkpoint is not durable after {LONGEST_S:g} s; GET /operations/{answer['operation']['id']} tells "
            "how it stands"
        )
    return answer


def token_in(path: Path | None) -> str | None:
    """The token that a file holds; None without a file."""
    secret = read_secret("--token-file", path)
    return None if secret is None else secret.get_secret_value()


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
