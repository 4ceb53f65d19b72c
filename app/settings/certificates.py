"""Certificates in PEM files, loaded into TLS contexts; errors name the setting and the file, never a key's content."""

import base64
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import SecretStr

from millrace.app.settings.secret_files import read_secret, why_unread
from millrace.consumers.errors import ConfigError

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----\s*(.*?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _SHORT_TIME, _LONG_TIME = 0x30, 0xA0, 0x17, 0x18
_CENTURY = 50
"""A year of two digits is of this century below it, and of the last from it on."""
_BEFORE_VALIDITY = 3


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
            raise ConfigError(f"{self.setting}: {self.path} cannot be read: {why_unread(error)}") from None


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
    except OSError as error:  # it was there a moment ago
        raise ConfigError(f"{authorities.setting}: {authorities.path} cannot be read: {why_unread(error)}") from None


def client_context(
    prefix: str, ca: Path | None, certificate: Path | None, key: Path | None, key_password: Path | None
) -> ssl.SSLContext:
    """Return the context of a TLS client whose settings, `<prefix>ca_file` and so on, name these files.

    Raises ConfigError if a file cannot be read, or if the certificate does not fit its key.
    """
    context = trusting(None if ca is None else PemFile(f"{prefix}ca_file", ca))
    if certificate is not None and key is not None:
        secret, hint = f"{prefix}key_password_file", f"check both, and {prefix}key_password_file"
        pair = PemFile(f"{prefix}certificate_file", certificate), PemFile(f"{prefix}key_file", key)
        present(context, *pair, read_secret(secret, key_password), hint)
    return context


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
    except OSError as error:  # they were there a moment ago
        pair = f"{certificate.setting} {certificate.path} or {key.setting} {key.path}"
        raise ConfigError(f"{pair} cannot be read: {why_unread(error)}") from None
    except ValueError:  # Python's own, of what it would hand to OpenSSL
        raise ConfigError(f"{key.setting}: the password of {key.path} is longer than OpenSSL takes; {hint}") from None


def first_certificate(pem: bytes) -> str:
    """Return the first certificate of a PEM file; empty if there is none."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, found, rest = pem.decode("ascii", "replace").partition(begin)
    body, complete, _ = rest.partition(end)
    return f"{begin}{body}{end}\n" if found and complete else ""


def first_end(pem: bytes) -> float | None:
    """Return when the first of the file's certificates ends, in seconds since 1970; None where it holds none.

    The standard library has no public way to read it. A certificate is a sequence whose first element holds, after an
    optional version, the serial number, the algorithm and the issuer, the two times of its validity (RFC 5280, 4.1).
    """
    try:
        # A list: within a generator an element that is missing would raise another error.
        return min([_end(base64.b64decode(block)) for block in _BLOCK.findall(pem)], default=None)
    except (ValueError, IndexError, StopIteration):  # ValueError also for what is no base64
        return None


def _end(der: bytes) -> float:
    signed = _content(_content(der, _SEQUENCE), _SEQUENCE)
    fields = [element for element in _elements(signed) if element[0] != _VERSION]
    tag, validity = fields[_BEFORE_VALIDITY]
    if tag != _SEQUENCE:
        raise ValueError("no validity")
    _, (kind, raw) = _elements(validity)
    text = raw.decode("ascii")
    if kind == _SHORT_TIME:
        text = ("20" if int(text[:2]) < _CENTURY else "19") + text
    elif kind != _LONG_TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _content(der: bytes, tag: int) -> bytes:
    """Return the content of the first element, which has to have this tag."""
    found, content = next(_elements(der))
    if found != tag:
        raise ValueError("not a certificate")
    return content


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size]), at + size
        yield tag, der[at : at + length]
        at += length
