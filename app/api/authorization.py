"""Authorization: who may send commands, and who may read.

With tokens: a client that sends one. Without tokens, on a loopback address: clients of this machine that name it by a
loopback name and come from no other origin, so that neither another host, nor DNS rebinding, nor a page in a browser
can command the trainer. A browser adds no bearer token by itself, so tokens make these checks needless. Without tokens,
on an address that other machines reach: no client.

Everybody may read, unless there is a folder of tokens for reading. Then only probes and the files of the page and of
Swagger UI need no token: a browser has to load them before it can ask for one, and they are the same for all services.
"""

import ipaddress
import re
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers

from millrace.app.api.offload import run_on_thread
from millrace.app.api.problem_documents import ProblemError
from millrace.app.api.tokens import Tokens

_REALM = 'Bearer realm="millrace"'
_OPEN = re.compile(r"/(livez|readyz|health|openapi\.json|docs(/[^/]+)?|page/(?!updates$)[^/]+)?")
"""Paths that never need a token: probes, and what is the same for every service of this version."""


def is_open(path: str) -> bool:
    """Return whether everybody may read this path, also where reads need a token."""
    return _OPEN.fullmatch(path) is not None


class Authorizer(Protocol):
    """Decides who may send commands."""

    asks_for_token: bool

    async def authorize(self, headers: Headers, client: str) -> str:
        """Return who sends the command, for the audit log. Raises ProblemError if they may not."""
        ...


def authorizer_for(tokens: Tokens | None, host: str, scheme: str, read_tokens: Tokens | None = None) -> Authorizer:
    """Return the authorizer of commands for a listener on this address, with this scheme."""
    if tokens is not None:
        return TokenAuthorizer(tokens, read_tokens)
    return LoopbackAuthorizer(scheme) if is_loopback(host) else ReadOnlyAuthorizer()


class TokenAuthorizer:
    """Admits clients that send a token of the folder."""

    asks_for_token = True

    def __init__(self, tokens: Tokens, read_tokens: Tokens | None = None) -> None:
        self._tokens = _Holders(tokens)
        self._readers = None if read_tokens is None else _Holders(read_tokens)

    async def authorize(self, headers: Headers, client: str) -> str:
        """Return the name of the token's file."""
        del client
        token = _token_of(headers)
        if token is None:
            raise _unauthorized("This changes something, and the request brings no token.", _REALM)
        owner = await self._tokens.owner(token)
        if owner is not None:
            return f"{owner} over HTTP"
        if self._readers is not None and await self._readers.owner(token) is not None:
            raise ProblemError(
                403,
                "Token Only Reads",
                "This changes something, and the request brings a token that may only read.",
                fix="Send a token of the folder that api.tokens_dir names.",
            )
        raise _unauthorized("The request brings a token that nobody has.", f'{_REALM}, error="invalid_token"')


class ReadAuthorizer:
    """Admits clients that send a token of any of the folders."""

    def __init__(self, *folders: Tokens) -> None:
        self._folders = [_Holders(tokens) for tokens in folders]

    async def authorize(self, headers: Headers) -> None:
        """Raise ProblemError (401) if the request brings none of the tokens."""
        token = _token_of(headers)
        if token is None:
            raise _unauthorized("Reading needs a token here, and the request brings none.", _REALM)
        for folder in self._folders:
            if await folder.owner(token) is not None:
                return
        raise _unauthorized("The request brings a token that nobody has.", f'{_REALM}, error="invalid_token"')


class _Holders:
    """Who holds the tokens of one folder. Threads read it, one at a time."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._one_at_a_time = anyio.CapacityLimiter(1)

    async def owner(self, token: str) -> str | None:
        """Return the name of the token's file, or None. Raises ProblemError (503) if the folder cannot be read."""
        try:
            return await run_on_thread(partial(self._tokens.owner, token), self._one_at_a_time)
        except OSError as error:
            raise ProblemError(
                503,
                "Tokens Unreadable",
                f"The folder of tokens cannot be read: {(error.strerror or 'it cannot be opened').lower()}.",
                fix=f"Repair the folder that {self._tokens.setting} names; no restart is needed.",
            ) from None


class LoopbackAuthorizer:
    """Admits clients of this machine."""

    asks_for_token = False

    def __init__(self, scheme: str = "http") -> None:
        self._scheme = scheme

    async def authorize(self, headers: Headers, client: str) -> str:
        """Return the client's address, since there is no name."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_loopback(_host_of(f"//{hosts[0]}")):
            raise ProblemError(
                403,
                "Foreign Host",
                "The Host header does not name a loopback address, so the request may come from elsewhere.",
                fix=f"Ask for {self._scheme}://127.0.0.1 or {self._scheme}://localhost with the port of api.listen.",
            )
        origins = headers.getlist("origin")
        if any(origin.lower() != f"{self._scheme}://{hosts[0].lower()}" for origin in origins):
            raise ProblemError(
                403,
                "Foreign Origin",
                "The request comes from a page of another origin.",
                fix="Send commands from a command line, or from a page that this service has served.",
            )
        return f"{client} over HTTP"


class ReadOnlyAuthorizer:
    """Admits no client."""

    asks_for_token = False

    async def authorize(self, headers: Headers, client: str) -> str:
        """Raise ProblemError (403)."""
        del headers, client
        raise ProblemError(
            403,
            "Read Only",
            "This listener can be reached from other machines, and there are no tokens, so it changes nothing.",
            fix="Set api.tokens_dir to a folder with one file per token; or set "
            "api.listen to a loopback address such as 127.0.0.1:8080, and send commands from the same machine.",
        )


def is_loopback(host: str | None) -> bool:
    """Return whether a host name or address is a loopback one. None is not."""
    if host is None:
        return False
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError if it is not a number
    except ValueError:
        return None
    plain = not (parts.username or parts.password or parts.path or parts.query or parts.fragment)
    return parts.hostname if plain else None


def _token_of(headers: Headers) -> str | None:
    """Return the bearer token of the only Authorization header; None if there is none, or several."""
    values = headers.getlist("authorization")
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    return (token.strip() or None) if scheme.lower() == "bearer" else None


def _unauthorized(detail: str, challenge: str) -> ProblemError:
    return ProblemError(
        401,
        "Unauthorized",
        detail,
        fix="Send the header Authorization: Bearer TOKEN, with the content of a file in the folder that api.tokens_dir "
        "names, or for reading api.read_tokens_dir; millrace's own commands read such a file with --token-file.",
        headers={"www-authenticate": challenge},
    )
