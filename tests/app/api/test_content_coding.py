"""Compressed answers: only for clients that accept them."""

import gzip

import pytest

from millrace.app.api.routes.page import accepts_gzip
from tests.app.api_rig import Client


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("*", True),
        ("br, gzip ; q=1", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
        ("*;q=0", False),
        ("gzip;q=much", False),
        ("x-gzipped", False),
    ],
)
def test_gzip_is_accepted_by_name_or_by_the_star_unless_its_weight_is_0(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


def test_metrics_are_compressed_for_clients_that_accept_it(api: Client) -> None:
    plain = api.get("/metrics", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    small = api.get("/metrics", headers={"accept-encoding": "gzip"})
    assert small.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in small.headers["vary"]
    assert small.headers["content-type"] == plain.headers["content-type"]
    assert int(small.headers["content-length"]) < 0.4 * len(plain.content)
    assert "millrace_lag_records" in small.text


def test_a_file_of_the_page_is_not_compressed_for_a_client_that_refuses_it(api: Client) -> None:
    refused = api.get("/page/charts.js", headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers
    assert int(refused.headers["content-length"]) > len(gzip.compress(refused.content))


@pytest.mark.parametrize("version", ["latest", "x.1", "٣"])
def test_a_client_that_accepts_a_version_that_is_none_gets_the_usual_metrics(api: Client, version: str) -> None:
    usual = api.get("/metrics").headers["content-type"]
    for kind in ("application/openmetrics-text", "text/plain"):
        answer = api.get("/metrics", headers={"accept": f"{kind};version={version};escaping=all".encode()})
        assert (answer.status_code, answer.headers["content-type"]) == (200, usual)
