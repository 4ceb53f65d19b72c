"""TLS on a real socket: certificates of the service and of clients, their renewal, and clients that stop halfway."""

import logging
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from pydantic import SecretStr, ValidationError

from millrace.app.api import http_protocol, server_certificate, tls_handshake
from millrace.app.api.server import ApiServer
from millrace.app.settings.secret_files import exposure
from millrace.app.settings.sections.api import ApiSettings, TlsSettings
from millrace.app.tools.validate.check import CheckOutcome
from millrace.app.tools.validate.settings_checks import certificate_check
from millrace.consumers.errors import ConfigError
from tests.app.api_rig import Rig, serving
from tests.app.certificates import Authority
from tests.conftest import WaitFor

MOST = 5


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> TlsSettings:
    return authority.issue(tmp_path)


@pytest.fixture
def server(rig: Rig, tls: TlsSettings) -> Iterator[ApiServer]:
    with secured(rig, tls) as server:
        yield server


@contextmanager
def secured(rig: Rig, tls: TlsSettings, **more: Any) -> Iterator[ApiServer]:
    with serving(rig, ApiSettings(listen="127.0.0.1:0", tls=tls, **more)) as server:
        yield server


def url(server: ApiServer, path: str) -> str:
    return f"https://localhost:{server.port}{path}"


def connected(server: ApiServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


@pytest.fixture
def clients(server: ApiServer) -> Iterator[Callable[[], socket.socket]]:
    """Return how to open connections that begin no handshake; all are closed in the end."""
    with ExitStack() as leaving:
        yield lambda: leaving.enter_context(connected(server))


def rest(client: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    received = b""
    try:
        while piece := client.recv(65536):
            received += piece
    except (ConnectionResetError, ssl.SSLError):
        pass
    return received


def shown(server: ApiServer, authority: Authority) -> Any:
    """Return the serial number of the certificate that a new connection is shown."""
    with connected(server) as plain, authority.client().wrap_socket(plain, server_hostname="localhost") as client:
        certificate = client.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]


def test_with_a_certificate_the_listener_speaks_https(
    server: ApiServer, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with httpx.Client(verify=authority.client()) as client:
        assert client.get(url(server, "/livez")).json()["status"] == "ok"
        assert client.post(url(server, "/pause")).json()["state"] == "paused"
        assert client.get(url(server, "/status")).json()["state"] == "paused"
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(url(server, "/livez"))


def test_a_command_from_a_page_of_this_service_has_an_https_origin(server: ApiServer, authority: Authority) -> None:
    with httpx.Client(verify=authority.client()) as client:
        own = {"origin": f"https://localhost:{server.port}"}
        assert client.post(url(server, "/pause"), headers=own).status_code == 200
        plain = {"origin": f"http://localhost:{server.port}"}
        assert client.post(url(server, "/pause"), headers=plain).status_code == 403


def test_plain_http_on_a_listener_with_tls_is_closed_without_an_answer(
    server: ApiServer, authority: Authority, caplog: pytest.LogCaptureFixture, wait_for: WaitFor
) -> None:
    with connected(server) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"HTTP" not in rest(client)
    wait_for(lambda: "a TLS handshake with 127.0.0.1 failed: http_request" in caplog.text)
    assert shown(server, authority)


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(
    server: ApiServer, authority: Authority
) -> None:
    """HTTP takes over one turn of the loop after the handshake; what came with its end must not be lost."""
    for _ in range(20):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with connected(server) as client:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    client.sendall(outgoing.read())
                    incoming.write(client.recv(65536))
            tls.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            client.sendall(outgoing.read())
            assert first_of(tls, incoming, client) == b"HTTP/1.1 200 OK"


def first_of(tls: ssl.SSLObject, incoming: ssl.MemoryBIO, client: socket.socket) -> bytes:
    """Return the first line that the server sends."""
    while True:
        try:
            return tls.read(15)
        except ssl.SSLWantReadError:
            incoming.write(client.recv(65536))


@pytest.mark.row(27)
@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], ids=["nothing", "a beginning"])
def test_a_client_that_never_ends_its_handshake_is_disconnected(
    server: ApiServer, clients: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(tls_handshake, "HANDSHAKE_TIMEOUT_S", 0.2)
    client = clients()
    client.sendall(said)
    assert rest(client) == b""


@pytest.mark.row(27)
def test_half_open_handshakes_make_room_for_a_probe(
    server: ApiServer,
    authority: Authority,
    clients: Callable[[], socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    wait_for: WaitFor,
) -> None:
    monkeypatch.setattr(http_protocol, "MAX_CONNECTIONS", MOST)
    # Longer than the test waits: the number alone closes them.
    monkeypatch.setattr(tls_handshake, "HANDSHAKE_TIMEOUT_S", 600.0)
    silent = [clients() for _ in range(60)]
    wait_for(lambda: sum(is_open(client) for client in silent) <= MOST)
    assert [is_open(client) for client in silent[:-MOST]] == [False] * (60 - MOST)
    with httpx.Client(verify=authority.client(), timeout=20) as client:
        assert [client.get(url(server, "/livez")).status_code for _ in range(3)] == [200] * 3
    assert rest(silent[-MOST]) == b"", "the probe took the place of the oldest"


def is_open(client: socket.socket) -> bool:
    client.settimeout(0)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        client.settimeout(20)


def test_a_client_that_is_silent_after_its_handshake_is_disconnected(
    server: ApiServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.2)
    with connected(server) as plain, authority.client().wrap_socket(plain, server_hostname="localhost") as client:
        assert rest(client) == b""


def test_a_client_that_never_reads_is_disconnected_under_tls_too(
    server: ApiServer, authority: Authority, monkeypatch: pytest.MonkeyPatch, wait_for: WaitFor
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.3)
    monkeypatch.setattr(http_protocol, "IDLE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(http_protocol, "WRITE_TIMEOUT_S", 0.3)
    with connected(server) as plain, authority.client().wrap_socket(plain, server_hostname="localhost") as client:
        client.sendall(b"GET /page/charts.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2000)
        wait_for(lambda: connections(server))
        wait_for(lambda: not connections(server))


def connections(server: ApiServer) -> set[Any]:
    main: Any = server._main
    return set(main._server.server_state.connections)


def test_a_stop_ends_handshakes_streams_and_idle_connections(
    rig: Rig, tls: TlsSettings, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def listen(address: str) -> None:
        with httpx.Client(verify=authority.client(), timeout=20) as client, client.stream("GET", address) as stream:
            for _ in stream.iter_lines():
                begun.set()
        ended.set()

    with ExitStack() as leaving:
        with secured(rig, tls) as server:
            leaving.enter_context(connected(server))
            idle = leaving.enter_context(httpx.Client(verify=authority.client(), timeout=20))
            assert idle.get(url(server, "/livez")).status_code == 200
            threading.Thread(target=listen, args=(url(server, "/page/updates"),), daemon=True).start()
            assert begun.wait(20)
        assert ended.wait(20)
    assert "timeout graceful shutdown exceeded" not in caplog.text


def test_the_probes_of_their_own_listener_need_no_tls(rig: Rig, tls: TlsSettings) -> None:
    mutual = tls.model_copy(update={"client_ca": tls.certificate.with_name("tls-ca.crt")})
    with secured(rig, mutual, probes="127.0.0.1:0") as server:
        assert httpx.get(f"http://127.0.0.1:{server.probes_port}/livez").status_code == 200


# Mutual TLS.


@pytest.fixture
def mutual(tls: TlsSettings) -> TlsSettings:
    return tls.model_copy(update={"client_ca": tls.certificate.with_name("tls-ca.crt")})


def answered(server: ApiServer, context: ssl.SSLContext) -> int | None:
    """Return the status of a read, or None if the connection was refused."""
    with httpx.Client(verify=context, timeout=20) as client:
        try:
            return client.get(url(server, "/status")).status_code
        except httpx.TransportError:
            return None


def test_with_client_ca_only_clients_with_a_certificate_of_it_get_in(
    rig: Rig, mutual: TlsSettings, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, foreign = authority.issue(tmp_path, "client"), Authority().issue(tmp_path, "foreign")
    with secured(rig, mutual) as server:
        assert answered(server, authority.client(ours)) == 200
        assert answered(server, authority.client()) is None
        assert answered(server, authority.client(foreign)) is None
    assert "failed: peer_did_not_return_a_certificate" in caplog.text
    assert "failed: certificate_verify_failed" in caplog.text


def test_an_optional_certificate_may_be_missing_and_may_not_be_wrong(
    rig: Rig, mutual: TlsSettings, authority: Authority, tmp_path: Path
) -> None:
    ours, foreign = authority.issue(tmp_path, "client"), Authority().issue(tmp_path, "foreign")
    with secured(rig, mutual.model_copy(update={"client_certificate": "optional"})) as server:
        assert answered(server, authority.client(ours)) == 200
        assert answered(server, authority.client()) == 200
        assert answered(server, authority.client(foreign)) is None


def test_an_optional_certificate_without_an_authority_is_an_error(tls: TlsSettings) -> None:
    with pytest.raises(ValidationError, match=r"this has no effect without api\.tls\.client_ca"):
        TlsSettings(certificate=tls.certificate, key=tls.key, client_certificate="optional")


# Renewal.


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_certificate, "RENEW_EVERY_S", 0.05)


def test_a_renewed_certificate_is_shown_without_a_restart_and_cuts_nobody_off(
    often: None, server: ApiServer, authority: Authority, tmp_path: Path, wait_for: WaitFor
) -> None:
    with httpx.Client(verify=authority.client(), timeout=20) as client:
        client.get(url(server, "/livez"))
        before = connections(server)
        first = shown(server, authority)
        authority.issue(tmp_path)
        wait_for(lambda: shown(server, authority) != first)
        client.get(url(server, "/livez"))
        assert before <= connections(server)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("fault", ["a password that OpenSSL does not take", "an unforeseen error"])
def test_whatever_goes_wrong_at_a_renewal_the_next_one_is_seen(
    fault: str,
    server: ApiServer,
    authority: Authority,
    tls: TlsSettings,
    wait_for: WaitFor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = shown(server, authority)
    with monkeypatch.context() as broken:
        if fault == "an unforeseen error":
            broken.setattr(server_certificate, "_digest", lambda _tls: 1 / 0)
            said = "the certificate was not looked at"
        else:
            key = serialization.load_pem_private_key(tls.key.read_bytes(), None)
            forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
            broken.setattr(server_certificate, "read_secret", lambda *_: SecretStr("long" * 1000))
            tls.key.write_bytes(key.private_bytes(*forms, serialization.BestAvailableEncryption(b"hidden")))
            said = "is longer than OpenSSL takes"
        wait_for(lambda: said in caplog.text)
    authority.issue(tls.key.parent)
    wait_for(lambda: shown(server, authority) != first)


def certificate_end(server: ApiServer, authority: Authority) -> list[float]:
    """Return what the metric says."""
    with httpx.Client(verify=authority.client()) as client:
        text = client.get(url(server, "/metrics")).text
    return [float(end) for end in re.findall(r"^millrace_api_certificate_end_time_seconds\{.*\} (.*)$", text, re.M)]


def test_the_certificates_end_is_a_metric_that_follows_the_file(
    often: None, server: ApiServer, authority: Authority, tls: TlsSettings, tmp_path: Path, wait_for: WaitFor
) -> None:
    certificate = x509.load_pem_x509_certificate(tls.certificate.read_bytes())
    assert certificate_end(server, authority) == [certificate.not_valid_after_utc.timestamp()]
    renewed = datetime(2051, 3, 4, 5, 6, 7, tzinfo=UTC)
    authority.issue(tmp_path, end=renewed)
    wait_for(lambda: certificate_end(server, authority) == [renewed.timestamp()])


def test_without_a_certificate_there_is_no_metric_of_its_end(rig: Rig) -> None:
    with serving(rig, ApiSettings(listen="127.0.0.1:0")) as server:
        text = httpx.get(f"http://127.0.0.1:{server.port}/metrics").text
    assert "millrace_alive" in text
    assert "certificate_end" not in text


def test_a_secret_that_is_replaced_through_a_link_is_followed(
    often: None, rig: Rig, authority: Authority, tmp_path: Path, wait_for: WaitFor
) -> None:
    """Kubernetes does this: the files are links through `..data`, which a rename makes point elsewhere."""
    for name in ("..first", "..second"):
        (tmp_path / name).mkdir()
        authority.issue(tmp_path / name)
    (tmp_path / "..data").symlink_to("..first")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    with secured(rig, TlsSettings(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")) as server:
        first = shown(server, authority)
        (tmp_path / "..new").symlink_to("..second")
        (tmp_path / "..new").rename(tmp_path / "..data")
        wait_for(lambda: shown(server, authority) != first)


def test_files_that_do_not_fit_are_logged_once_and_the_old_certificate_stays(
    often: None,
    server: ApiServer,
    authority: Authority,
    tls: TlsSettings,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    wait_for: WaitFor,
) -> None:
    first, key = shown(server, authority), tls.key.read_bytes()
    tls.key.write_bytes(authority.issue(tmp_path, "another").key.read_bytes())
    wait_for(lambda: "do not go together" in caplog.text)
    assert shown(server, authority) == first
    tls.key.unlink()
    wait_for(lambda: "tls.key cannot be read: no such file or directory; the certificate that was" in caplog.text)
    assert shown(server, authority) == first
    assert caplog.text.count("do not go together") == 1
    tls.key.write_bytes(key)
    authority.issue(tmp_path)
    wait_for(lambda: shown(server, authority) != first)


def test_a_new_authority_of_clients_replaces_the_old_one(
    often: None, rig: Rig, mutual: TlsSettings, authority: Authority, tmp_path: Path, wait_for: WaitFor
) -> None:
    ours, other = authority.issue(tmp_path, "client"), Authority()
    theirs = other.issue(tmp_path, "theirs")
    assert mutual.client_ca is not None
    with secured(rig, mutual) as server:
        assert answered(server, authority.client(theirs)) is None
        other.ca.cert_pem.write_to_path(str(mutual.client_ca))
        wait_for(lambda: answered(server, authority.client(theirs)) == 200)
        assert answered(server, authority.client(ours)) is None


# What a start refuses.


@pytest.mark.parametrize(
    ("broken", "content", "complaint"),
    [
        ("certificate", None, "api.tls.certificate: tls.crt cannot be read: no such file or directory"),
        ("key", None, "api.tls.key: tls.key cannot be read: no such file or directory"),
        ("certificate", b"canary", "api.tls.certificate tls.crt and api.tls.key tls.key do not go together: "),
        ("key", b"canary", "api.tls.certificate tls.crt and api.tls.key tls.key do not go together: "),
        ("client_ca", None, "api.tls.client_ca: tls-ca.crt cannot be read: no such file or directory"),
        ("client_ca", b"canary", "api.tls.client_ca: tls-ca.crt holds no certificate in PEM form"),
    ],
)
def test_unusable_files_are_one_clear_line_at_the_start(
    rig: Rig, mutual: TlsSettings, tmp_path: Path, broken: str, content: bytes | None, complaint: str
) -> None:
    path: Path = getattr(mutual, broken)
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        ApiServer(rig.service, ApiSettings(listen="127.0.0.1:0", tls=mutual)).bind()
    text = str(caught.value).replace(f"{tmp_path}/", "")
    assert text.startswith(complaint)
    assert "\n" not in text
    assert "canary" not in text
    assert caught.value.exit_code == 2


def test_a_key_with_a_password_is_read_with_it_and_refused_without(
    rig: Rig, tls: TlsSettings, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(tls.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"canary-4711")
    form = serialization.PrivateFormat.PKCS8
    tls.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
    with pytest.raises(ConfigError, match=r"check both, and api\.tls\.key_password_file"):
        ApiServer(rig.service, ApiSettings(listen="127.0.0.1:0", tls=tls)).bind()
    (tmp_path / "password").write_text("canary-4711\n")
    with secured(rig, tls.model_copy(update={"key_password_file": tmp_path / "password"})) as server:
        assert answered(server, authority.client()) == 200
    assert "canary" not in caplog.text


def test_a_key_that_every_user_can_read_is_warned_about_at_the_start(
    rig: Rig, authority: Authority, token: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The token's folder is one that every user can look into."""
    tls = authority.issue(token.parent)
    with secured(rig, tls):
        pass
    assert f"api.tls.key: {exposure(tls.key)}" in [record.getMessage() for record in caplog.records]
    assert certificate_check(tls).outcome is CheckOutcome.WARN
    tls.key.chmod(0o600)
    assert certificate_check(tls).outcome is CheckOutcome.OK


def test_a_certificate_that_has_ended_is_warned_of(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = authority.issue(tmp_path, "old", end=datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC))
    found = certificate_check(tls)
    said = f"api.tls.certificate: {tls.certificate} ended at 2001-02-03T04:05:06Z, so clients refuse it; renew it"
    assert (found.outcome, found.detail) == (CheckOutcome.WARN, said)
    assert said in caplog.messages
    caplog.clear()
    certificate = server_certificate.ServerCertificate(authority.issue(tmp_path, "new"))
    assert certificate.ended() is None
    authority.issue(tmp_path, "new", end=datetime(2001, 2, 3, tzinfo=UTC))
    certificate.renew()
    assert [message for message in caplog.messages if " ended at 2001-02-03T00:00:00Z" in message]


def test_no_more_than_some_failed_handshakes_a_minute_are_logged(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(40):
            with connected(server) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                rest(client)
    lines = [one for one in caplog.records if one.name == "millrace.app.api.tls_handshake"]
    assert len(lines) <= 30
