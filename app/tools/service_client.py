"""A client of a running service's HTTP interface, for the command line. Runs on the caller's thread.

One request per connection, bounded in time. Before a command, the client checks which service answers, and it sends the
token with commands only. A refusal becomes an error of ours, with the exit code that the same refusal has locally.
"""

import json
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.api.tokens import TOKEN
from app.settings import Settings
from app.settings.connection import read_secret
from consumers.errors import ConfigError, MillraceError, UnreachableError

ASK_S, COMMAND_S = 10.0, 30.0
LONGEST_S = 600.0
"""The longest that an answer may be waited for."""
_RETRY_EVERY_S = 0.2
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - values of api.listen; nothing is bound here
_EXIT_CODES: Mapping[str, int] = {"conflict": 4, "starting": 3, "trainer-ending": 3, "trainer-gone": 3}
"""By the type of the problem; all others by their status."""
_EXIT_CODES_BY_STATUS: Mapping[int, int] = {401: 2, 403: 2, 404: 2, 422: 2}
_TYPE = "urn:millrace:"
_STAMP = ("as_of", "name", "version")
"""The keys in every answer of ours."""
_FAILING = ("/livez", "/readyz")
"""Paths whose 503 is an answer, not a refusal."""


class RefusedError(MillraceError):
    """The service refused a request."""

    def __init__(self, text: str, *, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Remote:
    """The service at an address. Raises UnreachableError where no service, or another one, answers."""

    def __init__(self, url: str, token: str | None = None, *, name: str | None = None) -> None:
        """Keep the address. With a name, only the service of that name is accepted."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ConfigError(f"{url!r} is not an address of a service; write http://host:8080")
        self._connection = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self._token = token
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self._name = name

    def ask(self, path: str, within_s: float = ASK_S) -> dict[str, Any]:
        """Read a path and return the answer."""
        return self._answer("GET", path, None, within_s, {})

    def ask_patiently(self, path: str, patience_s: float, up: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
        """Read a path of a service that may still be starting: retry until it is `up`, or `patience_s` is over."""
        until = time.monotonic() + patience_s
        while True:
            try:
                answer = self.ask(path)
            except UnreachableError:
                if time.monotonic() >= until:
                    raise
            else:
                if up(answer) or time.monotonic() >= until:
                    return answer
            time.sleep(_RETRY_EVERY_S)

    def command(self, path: str, body: Mapping[str, Any] | None = None, within_s: float = COMMAND_S) -> dict[str, Any]:
        """Send a command. First checks which service answers: no other one may see the token."""
        self.ask("/livez")
        headers = {} if self._token is None else {"authorization": f"Bearer {self._token}"}
        return self._answer("POST", path, body, within_s, headers)

    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, within_s: float, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        connection = self._connection(self._host, self._port, timeout=within_s)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, f"{self._path}{path}", content, {"content-type": "application/json", **headers})
            response = connection.getresponse()
            answer = dict(json.loads(response.read()))
        except (OSError, HTTPException, ValueError, TypeError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise UnreachableError(f"no millrace answers at {self.url} ({why}); does it run there?") from error
        finally:
            connection.close()
        self._check_identity(answer)
        if response.status >= 400 and not path.startswith(_FAILING):
            raise _refusal(response.status, answer)
        return answer

    def _check_identity(self, answer: Mapping[str, Any]) -> None:
        if not all(isinstance(answer.get(key), str) for key in _STAMP):
            raise UnreachableError(f"what answers at {self.url} is no millrace; name the right one by --url")
        if self._name not in (None, answer["name"]):
            raise UnreachableError(
                f"{self.url} is answered by the service {answer['name']!r}, not by {self._name!r}; name the right one "
                "by --url"
            )


def _refusal(status: int, answer: Mapping[str, Any]) -> RefusedError:
    kind = str(answer.get("type", "")).removeprefix(_TYPE)
    parts = [str(answer[key]).rstrip(".") for key in ("detail", "fix") if key in answer]
    code = _EXIT_CODES.get(kind, _EXIT_CODES_BY_STATUS.get(status, 1))
    return RefusedError(". ".join(parts) or f"refused with status {status}", exit_code=code)


def saved(remote: Remote, body: Mapping[str, Any]) -> dict[str, Any]:
    """Have a checkpoint saved, and wait until it is durable."""
    answer = remote.command(f"/checkpoints?wait={LONGEST_S:g}s", body, within_s=LONGEST_S + COMMAND_S)
    if "operation" in answer:
        raise MillraceError(
            f"the checkpoint is not durable after {LONGEST_S:g} s; GET /operations/{answer['operation']['id']} shows "
            "its progress"
        )
    return answer


def token_in(path: Path | None) -> str | None:
    """Return the token in a file; None without a file. No error text repeats any of it."""
    secret = read_secret("--token-file", path)
    if secret is None:
        return None
    token = secret.get_secret_value().strip()
    if not TOKEN.fullmatch(token):
        raise ConfigError(
            f"--token-file: {path} holds what no header can carry as a token; write only the token into it, as it "
            "stands in a file of the service's api.tokens_dir"
        )
    return token


def url_of(settings: Settings) -> str:
    """Return the address on this machine of a service with these settings. ConfigError where they have no port."""
    if settings.api.port == 0:
        raise ConfigError(
            f"api.listen {settings.api.listen} does not tell the port; name it by MILLRACE_API__LISTEN (the trainer's "
            "log has it)"
        )
    host = _LOOPBACK_OF.get(settings.api.host, settings.api.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.api.port}"
