"""Certificates of an authority of the tests' own."""

import ssl
from datetime import datetime
from pathlib import Path

import trustme

from millrace.app.settings.sections.api import TlsSettings


class Authority:
    """An authority, and the files that it issues."""

    def __init__(self) -> None:
        self.ca = trustme.CA()

    def issue(self, folder: Path, name: str = "tls", *hosts: str, end: datetime | None = None) -> TlsSettings:
        """Write a certificate, its key and the authority; return the settings that name them.

        It is made out to the hosts, or to this machine where none is given.
        """
        issued = self.ca.issue_cert(*(hosts or ("localhost", "127.0.0.1")), common_name=name, not_after=end)
        paths = folder / f"{name}.crt", folder / f"{name}.key", folder / f"{name}-ca.crt"
        paths[0].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        paths[1].write_bytes(issued.private_key_pem.bytes())
        self.ca.cert_pem.write_to_path(str(paths[2]))
        return TlsSettings(certificate=paths[0], key=paths[1])

    def client(self, presents: TlsSettings | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts the authority, and presents a certificate."""
        context = ssl.create_default_context(cadata=self.ca.cert_pem.bytes().decode())
        if presents is not None:
            context.load_cert_chain(presents.certificate, presents.key)
        return context
