"""HEAD, and what every answer says to caches."""

from collections.abc import Iterator

import httpx
import pytest

from tests.app.api.readable import readable
from tests.app.api_rig import Client, Rig, serving

ENDLESS = ("/page/updates",)


def test_head_is_answered_as_get_without_the_body_on_every_path(api: Client) -> None:
    paths = [path for path in readable(api) if path not in ENDLESS]
    assert len(paths) > 15
    for path in paths:
        looked, told = api.ask("HEAD", path), api.get(path)
        assert looked.status_code == told.status_code, path
        assert looked.headers.get("content-type") == told.headers.get("content-type"), path
        assert "content-length" in looked.headers
        assert looked.content == b""


@pytest.fixture
def url(rig: Rig) -> Iterator[str]:
    with serving(rig) as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.mark.parametrize("path", ["/page/updates", "/events"])
def test_head_of_an_endless_stream_ends(url: str, path: str) -> None:
    with httpx.Client(timeout=20) as client:
        for _ in range(2):
            answer = client.head(f"{url}{path}", headers={"accept": "text/event-stream"})
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"].startswith("text/event-stream")
        assert client.get(f"{url}/livez").status_code == 200, "the connection is still good"


def test_head_keeps_a_real_connection_in_step(url: str) -> None:
    with httpx.Client(timeout=20) as client:
        for path in ("/status", "/metrics", "/page/charts.js", "/nothing"):
            length = int(client.head(f"{url}{path}").headers["content-length"])
            assert length > 100
            assert client.get(f"{url}{path}").num_bytes_downloaded > 100


def test_head_of_a_command_is_no_command(api: Client) -> None:
    answer = api.ask("HEAD", "/pause")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert api.seen("/status")["state"] == "idle"


def test_no_cache_keeps_an_answer_and_page_files_are_checked_by_their_tags(api: Client) -> None:
    for path in readable(api):
        if path in ENDLESS:
            continue
        kept = api.get(path).headers["cache-control"]
        is_file = path in ("/", "/docs") or path.startswith(("/page/", "/docs/"))
        assert kept == ("no-cache" if is_file else "no-store"), path
    for answer in (api.post("/pause"), api.get("/nothing"), api.post("/nothing"), api.post("/pause", "x" * 70_000)):
        assert answer.headers["cache-control"] == "no-store"
