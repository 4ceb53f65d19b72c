"""An OpenID provider of the tests' own: an endpoint on loopback that issues signed tokens, and its keys in a file."""

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote_plus

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

CLIENT, SECRET = "trainer", "s ecret+of/the=client"
AUDIENCE = "kafka"


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class OidcProvider:
    """Issues tokens to a client that knows its secret, or has a token that stands for it. A context manager."""

    def __init__(self, *, lifetime_s: float = 3600.0) -> None:
        self.lifetime_s = lifetime_s
        self.asked: list[dict[str, str]] = []
        """What each request held."""
        self.goes_on = threading.Event()
        """Without it, requests wait."""
        self.goes_on.set()
        self.status: int | None = None
        """What each request is answered with, if not with a token."""
        self.elsewhere = ""
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                status, answer = provider._answer(form, self.headers["Authorization"] or "")
                raw = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Location", provider.elsewhere)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/token"

    def token(self, *, lasts_s: float | None = None, **claims: Any) -> str:
        """Return a signed token; `claims` go over its own."""
        now = time.time()
        lasts_s = self.lifetime_s if lasts_s is None else lasts_s
        said = {"iss": "https://oidc.test", "aud": AUDIENCE, "sub": CLIENT, "scope": "read", "iat": now - 7200}
        said |= {"exp": now + lasts_s, **claims}
        signed = ".".join(_text(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "1"}, said))
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), SHA256()))}"

    def write_keys(self, path: Path) -> None:
        """Write the public keys by which a broker verifies tokens."""
        public = self._key.public_key().public_numbers()
        numbers = {name: _text(n.to_bytes((n.bit_length() + 7) // 8)) for name, n in (("n", public.n), ("e", public.e))}
        path.write_text(json.dumps({"keys": [{"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig", **numbers}]}))

    def _answer(self, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        self.asked.append(form)
        self.goes_on.wait()
        if self.status is not None:
            return self.status, {}
        login = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        known = tuple(map(unquote_plus, login.split(":"))) == (CLIENT, SECRET) if login else "client_assertion" in form
        if form.get("grant_type") != "client_credentials" or not known:
            return 401, {"error": "invalid_client", "error_description": "with a canary"}
        return 200, {"access_token": self.token(), "expires_in": self.lifetime_s, "token_type": "Bearer"}

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.goes_on.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
