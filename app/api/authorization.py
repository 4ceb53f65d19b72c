"""Authorization: who may send commands. Reads need none.

With tokens: a client that sends one. Without tokens, on a loopback address: clients of this machine that name it by a
loopback name and come from no other origin, so that neither another host, nor DNS rebinding, nor a page in a browser
can command the trainer. A browser adds no bearer token by itself, so tokens make these checks needless. Without tokens,
on an address that other machines reach: no client.
"""

import ipaddress
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers

from app.api.offload import Charge, run_on_thread
from app.api.problem_documents import ProblemError
from app.api.tokens import Tokens

_REALM = 'Bearer realm="millrace"'


class Authorizer(Protocol):
    """Decides who may send commands."""

    asks_for_token: bool

    async def authorize(self, headers: Headers, client: str, charge: Charge) -> str:
        """Return who sends the command, for the audit log. Raises ProblemError if they may not.

        `charge` is called with the CPU time that other threads take for it.
        """
        ...


def authorizer_for(tokens: Tokens | None, host: str) -> Authorizer:
    """Return the authorizer for a listener on this address."""
    if tokens is not None:
        return TokenAuthorizer(tokens)
    return LoopbackAuthorizer() if is_loopback(host) else ReadOnlyAuthorizer()


class TokenAuthorizer:
    """Admits clients that send a token of the folder."""

    asks_for_token = True

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._one_at_a_time = anyio.CapacityLimiter(1)

    async def authorize(self, headers: Headers, client: str, charge: Charge) -> str:
        """Return the name of the token's file."""
        del client
        token = _token_of(headers)
        if token is None:
            raise _unauthorized("This changes something, and the request brings no token.", _REALM)
        try:
            owner = await run_on_thread(partial(self._tokens.owner, token), self._one_at_a_time, charge)
        except OSError as error:
            raise ProblemError(
                503,
                "Tokens Unreadable",
                f"The folder of tokens cannot be read: {(error.strerror or 'it cannot be opened').lower()}.",
                fix="Repair the folder that api.tokens_dir names; no restart is needed.",
            ) from None
        if owner is None:
            raise _unauthorized("The request brings a token that nobody has.", f'{_REALM}, error="invalid_token"')
        return f"{owner} over HTTP"


class LoopbackAuthorizer:
    """Admits clients of this machine."""

    asks_for_token = False

    async def authorize(self, headers: Headers, client: str, charge: Charge) -> str:
        """Return the client's address, since there is no name."""
        del charge
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_loopback(_host_of(f"//{hosts[0]}")):
            raise ProblemError(
                403,
                "Foreign Host",
                "The Host header does not name a loopback address, so the request may come from elsewhere.",
                fix="Ask for http://127.0.0.1 or http://localhost with the port of api.listen.",
            )
        origins = headers.getlist("origin")
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
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

    async def authorize(self, headers: Headers, client: str, charge: Charge) -> str:
        """Raise ProblemError (403)."""
        del headers, client, charge
        raise ProblemError(
            403,
            "Read Only",
            "This listener can be reached from other machines, and there are no tokens, so it changes nothing.",
            fix="Set api.tokens_dir to a folder with one file per token; or set api.listen to 127.0.0.1:8080, and send "
            "commands from the same machine.",
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
        "names; millrace's own commands read such a file with --token-file.",
        headers={"www-authenticate": challenge},
    )
