"""Tokens: who may send commands, who sent one, and how their folder changes while the service runs."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.app.api.audit import COMMANDS, OUTCOMES
from millrace.app.api.authorization import TokenAuthorizer
from millrace.app.api.server import ApiServer
from millrace.app.api.tokens import Tokens
from millrace.app.settings.secret_files import exposure
from millrace.app.settings.sections.api import ApiSettings
from millrace.consumers.errors import ConfigError
from millrace.training.errors import CheckpointError
from tests.app.api_rig import Client, Rig, is_problem
from tests.app.metrics_text import Scrape

TOKEN = "correct-horse-battery-staple"
OTHER = "another-token-of-another-client"
READS = {"get", "head", "options"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with the token of `ops`."""
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "ops").write_text(f"{TOKEN}\n")
    return folder


@pytest.fixture
def guarded(rig: Rig, folder: Path) -> Iterator[Client]:
    """Return a client of a service that needs tokens."""
    client = Client(rig, authorizer=TokenAuthorizer(Tokens.open(folder)))
    yield client
    client.close()


def bearing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def mutating(client: Client) -> list[tuple[str, str]]:
    """Return every method and path of the OpenAPI document that changes something."""
    paths = client.seen("/openapi.json")["paths"]
    return [
        (method.upper(), re.sub(r"\{\w+\}", "0", path))
        for path, methods in paths.items()
        for method in methods
        if method not in READS
    ]


@pytest.mark.row(27)
def test_every_route_that_changes_something_needs_a_token(guarded: Client, rig: Rig) -> None:
    routes = mutating(guarded)
    assert len(routes) >= 6
    for method, path in routes:
        without = guarded.ask(method, path, json={"to": 0})
        assert is_problem(without, 401)["fix"].startswith("Send the header Authorization: Bearer TOKEN")
        assert without.headers["www-authenticate"] == 'Bearer realm="millrace"'
        wrong = guarded.ask(method, path, json={"to": 0}, headers=bearing(OTHER))
        is_problem(wrong, 401)
        assert wrong.headers["www-authenticate"] == 'Bearer realm="millrace", error="invalid_token"'
    assert rig.folder.numbers() == [0]
    for method, path in routes:
        assert guarded.ask(method, path, json={}, headers=bearing(TOKEN)).status_code != 401


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"])
def test_a_command_to_an_unknown_route_needs_a_token_too(guarded: Client, method: str) -> None:
    is_problem(guarded.ask(method, "/nope"), 401)
    assert guarded.ask(method, "/nope", headers=bearing(TOKEN)).status_code == 404


def test_reads_need_no_token(guarded: Client) -> None:
    for path in ("/livez", "/readyz", "/status", "/checkpoints", "/openapi.json"):
        assert guarded.get(path).status_code == 200


@pytest.mark.parametrize(
    "brought",
    ["", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer café"],
)
def test_anything_but_the_whole_token_is_refused(guarded: Client, brought: str) -> None:
    is_problem(guarded.post("/pause", headers={b"authorization": brought.encode("latin-1")}), 401)


def test_two_tokens_are_refused(guarded: Client) -> None:
    both = [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {OTHER}")]
    is_problem(guarded.post("/pause", headers=both), 401)


def test_a_token_is_enough_from_anywhere(guarded: Client) -> None:
    far = {"host": "millrace.default.svc:8080", "origin": "https://millrace.example"}
    assert guarded.post("/pause", headers={**far, **bearing(TOKEN)}).status_code == 200
    assert guarded.post("/pause", headers={**far, "authorization": f"bearer  {TOKEN} "}).status_code == 200


def test_the_sender_is_named_in_the_checkpoint_and_in_the_log(
    guarded: Client, caplog: pytest.LogCaptureFixture
) -> None:
    made = guarded.post("/checkpoints?wait=10s", headers=bearing(TOKEN))
    assert made.status_code == 201
    assert made.json()["checkpoint"]["ordered_by"] == "ops over HTTP"
    assert guarded.post("/pause", headers=bearing(TOKEN)).json()["reason"] == "asked to by ops over HTTP"
    taken, line, *paused = [record for record in caplog.records if record.name == "millrace.app.api.audit"]
    assert paused[-1].getMessage() == "POST /pause: 200, ordered by ops over HTTP"
    assert re.fullmatch("POST /checkpoints: taken as [0-9a-f]{12}, ordered by ops over HTTP", taken.getMessage())
    assert line.getMessage() == "POST /checkpoints: 201, ordered by ops over HTTP"
    facts = {name: getattr(line, name) for name in ("by", "client", "status", "location")}
    assert facts == {"by": "ops over HTTP", "client": "127.0.0.1", "status": 201, "location": "/checkpoints/1"}


@pytest.mark.parametrize(
    "path",
    ["/checkpoints", "/rewind", "/checkpoints/0/restore", "/pause", "/resume", "/profile"],
)
def test_a_command_is_logged_before_the_trainer_carries_it_out(
    guarded: Client, rig: Rig, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """So the log names the sender even if the process is killed meanwhile."""
    lines: list[tuple[str, bool]] = []

    def note(line: logging.LogRecord) -> bool:
        lines.append((line.getMessage(), rig.obeying.is_set()))
        rig.obeying.set()
        return True

    rig.obeying.clear()
    audit = logging.getLogger("millrace.app.api.audit")
    audit.addFilter(note)
    try:
        with caplog.at_level(logging.INFO, audit.name):
            answer = guarded.post(f"{path}?wait=20s", {"to": 0} if path == "/rewind" else None, headers=bearing(TOKEN))
    finally:
        audit.removeFilter(note)
    (told, obeyed), (outcome, answered) = lines
    route = path.replace("/0/", "/{number}/")
    assert told.startswith(f"POST {route}: taken as ")
    assert outcome == f"POST {route}: {answer.status_code}, ordered by ops over HTTP"
    assert (obeyed, answered) == (False, True)


def test_a_refused_command_is_logged_without_what_was_sent(
    guarded: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("millrace.app.api.audit.refusals"), "filters", [])
    guarded.post("/checkpoints/canary-4711/restore", {"reason": "canary-4711"}, headers=bearing("canary-4711"))
    guarded.post("/checkpoints/canary-4711/restore?wait=canary-4711", headers=bearing(TOKEN))
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("millrace.app.api.audit")]
    assert lines == [
        "a command from 127.0.0.1 was refused: 401 Unauthorized",
        "POST /checkpoints/{number}/restore: 422, ordered by ops over HTTP",
    ]
    assert "canary" not in caplog.text


def test_no_flood_of_refusals_hides_the_outcome_of_a_command(
    guarded: Client, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(40):
        guarded.post("/checkpoints")
    turned_away = [record for record in caplog.records if record.name == "millrace.app.api.audit.refusals"]
    assert len(turned_away) <= 30
    rig.refuse_with = CheckpointError("no room")
    assert guarded.post("/checkpoints?wait=20s", headers=bearing(TOKEN)).status_code == 503
    assert guarded.post("/rewind", {"to": 99}, headers=bearing(TOKEN)).status_code == 404
    told = [
        record for record in caplog.records if record.name == "millrace.app.api.audit" and hasattr(record, "status")
    ]
    assert [(record.getMessage(), record.levelname) for record in told] == [
        ("POST /checkpoints: 503, ordered by ops over HTTP", "WARNING"),
        ("POST /rewind: 404, ordered by ops over HTTP", "WARNING"),
    ]


def test_every_command_is_counted_by_its_answer(guarded: Client, rig: Rig) -> None:
    counted = guarded.get("/metrics").text.count("\nmillrace_orders_total{")
    assert counted == len(COMMANDS) * len(OUTCOMES), "each is there before there is any, so that its first one shows"
    for method, path in mutating(guarded):
        guarded.ask(method, path, json={"to": 0})
    ours = {"headers": bearing(TOKEN)}
    assert guarded.post("/pause", **ours).status_code == 200
    assert guarded.post("/rewind", {"to": 99}, **ours).status_code == 404
    assert guarded.ask("DELETE", "/checkpoints/0", **ours).status_code == 405
    assert guarded.post("/resume", content=b" " * 65 * 1024, **ours).status_code == 413
    rig.refuse_with = CheckpointError("no room")
    assert guarded.post("/checkpoints?wait=20s", **ours).status_code == 503
    found = Scrape(guarded.get("/metrics").text)
    assert {
        (order, outcome): count
        for order in COMMANDS
        for outcome in OUTCOMES
        if (count := found.value("orders_total", order=order, outcome=outcome))
    } == {
        **{(order, "unauthorized"): 1 for order in COMMANDS if order != "other"},
        ("pause", "accepted"): 1,
        ("rewind", "refused"): 1,
        ("other", "refused"): 1,
        ("resume", "refused"): 1,
        ("save", "failed"): 1,
    }


def test_a_command_that_ends_in_an_internal_error_is_logged_and_counted(
    guarded: Client, rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(rig.service.ledger, "statistics", lambda: 1 / 0)
        is_problem(guarded.post("/pause", headers=bearing(TOKEN)), 500)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("millrace.app.api.audit")]
    assert lines == ["POST /pause: 500, ordered by ops over HTTP"]
    assert Scrape(guarded.get("/metrics").text).value("orders_total", order="pause", outcome="failed") == 1


def test_a_token_is_replaced_added_and_removed_without_a_restart(guarded: Client, folder: Path) -> None:
    (folder / "ops").write_text(OTHER)
    assert guarded.post("/pause", headers=bearing(TOKEN)).status_code == 401
    assert guarded.post("/pause", headers=bearing(OTHER)).status_code == 200
    (folder / "second").write_text(TOKEN)
    assert guarded.post("/pause", headers=bearing(TOKEN)).json()["reason"] == "asked to by second over HTTP"
    (folder / "second").unlink()
    (folder / "ops").unlink()
    assert {guarded.post("/pause", headers=bearing(token)).status_code for token in (TOKEN, OTHER)} == {401}


def test_a_folder_that_is_replaced_through_a_link_is_followed(rig: Rig, tmp_path: Path) -> None:
    """Kubernetes does this: the files are links through `..data`, which a rename makes point elsewhere."""
    folder = tmp_path / "secret"
    for name, token in (("..first", TOKEN), ("..second", OTHER)):
        (folder / name).mkdir(parents=True)
        (folder / name / "ops").write_text(token)
    (folder / "..data").symlink_to("..first")
    (folder / "ops").symlink_to("..data/ops")
    client = Client(rig, authorizer=TokenAuthorizer(Tokens.open(folder)))
    assert client.post("/pause", headers=bearing(TOKEN)).json()["reason"] == "asked to by ops over HTTP"
    (folder / "..new").symlink_to("..second")
    (folder / "..new").rename(folder / "..data")
    assert client.post("/pause", headers=bearing(TOKEN)).status_code == 401
    assert client.post("/pause", headers=bearing(OTHER)).status_code == 200
    client.close()


def test_a_folder_that_disappears_refuses_every_command_and_says_so(guarded: Client, folder: Path) -> None:
    (folder / "ops").unlink()
    folder.rmdir()
    assert "no such file" in is_problem(guarded.post("/pause", headers=bearing(TOKEN)), 503)["detail"]
    is_problem(guarded.post("/pause"), 401)


def test_a_file_that_becomes_invalid_is_logged_once_and_ignored(
    guarded: Client, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "broken").write_text("canary with spaces")
    for _ in range(3):
        assert guarded.post("/pause", headers=bearing(TOKEN)).status_code == 200
    (line,) = [record.getMessage() for record in caplog.records if record.name == "millrace.app.api.tokens"]
    assert "holds what no header can carry" in line
    assert "canary" not in caplog.text


def test_hidden_files_and_folders_are_no_tokens(folder: Path) -> None:
    (folder / ".gitkeep").touch()
    (folder / "lost+found").mkdir()
    assert Tokens.open(folder).owner(TOKEN) == "ops"
    assert Tokens.open(folder).owner("") is None


def test_a_token_that_every_user_can_read_is_warned_about_at_the_start(
    token: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Tokens.open(token.parent).owner(token.read_text()) == "ops"
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("WARNING", f"api.tokens_dir: {exposure(token)}")
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (None, "", "holds no token; write one file per token"),
        ("ops", "\n", "/ops is empty; write a token into it"),
        ("ops", "short", "/ops holds a token of another length than 16 to 4096"),
        ("ops", "x" * 5000, "/ops holds a token of another length than 16 to 4096"),
        ("ops", "canary canary canary canary", "/ops holds what no header can carry"),
        ("ops", "canärycanärycanärycanäry", "/ops holds what no header can carry"),
        ("two words", TOKEN, "/two words is no name of an owner"),
    ],
)
def test_an_unusable_folder_is_one_clear_line_at_the_start(
    rig: Rig, tmp_path: Path, name: str | None, content: str, complaint: str
) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    if name is not None:
        (folder / name).write_text(content)
    with pytest.raises(ConfigError) as caught:
        ApiServer(rig.service, ApiSettings(listen="127.0.0.1:0", tokens_dir=folder)).bind()
    text = str(caught.value)
    assert text.startswith("api.tokens_dir: ")
    assert complaint in text
    assert "\n" not in text
    assert "canary" not in text


def test_a_missing_folder_is_one_clear_line_at_the_start(rig: Rig, tmp_path: Path) -> None:
    settings = ApiSettings(listen="127.0.0.1:0", tokens_dir=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="nowhere cannot be read: no such file or directory; make the folder"):
        ApiServer(rig.service, settings).bind()


def test_no_token_is_in_the_repr_of_an_object(folder: Path) -> None:
    tokens = Tokens.open(folder)
    assert TOKEN not in f"{tokens!r} {vars(tokens)} {tokens._read()!r}"
