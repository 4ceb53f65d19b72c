"""What a server fetches from a trainer: whatever breaks off, or is no HTTP, is a trainer that does not answer."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.app.tools.serve import version_sources
from millrace.app.tools.serve.version_sources import TrainerSource
from millrace.consumers.errors import UnreachableError

OK = b"HTTP/1.1 200 OK\r\n"
BROKEN = {
    "no HTTP": b"\x15\x03\x01\x00\x02\x02\x50",
    "a chunk that is cut": OK + b"Transfer-Encoding: chunked\r\n\r\n400\r\n" + bytes(100),
    "a list that is cut": OK + b'Content-Length: 400\r\n\r\n{"exports": [',
}


@contextmanager
def answering(raw: bytes, *, hangs: bool = False) -> Iterator[str]:
    """Answer each request with these bytes; then end the connection, or wait until the client does."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            self.request.sendall(raw)
            if hangs:
                self.request.recv(1)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def fails_as_away(source: TrainerSource, folder: Path) -> None:
    """Assert that neither the list nor a version comes, and that nothing half fetched stays."""
    with pytest.raises(UnreachableError):
        source.numbers()
    with pytest.raises(UnreachableError):
        source.place(42)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
def test_what_breaks_off_or_is_no_http_is_a_trainer_that_is_away(tmp_path: Path, raw: bytes) -> None:
    with answering(raw) as url:
        fails_as_away(TrainerSource(url, tmp_path, None, None), tmp_path)


def test_an_address_that_speaks_tls_is_reported_as_such(tmp_path: Path) -> None:
    with answering(BROKEN["no HTTP"]) as url, pytest.raises(UnreachableError, match=r"not speak HTTP; .* is it https"):
        TrainerSource(url, tmp_path, None, None).numbers()


def test_a_trainer_that_hangs_in_the_middle_of_an_answer_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_ASK_S", "_FETCH_S"):
        monkeypatch.setattr(version_sources, limit, 0.1)
    with answering(OK + b"Content-Length: 400\r\n\r\n{", hangs=True) as url:
        fails_as_away(TrainerSource(url, tmp_path, None, None), tmp_path)
