"""Tokens for reading: what needs one, which tokens are good for what, and what stays open."""

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from millrace.app.api import middleware
from millrace.app.api.authorization import LoopbackAuthorizer, ReadAuthorizer, TokenAuthorizer, is_open
from millrace.app.api.server import ApiServer
from millrace.app.api.tokens import Tokens
from millrace.app.settings.sections.api import ApiSettings
from millrace.consumers.errors import ConfigError
from tests.app.api.readable import readable
from tests.app.api_rig import Client, Rig, is_problem, serving

COMMANDS, READS, NOBODYS = "correct-horse-battery-staple", "a-token-of-prometheus", "a-token-of-nobody-here"
OPEN = {"/livez", "/readyz", "/health", "/", "/page/charts.js", "/docs", "/docs/index.html", "/openapi.json"}


def folder_with(folder: Path, name: str, token: str) -> Path:
    folder.mkdir()
    (folder / name).write_text(token)
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> ApiSettings:
    return ApiSettings(
        listen="127.0.0.1:0",
        tokens_dir=folder_with(tmp_path / "tokens", "ops", COMMANDS),
        read_tokens_dir=folder_with(tmp_path / "readers", "prometheus", READS),
    )


@pytest.fixture
def closed(rig: Rig, settings: ApiSettings) -> Iterator[Client]:
    """Return a client of a service where reads need a token."""
    assert settings.tokens_dir is not None
    assert settings.read_tokens_dir is not None
    tokens, readers = Tokens.open(settings.tokens_dir), Tokens.open(settings.read_tokens_dir, "api.read_tokens_dir")
    client = Client(rig, authorizer=TokenAuthorizer(tokens, readers), readers=ReadAuthorizer(readers, tokens))
    yield client
    client.close()


def bearing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_every_read_needs_a_token_but_probes_and_files(closed: Client) -> None:
    paths = readable(closed)
    assert set(paths) >= OPEN
    for path in [*paths, "/nothing", "/page/updates?since=0", "/page/nested/updates", "/docs/x/y", "/status/"]:
        for method in ("GET", "HEAD"):
            answer = closed.ask(method, path)
            assert (answer.status_code == 401) == (path not in OPEN), path
        if path not in OPEN:
            refused = is_problem(closed.get(path), 401)
            assert "Reading needs a token" in refused["detail"]
            assert closed.get(path).headers["www-authenticate"] == 'Bearer realm="millrace"'


@pytest.mark.parametrize("path", ["/page/%75pdates", "/page/../status", "//status", "/livez/../status", "/%73tatus"])
def test_no_spelling_of_a_path_gets_round_the_token(rig: Rig, settings: ApiSettings, path: str) -> None:
    with serving(rig, settings) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        request = client.build_request("GET", "/")
        request.url = request.url.copy_with(raw_path=path.encode())
        assert client.send(request).status_code == 401


def test_tokens_of_both_folders_may_read(closed: Client) -> None:
    for token in (READS, COMMANDS):
        for path in ("/status", "/metrics", "/checkpoints/0", "/events"):
            assert closed.get(path, headers=bearing(token)).status_code == 200, path
    wrong = closed.get("/status", headers=bearing(NOBODYS))
    is_problem(wrong, 401)
    assert wrong.headers["www-authenticate"] == 'Bearer realm="millrace", error="invalid_token"'


def test_a_token_for_reading_sends_no_command(closed: Client, rig: Rig) -> None:
    refused = is_problem(closed.post("/pause", headers=bearing(READS)), 403)
    assert (refused["title"], refused["fix"]) == (
        "Token Only Reads",
        "Send a token of the folder that api.tokens_dir names.",
    )
    is_problem(closed.post("/pause", headers=bearing(NOBODYS)), 401)
    is_problem(closed.post("/pause"), 401)
    counted = closed.get("/metrics", headers=bearing(READS)).text
    assert 'order="pause",outcome="unauthorized"} 3.0' in counted, "each refusal of a command is in the audit"
    assert closed.post("/pause", headers=bearing(COMMANDS)).json()["reason"] == "asked to by ops over HTTP"


def test_without_tokens_for_commands_the_answer_to_one_needs_a_token_for_reading(
    rig: Rig, settings: ApiSettings
) -> None:
    assert settings.read_tokens_dir is not None
    client = Client(rig, authorizer=LoopbackAuthorizer(), readers=ReadAuthorizer(Tokens.open(settings.read_tokens_dir)))
    is_problem(client.post("/rewind", {"to": 0, "dry_run": True}), 401)
    assert client.post("/rewind", {"to": 0, "dry_run": True}, headers=bearing(READS)).status_code == 200
    client.close()


def test_a_listener_reads_both_folders_and_takes_changes_at_once(rig: Rig, settings: ApiSettings) -> None:
    assert settings.read_tokens_dir is not None
    with serving(rig, settings) as server:
        url = f"http://127.0.0.1:{server.port}/status"
        assert httpx.get(url).status_code == 401
        assert [httpx.get(url, headers=bearing(token)).status_code for token in (READS, COMMANDS)] == [200, 200]
        (settings.read_tokens_dir / "prometheus").unlink()
        assert httpx.get(url, headers=bearing(READS)).status_code == 401
        assert httpx.get(f"http://127.0.0.1:{server.port}/livez").status_code == 200


def test_a_stream_ends_when_its_token_is_taken_away(
    rig: Rig, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.read_tokens_dir is not None
    monkeypatch.setattr(middleware, "RECHECK_S", 0.0)
    with serving(rig, settings) as server, httpx.Client(timeout=20) as client:
        address = f"http://127.0.0.1:{server.port}/page/updates"
        with client.stream("GET", address, headers=bearing(READS)) as stream:
            lines = stream.iter_lines()
            assert [next(lines).split(":")[0], next(lines), next(lines).split(":")[0]] == ["retry", "", "data"]
            (settings.read_tokens_dir / "prometheus").unlink()
            assert len(list(itertools.islice(lines, 20))) < 20


def test_a_folder_for_reading_that_breaks_is_named(
    closed: Client, settings: ApiSettings, caplog: pytest.LogCaptureFixture
) -> None:
    assert settings.read_tokens_dir is not None
    (settings.read_tokens_dir / "broken").write_text("canary with spaces")
    with caplog.at_level(logging.ERROR):
        assert closed.get("/status", headers=bearing(READS)).status_code == 200
    assert "api.read_tokens_dir: " in caplog.text
    assert "canary" not in caplog.text
    for file in settings.read_tokens_dir.iterdir():
        file.unlink()
    settings.read_tokens_dir.rmdir()
    assert "api.read_tokens_dir" in is_problem(closed.get("/status", headers=bearing(READS)), 503)["fix"]


def test_an_empty_folder_for_reading_is_one_clear_line_at_the_start(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "readers").mkdir()
    settings = ApiSettings(listen="127.0.0.1:0", read_tokens_dir=tmp_path / "readers")
    with pytest.raises(ConfigError, match=r"^api\.read_tokens_dir: .*readers holds no token; write one file"):
        ApiServer(rig.service, settings).bind()


@pytest.mark.parametrize("path", ["/page/updates", "/page/", "/livez/x", "/docs/a/b", "/status", ""])
def test_a_path_that_is_not_listed_is_closed(path: str) -> None:
    assert not is_open(path)
