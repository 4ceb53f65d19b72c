"""The server on a real socket: binding, answering, time limits, stopping."""

import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from millrace.app.api import http_protocol, middleware
from millrace.app.api.server import ApiServer
from millrace.app.settings.sections.api import ApiSettings
from millrace.consumers.errors import ConfigError
from millrace.training.commands import Command
from tests.app.api_rig import Rig, serving
from tests.conftest import WaitFor

PROXIES_KEEP_S = 60.0


@pytest.fixture
def server(rig: Rig) -> Iterator[ApiServer]:
    """Run a server that answers on its own port."""
    with serving(rig) as server:
        yield server


def url(server: ApiServer, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"


def connected(server: ApiServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def test_a_server_answers_on_the_port_that_it_chose_and_then_stops(server: ApiServer) -> None:
    assert server.port > 0
    assert httpx.get(url(server, "/livez")).json()["status"] == "ok"
    assert httpx.post(url(server, "/pause")).json()["state"] == "paused"
    assert httpx.get(url(server, "/status")).json()["state"] == "paused"
    assert httpx.get(url(server, "/openapi.json")).status_code == 200


def test_a_stopped_server_has_given_its_port_back(rig: Rig) -> None:
    server = ApiServer(rig.service, ApiSettings(listen="127.0.0.1:0"))
    server.bind()
    port = server.port
    server.stop()
    server.serve()
    again = ApiServer(rig.service, ApiSettings(listen=f"127.0.0.1:{port}"))
    again.bind()
    again.stop()
    again.serve()


def test_a_command_that_nobody_answers_still_runs_when_the_server_stops(
    rig: Rig, wait_for: WaitFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.obeying.clear()  # as a trainer that hangs
    sent, send = list[Command](), rig.service.commands.send

    def noted(command: Command) -> "Future[Any]":
        sent.append(command)
        return send(command)

    monkeypatch.setattr(rig.service.commands, "send", noted)
    answers = list[httpx.Response]()
    with serving(rig) as server:
        where = url(server, "/checkpoints?wait=60s")
        thread = threading.Thread(target=lambda: answers.append(httpx.post(where, timeout=70)))
        thread.start()
        wait_for(lambda: sent)
    thread.join(20)
    assert [answer.status_code for answer in answers] == [202]
    assert answers[0].json()["operation"]["state"] == "running"


def test_signals_are_left_to_the_process(rig: Rig, wait_for: WaitFor) -> None:
    """The server runs on the main thread, where uvicorn would install its handlers."""
    taken: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: taken.append(number))
    server = ApiServer(rig.service, ApiSettings(listen="127.0.0.1:0"))
    server.bind()

    def ask() -> None:
        httpx.get(url(server, "/livez"), timeout=20)
        signal.raise_signal(signal.SIGTERM)
        wait_for(lambda: taken)
        assert httpx.get(url(server, "/livez"), timeout=20).status_code == 200
        server.stop()

    thread = threading.Thread(target=ask)
    try:
        thread.start()
        server.serve()
    finally:
        signal.signal(signal.SIGTERM, before)
        server.stop()
        thread.join(20)
    assert taken == [signal.SIGTERM]


def test_a_taken_port_is_one_clear_line_at_once(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"^api.listen: {listen} is taken by another process; ") as caught:
            ApiServer(rig.service, ApiSettings(listen=listen)).bind()
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_two_servers_cannot_take_one_port(rig: Rig) -> None:
    first = ApiServer(rig.service, ApiSettings(listen="127.0.0.1:0"))
    first.bind()
    with pytest.raises(ConfigError, match="is taken by another process"):
        ApiServer(rig.service, ApiSettings(listen=f"127.0.0.1:{first.port}")).bind()
    first.stop()
    first.serve()


@pytest.mark.parametrize("listen", ["203.0.113.7:8080", "no-such-host.invalid:8080", "[2001:db8::7]:8080"])
def test_an_address_that_is_not_ours_is_one_clear_line(rig: Rig, listen: str) -> None:
    with pytest.raises(ConfigError, match="is no address of this machine"):
        ApiServer(rig.service, ApiSettings(listen=listen)).bind()


def test_a_listener_on_all_addresses_only_reads(rig: Rig) -> None:
    with serving(rig, ApiSettings(listen="0.0.0.0:0")) as server:
        assert httpx.get(url(server, "/livez")).status_code == 200
        assert httpx.post(url(server, "/pause")).status_code == 403


def test_a_client_that_never_finishes_its_head_is_disconnected(
    rig: Rig, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.2)
    for beginning in (b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nhost: x\r\n"):
        with connected(server) as client:
            client.sendall(beginning)
            assert _rest(client) == b""


def test_a_second_head_that_never_ends_is_disconnected_too(
    rig: Rig, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.3)
    with connected(server) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.recv(9) == b"HTTP/1.1 "
        client.sendall(b"GET /liv")
        assert b"200 OK" in _rest(client)


def test_a_connection_is_kept_between_requests_for_longer_than_proxies_keep_it(
    rig: Rig, server: ApiServer, wait_for: WaitFor
) -> None:
    main: Any = server._main
    with connected(server) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.recv(9) == b"HTTP/1.1 "
        (connection,) = main._server.server_state.connections
        wait_for(lambda: connection.timeout_keep_alive_task is not None and connection._head_timer is not None)
        timers = connection._head_timer, connection.timeout_keep_alive_task
        assert min(timer.when() - connection.loop.time() for timer in timers) > PROXIES_KEEP_S


def test_a_connection_that_nobody_uses_is_closed_and_not_reset(
    rig: Rig, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "IDLE_TIMEOUT_S", 0.2)
    with connected(server) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        while client.recv(65536):  # raises if the connection is reset
            pass


def test_a_client_whose_body_never_comes_is_disconnected(
    rig: Rig, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "BODY_TIMEOUT_S", 0.2)
    with connected(server) as client:
        client.sendall(b"POST /pause HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n{")
        assert b"408 Request Timeout" in _rest(client)


@pytest.mark.row(27)
def test_a_body_in_chunks_without_end_is_cut_off_at_the_cap(server: ApiServer) -> None:
    """The client sends no length, so the server counts what has come, and reads little more than the cap."""
    sent, chunk = 0, b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    with connected(server) as client:
        client.sendall(b"POST /pause HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while sent < 64 * middleware.MAX_BODY_BYTES:
                client.sendall(chunk)
                sent += len(chunk)
        except (ConnectionResetError, BrokenPipeError):
            pass
        else:
            assert b"413 " in _rest(client)
    assert httpx.get(url(server, "/status")).json()["state"] == "idle"


@pytest.mark.row(27)
def test_a_body_in_chunks_that_is_too_large_is_answered_by_413(server: ApiServer) -> None:
    with connected(server) as client:
        client.sendall(b"POST /pause HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        client.sendall(b"10001\r\n" + b" " * 0x10001 + b"\r\n0\r\n\r\n")
        assert _rest(client).startswith(b"HTTP/1.1 413 ")
    assert httpx.get(url(server, "/status")).json()["state"] == "idle"


@pytest.fixture
def room_for_five(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a listener keep five connections, and wait so long for a head that only their number closes one."""
    monkeypatch.setattr(http_protocol, "MAX_CONNECTIONS", 5)
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 600.0)


@pytest.mark.usefixtures("room_for_five")
def test_silent_clients_make_room_for_a_probe(server: ApiServer) -> None:
    silent = [connected(server) for _ in range(12)]
    try:
        for _ in range(5):
            assert httpx.get(url(server, "/livez"), timeout=20).status_code == 200
        assert _rest(silent[0]) == b""
    finally:
        for client in silent:
            client.close()


@pytest.mark.row(27)
@pytest.mark.usefixtures("room_for_five")
def test_beyond_the_most_connections_the_oldest_is_closed_for_each_new_one(
    server: ApiServer, wait_for: WaitFor
) -> None:
    silent = [connected(server) for _ in range(60)]
    try:
        wait_for(lambda: sum(_is_open(client) for client in silent) <= 5)
        assert [_is_open(client) for client in silent] == [False] * 55 + [True] * 5
    finally:
        for client in silent:
            client.close()


def _is_open(client: socket.socket) -> bool:
    """Return whether the server has closed the connection; it never sends anything else."""
    client.settimeout(0)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def test_input_that_is_not_http_is_refused_without_an_internal_error(server: ApiServer) -> None:
    with connected(server) as client:
        client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        assert _rest(client).startswith(b"HTTP/1.1 400 ")


def _rest(client: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    received = b""
    try:
        while piece := client.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def test_both_loops_report_how_late_they_are(server: ApiServer, wait_for: WaitFor) -> None:
    """The rig's source reports 1 ms; the loop that answers is measured while it runs."""
    assert set(httpx.get(url(server, "/throughput")).json()["loop_lag_ms"]) == {"consumer", "api"}
    wait_for(lambda: httpx.get(url(server, "/throughput")).json()["loop_lag_ms"]["api"] > 0)
    assert httpx.get(url(server, "/throughput")).json()["loop_lag_ms"]["consumer"] == 1.0
