"""The certificate of the HTTP side: loaded at the start, and again whenever its files change.

Owns the TLS context that new connections take. `renew` reads files, so it runs on a thread, once a minute. It makes a
new context rather than changing the one in use: a handshake that is under way keeps its own, and files that do not fit
together change nothing.
"""

import hashlib
import logging
import ssl
import time
from datetime import UTC, datetime

from millrace.app.settings.certificates import PemFile, first_end, present, trusting
from millrace.app.settings.secret_files import exposure, read_secret
from millrace.app.settings.sections.api import TlsSettings
from millrace.consumers.errors import ConfigError

log = logging.getLogger(__name__)
RENEW_EVERY_S = 60.0


class ServerCertificate:
    """The certificate, its key, and the authorities of clients. The constructor raises ConfigError if they are bad."""

    def __init__(self, tls: TlsSettings) -> None:
        self._tls = tls
        self._loaded = _digest(tls)
        self.context = _context(tls)
        self.ends_at = _ends_at(tls)
        """When the first of the certificates in its file ends, in seconds since 1970; None if that is unreadable."""
        self._complaint: str | None = None
        if (exposed := exposure(tls.key)) is not None:
            log.warning("api.tls.key: %s", exposed)
        if (ended := self.ended()) is not None:
            log.warning("%s", ended)

    def ended(self) -> str | None:
        """Return the complaint about a certificate that has ended; None where it has not, or does not say."""
        if self.ends_at is None or self.ends_at > time.time():
            return None
        at = datetime.fromtimestamp(self.ends_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"api.tls.certificate: {self._tls.certificate} ended at {at}, so clients refuse it; renew it"

    def renew(self) -> None:
        """Load the files again if they have changed. If they are bad, log that once and keep what is loaded."""
        try:
            digest = _digest(self._tls)
            if digest == self._loaded:
                self._complaint = None
                return
            self.context, self._loaded, self.ends_at = _context(self._tls), digest, _ends_at(self._tls)
        except ConfigError as error:
            if str(error) != self._complaint:
                log.error("%s; the certificate that was read before stays in use", error)  # noqa: TRY400 - says it all
            self._complaint = str(error)
        else:
            self._complaint = None
            log.info("the certificate %s was read again", self._tls.certificate)
            if (ended := self.ended()) is not None:
                log.warning("%s", ended)


def _digest(tls: TlsSettings) -> bytes:
    """Return a hash of what all files hold. Kubernetes exchanges links, so times and sizes may stay the same."""
    found = {name: getattr(tls, name) for name in ("certificate", "key", "key_password_file", "client_ca")}
    files = [PemFile(f"api.tls.{name}", path) for name, path in found.items() if path is not None]
    return hashlib.sha256(b"".join(hashlib.sha256(file.read()).digest() for file in files)).digest()


def _ends_at(tls: TlsSettings) -> float | None:
    return first_end(PemFile("api.tls.certificate", tls.certificate).read())


def _context(tls: TlsSettings) -> ssl.SSLContext:
    authorities = None if tls.client_ca is None else PemFile("api.tls.client_ca", tls.client_ca)
    context = trusting(authorities, ssl.Purpose.CLIENT_AUTH)
    if authorities is not None:
        context.verify_mode = ssl.CERT_REQUIRED if tls.client_certificate == "required" else ssl.CERT_OPTIONAL
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    certificate, key = PemFile("api.tls.certificate", tls.certificate), PemFile("api.tls.key", tls.key)
    password = read_secret("api.tls.key_password_file", tls.key_password_file)
    present(context, certificate, key, password, "check both, and api.tls.key_password_file")
    return context
