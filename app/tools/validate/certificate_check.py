"""The check of the HTTP side's certificate: whether a start can load it."""

from millrace.app.api.server_certificate import ServerCertificate
from millrace.app.settings.file_access import exposure
from millrace.app.settings.sections.api import TlsSettings
from millrace.app.tools.validate.check import CheckResult, fail, ok, warn
from millrace.consumers.errors import MillraceError

_NAME = "certificate"


def certificate_check(tls: TlsSettings) -> CheckResult:
    """Load the certificate, its key and the authorities of clients as a start does."""
    try:
        ServerCertificate(tls)
    except MillraceError as error:
        return fail(_NAME, error)
    if (exposed := exposure(tls.key)) is not None:
        return warn(_NAME, f"api.tls.key: {exposed}")
    if tls.client_ca is None:
        return ok(_NAME, f"{tls.certificate}; clients are not asked for one")
    return ok(_NAME, f"{tls.certificate}; of clients one is {tls.client_certificate}")
