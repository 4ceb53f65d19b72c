"""Probes on their own listener."""

import threading
from collections.abc import Iterator

import httpx
import pytest

from millrace.app.api.server import ApiServer
from millrace.app.settings.sections.api import ApiSettings
from millrace.consumers.errors import ConfigError
from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import Rig, is_problem, serving


@pytest.fixture
def server(rig: Rig) -> Iterator[ApiServer]:
    """Run a server with both listeners."""
    with serving(rig, ApiSettings(listen="127.0.0.1:0", probes="127.0.0.1:0")) as server:
        yield server
    assert not any(thread.name == "probes" for thread in threading.enumerate())


def at_probes(server: ApiServer, path: str) -> str:
    return f"http://127.0.0.1:{server.probes_port}{path}"


def test_probes_are_answered_on_both_listeners_and_say_the_same(server: ApiServer, rig: Rig) -> None:
    assert server.probes_port not in {None, 0, server.port}
    rig.kill_trainer()
    for path, status in (("/livez", 503), ("/readyz", 503), ("/livez?verbose", 503)):
        main = httpx.get(f"http://127.0.0.1:{server.port}{path}")
        own = httpx.get(at_probes(server, path))
        assert (own.status_code, own.json()["reasons"]) == (status, main.json()["reasons"])
        assert set(own.json()) == set(main.json())


def test_a_probe_by_head_has_the_status_of_one_by_get_and_no_body(server: ApiServer, rig: Rig) -> None:
    main, own = f"http://127.0.0.1:{server.port}", at_probes(server, "")
    asked = [f"{main}/health", *(f"{at}{path}" for at in (main, own) for path in ("/livez", "/readyz"))]
    for status in (200, 503):
        for url in asked:
            looked, told = httpx.head(url), httpx.get(url)
            assert (looked.status_code, told.status_code) == (status, status), url
            assert looked.content == b""
            assert looked.headers["content-type"] == told.headers["content-type"] == "application/json"
            assert looked.headers["cache-control"] == "no-store"
        rig.service.phases.enter(Phase.FAILED, "the topic is gone")
    assert httpx.post(f"{main}/livez").headers["allow"] == "GET, HEAD"
    assert httpx.head(f"{own}/status").status_code == 404


def test_the_listener_of_probes_answers_nothing_else(server: ApiServer, rig: Rig) -> None:
    for path in ("/", "/status", "/checkpoints", "/docs", "/openapi.json", "/..%2f..%2fetc%2fpasswd"):
        is_problem(httpx.get(at_probes(server, path)), 404)
    for path in ("/pause", "/checkpoints", "/livez"):
        assert is_problem(httpx.post(at_probes(server, path)), 405)["fix"] == "Ask the address of api.listen."
    assert rig.folder.numbers() == [0]


def test_probes_are_answered_while_the_main_loop_is_blocked(server: ApiServer, rig: Rig) -> None:
    """An answer that never ends blocks the main loop, and no probe."""
    stuck, release = threading.Event(), threading.Event()
    look = rig.service.board

    class Stuck:
        group = None

        @property
        def latest(self) -> object:
            if threading.current_thread().name == "http":
                stuck.set()
                release.wait(20)
            return look.latest

    rig.service.board = Stuck()  # type: ignore[assignment] # what a snapshot reads, and waits for on that loop
    try:
        assert stuck.wait(20)
        for _ in range(5):
            assert httpx.get(at_probes(server, "/livez")).status_code == 200
    finally:
        release.set()
        rig.service.board = look


def test_a_taken_address_of_the_probes_is_one_clear_line_and_frees_the_other(rig: Rig) -> None:
    first = ApiServer(rig.service, ApiSettings(listen="127.0.0.1:0", probes="127.0.0.1:0"))
    first.bind()
    settings = ApiSettings(listen="127.0.0.1:0", probes=f"127.0.0.1:{first.probes_port}")
    with pytest.raises(ConfigError, match=f"^api.probes: {settings.probes} is taken by another process; "):
        ApiServer(rig.service, settings).bind()
    first.stop()
    first.serve()


def test_both_listeners_on_one_address_are_refused_by_the_settings() -> None:
    with pytest.raises(ValueError, match=r"127.0.0.1:8080 is api.listen too"):
        ApiSettings(listen="127.0.0.1:8080", probes="127.0.0.1:8080")
