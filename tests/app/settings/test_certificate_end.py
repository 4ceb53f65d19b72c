"""When a certificate ends, as its file says it."""

from datetime import UTC, datetime, timedelta

import pytest
import trustme
from cryptography import x509

from millrace.app.settings.certificates import first_end

AUTHORITY = trustme.CA()
NOW = datetime.now(UTC).replace(microsecond=0)
DAYS = 24 * 3600.0


def issued(end: datetime) -> bytes:
    return AUTHORITY.issue_cert("localhost", not_after=end).cert_chain_pems[0].bytes()


@pytest.mark.parametrize("years", [0, 10, 30, 100])  # from 2050 on, a certificate spells its times in another way
def test_the_end_is_that_of_the_certificate(years: int) -> None:
    end = NOW + timedelta(days=1 + 365 * years)
    pem = issued(end)
    assert first_end(pem) == end.timestamp()
    assert x509.load_pem_x509_certificate(pem).not_valid_after_utc == end


def test_of_a_chain_the_first_end_counts_wherever_it_stands() -> None:
    soon, later = issued(NOW + timedelta(days=3)), issued(NOW + timedelta(days=90))
    for chain in (soon + later, b"# the leaf\n" + later + b"\n" + soon):
        assert first_end(chain) == NOW.timestamp() + 3 * DAYS


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"no certificate",
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
        trustme.CA().private_key_pem.bytes(),
    ],
)
def test_what_is_no_certificate_has_no_end(pem: bytes) -> None:
    assert first_end(pem) is None


def test_a_cut_certificate_has_no_end() -> None:
    lines = issued(NOW + timedelta(days=3)).splitlines(keepends=True)
    for kept in range(1, len(lines) - 1):
        cut = b"".join([*lines[:kept], lines[-1]])
        assert first_end(cut) in {None, NOW.timestamp() + 3 * DAYS}
