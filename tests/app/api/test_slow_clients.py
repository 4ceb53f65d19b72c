"""Many slow clients on a real socket: they wait, do not read or do not leave, and a probe must get in."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from millrace.app.api import http_protocol, listener
from millrace.app.api.checkpoint_reads import CheckpointReader
from millrace.app.api.server import ApiServer
from millrace.app.settings.sections.api import ApiSettings
from millrace.training.telemetry.events import EventKind
from tests.app.api_rig import Rig
from tests.conftest import WaitFor

MOST = 5
NARROW = 4096


@pytest.fixture
def server(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Run a server for five clients with small socket buffers; it stops at once, whatever waits."""
    monkeypatch.setattr(http_protocol, "MAX_CONNECTIONS", MOST)
    monkeypatch.setattr(listener, "_SHUTDOWN_TIMEOUT_S", 0.1)
    server = ApiServer(rig.service, ApiSettings(listen="127.0.0.1:0"))
    server.bind()
    of_main(server)._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NARROW)
    thread = threading.Thread(target=server.serve, name="http")
    thread.start()
    yield server
    server.stop()
    thread.join(20)
    assert not thread.is_alive()


def of_main(server: ApiServer) -> Any:
    return server._main


def connections(server: ApiServer) -> set[Any]:
    """Return the number of connections that uvicorn holds."""
    return set(of_main(server)._server.server_state.connections)


@pytest.fixture
def hold_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have a disk that does not answer, so that a listing of checkpoints waits from now on."""

    async def wait_for_ever(_reader: CheckpointReader) -> None:
        await asyncio.Event().wait()

    return lambda: monkeypatch.setattr(CheckpointReader, "listing", wait_for_ever)


@pytest.fixture
def clients(server: ApiServer) -> Iterator[Callable[[bytes], socket.socket]]:
    """Return how to open clients that send something and read nothing; all are closed in the end."""
    with ExitStack() as leaving:

        def come(say: bytes) -> socket.socket:
            client = leaving.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW)
            client.settimeout(20)
            client.connect(("127.0.0.1", server.port))
            client.sendall(say)
            return client

        yield come


Come = Callable[[bytes], socket.socket]


def asking(path: str, method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{more}\r\n".encode()


def probed(server: ApiServer, path: str = "/livez") -> int:
    return httpx.get(f"http://127.0.0.1:{server.port}{path}", timeout=20).status_code


@pytest.mark.row(27)
@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz"])
def test_clients_that_wait_for_their_answers_make_room_for_a_probe(
    server: ApiServer, clients: Come, hold_up: Callable[[], None], path: str
) -> None:
    hold_up()
    for _ in range(3 * MOST):
        clients(asking("/checkpoints"))
    assert [probed(server, path) for _ in range(3)] == [200] * 3


@pytest.mark.row(27)
def test_probes_whose_bodies_never_come_make_room_for_a_complete_one(server: ApiServer, clients: Come) -> None:
    for _ in range(3 * MOST):
        clients(asking("/livez", more="content-length: 5\r\n"))
    assert [probed(server) for _ in range(3)] == [200] * 3


@pytest.mark.row(27)
def test_clients_that_never_read_make_room_for_a_probe(
    server: ApiServer, clients: Come, monkeypatch: pytest.MonkeyPatch, wait_for: WaitFor
) -> None:
    # On a busy machine the first would be disconnected for this before the last one's answers fill its buffers.
    monkeypatch.setattr(http_protocol, "WRITE_TIMEOUT_S", 300.0)
    for _ in range(MOST):
        clients(asking("/livez") * 800)
    wait_for(lambda: sum(one.flow.write_paused for one in connections(server)) == MOST, 120)
    assert [probed(server) for _ in range(3)] == [200] * 3


LAST = asking("/livez", more="connection: close\r\n")


@pytest.mark.parametrize(
    "said",
    [asking("/livez") * 800, asking("/livez") * 100, asking("/livez") * 100 + LAST],
    ids=["more than the server holds", "less", "less, and then no more"],
)
def test_a_client_that_never_reads_is_disconnected(
    server: ApiServer, clients: Come, said: bytes, monkeypatch: pytest.MonkeyPatch, wait_for: WaitFor
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.3)
    monkeypatch.setattr(http_protocol, "IDLE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(http_protocol, "WRITE_TIMEOUT_S", 0.3)
    client = clients(said)
    wait_for(lambda: of_main(server)._server.server_state.total_requests)
    wait_for(lambda: not connections(server))
    client.close()


def test_a_listener_that_never_reads_is_disconnected_without_an_error(
    rig: Rig,
    server: ApiServer,
    clients: Come,
    monkeypatch: pytest.MonkeyPatch,
    wait_for: WaitFor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(http_protocol, "WRITE_TIMEOUT_S", 0.3)
    for _ in range(200):
        rig.service.events.report(EventKind.PAUSED, "Paused." * 100)
    clients(asking("/events", more="accept: text/event-stream\r\n"))
    wait_for(lambda: connections(server))
    wait_for(lambda: not connections(server))
    wait_for(lambda: not of_main(server)._server.server_state.tasks)
    assert [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}] == []
