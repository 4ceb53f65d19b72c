"""Bearer tokens for logins: got from an endpoint, a file or a command, kept while they are valid, renewed before.

One renewal at a time, on a thread of its own, so that no caller's loop waits for a file or an endpoint: `begin` never
blocks. Any thread may ask. No text of an error, and no `repr`, holds a token or a secret.
"""

import base64
import json
import re
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus, urlencode

from millrace.consumers.errors import ConfigError, MillraceError, UnreachableError

PATIENCE_S = 0.5
"""How long a renewal is waited for while the token at hand is still valid: a caller stalls no longer."""
TIMEOUT_S = 10.0
_RENEW_AT = 0.7
"""Of a token's lifetime. Connections end between 0.75 and 0.85 of it, and the next ones begin with a new token."""
_UNKNOWN_LIFETIME_S = 300.0
_RETRY_S = 5.0
"""A renewal that failed is not tried again for this long while the token at hand is valid."""
_LARGEST = 1 << 20
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_ERROR_CODE = re.compile(r"[\w.-]{1,60}")
_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_REFUSALS = range(400, 500)
_BUSY = {408, 425, 429}
"""Answers of an endpoint that may be another one in a moment, although they are of the 400s."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and when it ends by this machine's clock."""

    text: str = field(repr=False)
    renew_at: float
    """From then on a new one is asked for, in seconds since 1970."""
    ends_at: float

    @property
    def has_ended(self) -> bool:
        """Whether it is no longer valid."""
        return time.time() >= self.ends_at

    @property
    def claims(self) -> Mapping[str, Any]:
        """What a JSON Web Token says, its signature unchecked; nothing for a token of another kind."""
        return claims_of(self.text)


def claims_of(text: str) -> Mapping[str, Any]:
    """Return the claims of a JSON Web Token, unchecked; nothing for a token of another kind."""
    try:
        body = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, IndexError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def to_token(text: str, place: str, lifetime_s: float | None = None, *, kept: bool = True) -> Token:
    """Return the token that a text is. Raises ConfigError, which names the place, if the text is no token.

    Without a lifetime, the token says it itself, if it is a JSON Web Token. With `kept=False` each use asks again.
    """
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"{place} gives no token; it has to give the token alone")
    now, ends = time.time(), claims_of(text).get("exp")
    if lifetime_s is None and isinstance(ends, int | float):
        lifetime_s = ends - now
    lifetime_s = _UNKNOWN_LIFETIME_S if lifetime_s is None else lifetime_s
    return Token(text, now + _RENEW_AT * lifetime_s if kept else now, now + lifetime_s)


class TokenSource:
    """Gives a valid token."""

    def __init__(self, get: Callable[[], Token], place: str) -> None:
        """Take how a token is got: it may block for some seconds, and raises ConfigError or UnreachableError.

        `place` is the setting that says so.
        """
        self.place = place
        self._get = get
        self._lock = threading.Lock()
        self._held: Token | None = None
        self.fault: MillraceError | None = None
        """Why the newest renewal failed; None if it did not."""
        self._renewal: Future[Token] | None = None
        self._not_before = 0.0

    @property
    def held(self) -> Token | None:
        """The newest token, valid or not."""
        return self._held

    def begin(self) -> tuple[Token | None, "Future[Token] | None"]:
        """Return the token at hand, if it is valid, and the renewal under way, if one is due. Does not block."""
        with self._lock:
            now, held = time.time(), self._held
            valid = None if held is None or held.has_ended else held
            if valid is not None and (now < valid.renew_at or now < self._not_before):
                return valid, None
            if self._renewal is None:
                self._renewal = Future()
                # A daemon: a request that hangs holds no shutdown up.
                threading.Thread(target=self._renew, args=(self._renewal,), name="token", daemon=True).start()
            return valid, self._renewal

    def token(self) -> Token:
        """Return a valid token; blocks while there is none. Raises ConfigError or UnreachableError."""
        valid, renewal = self.begin()
        if renewal is None:
            assert valid is not None, "without a renewal there is a token"
            return valid
        try:
            return renewal.result(None if valid is None else PATIENCE_S)
        except (TimeoutError, MillraceError):
            if valid is None:
                raise
            return valid

    def _renew(self, renewal: "Future[Token]") -> None:
        renewal.set_running_or_notify_cancel()  # a caller that gives up cancels nothing
        try:
            got: Token | MillraceError = self._get()
        except MillraceError as error:
            got = error
        except Exception as error:  # noqa: BLE001 - nobody may wait for ever; the text could hold a secret
            got = UnreachableError(f"{self.place}: no token could be got ({type(error).__name__})")
        with self._lock:
            self._renewal = None
            if isinstance(got, Token):
                self._held, self.fault = got, None
            else:
                self.fault, self._not_before = got, time.time() + _RETRY_S
        if isinstance(got, Token):
            renewal.set_result(got)
        else:
            renewal.set_exception(got)


def from_file(read: Callable[[], str], place: str) -> TokenSource:
    """Return the source of the token in a file, which is read again at each use: it may be replaced at any time."""
    return TokenSource(lambda: to_token(read(), place, kept=False), place)


def from_command(command: Sequence[str], place: str) -> TokenSource:
    """Return the source of the token that a command prints."""

    def get() -> Token:
        try:
            done = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S, text=True)  # noqa: S603
        except FileNotFoundError:
            raise ConfigError(f"{place}: there is no command {command[0]}") from None
        except subprocess.CalledProcessError as error:
            code = error.returncode
            raise ConfigError(f"{place}: {command[0]} ends with {code}; run the command by hand to see why") from None
        except subprocess.TimeoutExpired:
            raise UnreachableError(f"{place}: {command[0]} gives no token within {TIMEOUT_S:g} s") from None
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"{place}: {command[0]} cannot be run ({type(error).__name__})") from None
        return to_token(done.stdout.strip(), place)

    return TokenSource(get, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An OpenID provider's token endpoint, and how a client says who it is (OAuth 2.0, client credentials)."""

    url: str
    client_id: str
    secret: Callable[[], str] | None = field(default=None, repr=False)
    """Reads the client's secret; at each request, as it may be replaced."""
    assertion: Callable[[], str] | None = field(default=None, repr=False)
    """Reads a token that stands for the secret (RFC 7523), as workload identities have."""
    scope: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    """What else the endpoint wants, as an audience."""
    context: ssl.SSLContext | None = None
    """For https."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:  # the secret goes to no other address
        return None


def from_endpoint(endpoint: Endpoint, place: str) -> TokenSource:
    """Return the source of the tokens that an endpoint issues."""
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=endpoint.context), _NoRedirects())

    def get() -> Token:
        where = f"{place}.token_endpoint: {endpoint.url}"
        request = _request(endpoint)  # a secret's file that cannot be read says nothing of the endpoint
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                body = answer.read(_LARGEST)
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(where, error.code, error.read(_LARGEST), endpoint.client_id) from None
        except (OSError, ValueError, urllib.error.URLError) as error:
            raise UnreachableError(f"{where} gives no token: {_why(error, place)}") from None
        answered = _json(body)
        token, lifetime = answered.get("access_token"), answered.get("expires_in")
        if not isinstance(token, str):
            raise ConfigError(f"{where} answers, and gives no access_token; is this the token endpoint?")
        try:
            lifetime_s = None if lifetime is None else float(lifetime)  # some write it as text
        except (TypeError, ValueError):
            lifetime_s = None
        return to_token(token, where, lifetime_s)

    return TokenSource(get, place)


def _request(endpoint: Endpoint) -> urllib.request.Request:
    form = {"grant_type": "client_credentials", **endpoint.parameters}
    headers = {"Accept": "application/json"}
    if endpoint.scope is not None:
        form["scope"] = endpoint.scope
    if endpoint.assertion is not None:
        form |= {"client_id": endpoint.client_id, "client_assertion_type": _ASSERTION}
        form["client_assertion"] = endpoint.assertion()
    elif endpoint.secret is not None:
        login = f"{quote_plus(endpoint.client_id)}:{quote_plus(endpoint.secret())}"
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    return urllib.request.Request(endpoint.url, urlencode(form).encode(), headers)  # noqa: S310 - http or https alone


def _refused(where: str, status: int, body: bytes, client: str) -> MillraceError:
    if status not in _REFUSALS or status in _BUSY:
        return UnreachableError(f"{where} gives no token: HTTP {status}")
    code = str(_json(body).get("error"))
    why = code if _ERROR_CODE.fullmatch(code) and code != "None" else f"HTTP {status}"
    if status == 404 and why.startswith("HTTP"):
        return ConfigError(f"{where} is no token endpoint (HTTP 404); check the URL")
    return ConfigError(
        f"{where} refuses {client} ({why}): check client_id, the secret's file, scope and parameters beside it"
    )


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _why(error: Exception, place: str) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({reason.verify_message}); set {place}.ca_file"
    if isinstance(reason, TimeoutError):
        return f"no answer within {TIMEOUT_S:g} s"
    if isinstance(reason, OSError):
        return (reason.strerror or type(reason).__name__).lower()
    return type(reason).__name__


def moment(seconds: float) -> str:
    """Return a time for a sentence, as in 2026-11-21 03:00:00 UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
