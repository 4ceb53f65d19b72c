"""What the middleware demands of a request before a route gets it."""

from collections.abc import AsyncIterator

import pytest

from millrace.app.api import middleware
from millrace.app.api.authorization import ReadOnlyAuthorizer, is_loopback
from tests.app.api_rig import Client, Rig, is_problem

MUTATING = [
    "/checkpoints",
    *(f"/checkpoints/0/{command}" for command in ("restore", "pin", "unpin")),
    *("/rewind", "/pause", "/resume", "/profile"),
]


@pytest.mark.parametrize("path", MUTATING)
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.168.1.7:8080",
        "0.0.0.0:8080",
        "127.0.0.1@evil.example",
        "localhost/@evil.example",
        "localhost:x",
        "[::1",
        "",
    ],
)
def test_a_command_that_names_another_host_is_refused(standing: Client, path: str, host: str) -> None:
    is_problem(standing.post(path, {"to": 0}, headers={"host": host}), 403)
    assert standing.rig.folder.numbers() == [0]


@pytest.mark.parametrize("path", MUTATING)
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:3000", "https://127.0.0.1:8080", "", "file://"]
)
def test_a_command_from_a_page_of_another_origin_is_refused(standing: Client, path: str, origin: str) -> None:
    is_problem(standing.post(path, {"to": 0}, headers={"origin": origin}), 403)
    assert standing.rig.folder.numbers() == [0]


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "127.8.9.1"])
def test_a_command_that_names_this_machine_is_taken_from_our_page_too(api: Client, host: str) -> None:
    assert api.post("/pause", headers={"host": host}).status_code == 200
    assert api.post("/resume", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


def test_reads_may_name_any_host(api: Client) -> None:
    assert api.get("/livez", headers={"host": "millrace.default.svc", "origin": "https://grafana"}).status_code == 200


@pytest.mark.parametrize("path", [*MUTATING, "/nope"])
def test_a_listener_that_others_can_reach_changes_nothing(rig: Rig, path: str) -> None:
    client = Client(rig, authorizer=ReadOnlyAuthorizer())
    body = is_problem(client.post(path, {"to": 0}), 403)
    assert "api.tokens_dir" in body["fix"]
    assert client.get("/status").status_code == 200
    client.close()
    assert rig.folder.numbers() == [0]


@pytest.mark.parametrize("path", [*MUTATING, "/nope"])
def test_a_body_that_is_too_large_is_refused_with_and_without_a_length(api: Client, path: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1024

    is_problem(api.post(path, content=b" " * 64 * 1024 + b"{}"), 413)
    is_problem(api.post(path, content=pieces()), 413)
    is_problem(api.post(path, content=b"", headers={"content-length": "9" * 5000}), 413)


def test_a_body_of_the_largest_size_is_read(api: Client) -> None:
    body = b'{"to": 0, "dry_run": true}'
    padded = body + b" " * (middleware.MAX_BODY_BYTES - len(body))
    answer = api.post("/rewind", content=padded, headers={"content-type": "application/json"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("host", "ours"),
    [("127.0.0.1", True), ("::1", True), ("localhost.", True), ("10.0.0.1", False), ("::", False), (None, False)],
)
def test_what_is_loopback(host: str | None, *, ours: bool) -> None:
    assert is_loopback(host) is ours
