"""Certificates in PEM files, loaded into TLS contexts; errors name the setting and the file, never a key's content."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from millrace.consumers.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PemFile:
    """A file, and the setting or option that names it."""

    setting: str
    path: Path

    def read(self) -> bytes:
        """Return the content. Raises ConfigError if it cannot be read."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.setting}: {self.path} cannot be read: {_why(error)}") from None


def trusting(authorities: PemFile | None, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> ssl.SSLContext:
    """Return a context that trusts these certificates; without a file the system's, if it is a client's.

    Raises ConfigError if the file holds none.
    """
    if authorities is None:
        return ssl.create_default_context(purpose)
    authorities.read()
    try:
        return ssl.create_default_context(purpose, cafile=str(authorities.path))
    except ssl.SSLError:
        raise ConfigError(f"{authorities.setting}: {authorities.path} holds no certificate in PEM form") from None


def present(context: ssl.SSLContext, certificate: PemFile, key: PemFile, password: SecretStr | None, hint: str) -> None:
    """Let the context present the certificate. Raises ConfigError, which ends with the hint, if the two do not fit."""
    certificate.read()
    key.read()
    try:
        # An empty password rather than None: OpenSSL would ask for one on the terminal, and wait.
        context.load_cert_chain(certificate.path, key.path, password.get_secret_value() if password else "")
    except ssl.SSLError as error:
        what = (error.reason or "not in PEM form").lower().replace("_", " ")
        raise ConfigError(
            f"{certificate.setting} {certificate.path} and {key.setting} {key.path} do not go together: {what}; {hint}"
        ) from None


def first_certificate(pem: bytes) -> str:
    """Return the first certificate of a PEM file; empty if there is none."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, found, rest = pem.decode("ascii", "replace").partition(begin)
    body, complete, _ = rest.partition(end)
    return f"{begin}{body}{end}\n" if found and complete else ""


def _why(error: OSError) -> str:
    return (error.strerror or "it cannot be opened").lower()
