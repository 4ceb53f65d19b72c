"""A client of a running service's HTTP interface, for the command line. Runs on the caller's thread.

One request per connection, bounded in time. Before a command, the client checks which service answers, and it sends the
token with commands, and with a read only if the service asks for one. A refusal becomes an error of ours, with the exit
code that the same refusal has locally.

With TLS, the service's certificate is checked against the authorities that the options name, or the system's. A service
of this machine that a config file names is recognised by the very certificate in the file of that config: it need not
be made out to a loopback address.
"""

import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from millrace.app.api.tokens import TOKEN
from millrace.app.settings import Settings
from millrace.app.settings.certificates import PemFile, first_certificate, present, trusting
from millrace.app.settings.secret_files import read_secret
from millrace.consumers.errors import ConfigError, MillraceError, UnreachableError

ASK_S, COMMAND_S = 10.0, 30.0
LONGEST_S = 600.0
"""The longest that an answer may be waited for."""
_RETRY_EVERY_S = 0.2
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - values of api.listen; nothing is bound here
_EXIT_CODES: Mapping[str, int] = {
    "conflict": 4,
    "not-the-chief": 2,
    "starting": 3,
    "trainer-ending": 3,
    "trainer-gone": 3,
}
"""By the type of the problem; all others by their status."""
_EXIT_CODES_BY_STATUS: Mapping[int, int] = {401: 2, 403: 2, 404: 2, 422: 2}
_TYPE = "urn:millrace:"
_STAMP = ("as_of", "name", "version")
"""The keys in every answer of ours."""
_WANTS_A_CERTIFICATE = "if it asks clients for a certificate, name one by --client-certificate and --client-key"
_NO_ADDRESS = "is not an address of a service; write http://host:8080"
_FAILING = ("/livez", "/readyz")
"""Paths whose 503 is an answer, not a refusal."""


class RefusedError(MillraceError):
    """The service refused a request."""

    def __init__(self, text: str, *, exit_code: int, status: int) -> None:
        super().__init__(text)
        self.exit_code, self.status = exit_code, status


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What the options name for TLS. Relative to where the command is typed."""

    ca: Path | None = None
    """The authorities to trust instead of the system's."""
    certificate: Path | None = None
    key: Path | None = None
    """Whose, with the certificate, the client is; both or neither."""

    def context(self, *, pinned: PemFile | None = None) -> ssl.SSLContext:
        """Return the context of connections. Without authorities, only the pinned certificate is accepted."""
        if self.ca is None and pinned is not None:
            context = _accepting_only(pinned)
        else:
            context = trusting(None if self.ca is None else PemFile("--ca-file", self.ca))
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--client-certificate and --client-key go together; name both")
        if self.certificate is not None and self.key is not None:
            certificate = PemFile("--client-certificate", self.certificate)
            present(context, certificate, PemFile("--client-key", self.key), None, "the key may have no password")
        return context


NO_FILES = TlsFiles()


def _accepting_only(certificate: PemFile) -> ssl.SSLContext:
    """Return a context that accepts this certificate, whatever names it bears."""
    text = first_certificate(certificate.read())
    try:
        context = ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{certificate.setting}: {certificate.path} holds no certificate in PEM form") from None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it is trusted without its authority
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # whose rules are for authorities
    return context


class Remote:
    """The service at an address. Raises UnreachableError where no service, or another one, answers."""

    def __init__(
        self, url: str, token: str | None = None, *, name: str | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        """Keep the address. With a name, only the service of that name is accepted; `context` is for https."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:  # a bracket too few, or no port that there is: no other one may be asked
            raise ConfigError(f"{url!r} {_NO_ADDRESS}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ConfigError(f"{url!r} {_NO_ADDRESS}")
        self._connection: Callable[..., HTTPConnection] = HTTPConnection
        if parts.scheme == "https":
            self._connection = partial(HTTPSConnection, context=context or ssl.create_default_context())
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self._token = token
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self._name = name

    def ask(self, path: str, within_s: float = ASK_S) -> dict[str, Any]:
        """Read a path and return the answer; with the token, if the service asks for one."""
        try:
            return self._answer("GET", path, None, within_s, {})
        except RefusedError as error:
            if error.status != 401 or self._token is None:
                raise
        return self._answer("GET", path, None, within_s, self._authorization())

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
        return self._answer("POST", path, body, within_s, self._authorization())

    def _authorization(self) -> dict[str, str]:
        return {} if self._token is None else {"authorization": f"Bearer {self._token}"}

    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, within_s: float, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        connection = self._connection(self._host, self._port, timeout=within_s)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, f"{self._path}{path}", content, {"content-type": "application/json", **headers})
            response = connection.getresponse()
            answer = dict(json.loads(response.read()))
        except ssl.SSLError as error:
            raise UnreachableError(f"{self.url} speaks no TLS that fits: {_tls_complaint(error)}") from error
        except (OSError, HTTPException, ValueError, TypeError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            if self.url.startswith("https:") and isinstance(error, ConnectionResetError | BrokenPipeError):
                why = f"it closed the connection; {_WANTS_A_CERTIFICATE}"
            raise UnreachableError(f"no millrace answers at {self.url} ({why}); does it run there?") from error
        finally:
            connection.close()
        if not all(isinstance(answer.get(key), str) for key in _STAMP):
            raise UnreachableError(f"what answers at {self.url} is no millrace; name the right one by --url")
        if self._name not in (None, answer["name"]):
            raise UnreachableError(
                f"{self.url} is answered by the service {answer['name']!r}, not by {self._name!r}; name the right one "
                "by --url"
            )
        if response.status >= 400 and not path.startswith(_FAILING):
            kind = str(answer.get("type", "")).removeprefix(_TYPE)
            parts = [str(answer[key]).rstrip(".") for key in ("detail", "fix") if key in answer]
            code = _EXIT_CODES.get(kind, _EXIT_CODES_BY_STATUS.get(response.status, 1))
            why = ". ".join(parts) or f"refused with status {response.status}"
            raise RefusedError(why, exit_code=code, status=response.status)
        return answer


def _tls_complaint(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message}); name its authority by --ca-file"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or "CERTIFICATE" in (error.reason or ""):
        return f"it closed the connection; {_WANTS_A_CERTIFICATE}"
    return f"{(error.reason or 'unknown reason').lower().replace('_', ' ')}; is it http:// there?"


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


def local_service(settings: Settings, token: str | None, files: TlsFiles = NO_FILES) -> Remote:
    """Return the client of the service with these settings on this machine."""
    tls = settings.api.tls
    context = None if tls is None else files.context(pinned=PemFile("api.tls.certificate", tls.certificate))
    return Remote(url_of(settings), token, name=settings.name, context=context)


def url_of(settings: Settings) -> str:
    """Return the address on this machine of a service with these settings. ConfigError where they have no port."""
    if settings.api.port == 0:
        raise ConfigError(
            f"api.listen {settings.api.listen} does not tell the port; name it by MILLRACE_API__LISTEN (the trainer's "
            "log has it)"
        )
    host = _LOOPBACK_OF.get(settings.api.host, settings.api.host)
    return f"{settings.api.scheme}://{f'[{host}]' if ':' in host else host}:{settings.api.port}"
