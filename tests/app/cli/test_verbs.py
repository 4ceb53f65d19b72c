"""Every verb of the command line, and those that ask a service which runs, over a real socket."""

import http.server
import io
import json
import shlex
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console
from typer.testing import CliRunner

from millrace.app.api.server import ApiServer
from millrace.app.cli.command_list import application
from millrace.app.settings.sections.api import ApiSettings
from millrace.app.tools.status_view import StatusReadings, _number, drawn, has_figures, sparkline
from millrace.consumers.errors import DataLossError, MillraceError
from millrace.training.errors import CheckpointError, CorruptError, MissingCheckpointError
from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import P0, Rig
from tests.app.groups import group, member
from tests.typed import understood, verbs

NO_JSON = {
    "run": "it is the service: logs.format says how it speaks",
    "serve": "it is a process that runs: logs.format says how it speaks",
    "data-service dispatcher": "it is a process that runs, and logs",
    "data-service worker": "it is a process that runs, and logs",
    "archive": "it is a process that runs: logs.format says how it speaks",
    "config schema": "it prints JSON and nothing else",
    "completion": "it prints a shell's script and nothing else",
}


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_help_with_an_example_that_could_be_typed(verb: str) -> None:
    told = " ".join((verbs()[verb].help or "").split())
    program, *words = shlex.split(told.partition("Example: ")[2].partition(" > ")[0])
    assert program == "millrace"
    assert understood(words) == verb


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_can_answer_as_json(verb: str) -> None:
    options = {option for parameter in verbs()[verb].params for option in parameter.opts}
    assert ("--json" in options) != (verb in NO_JSON)


@pytest.fixture
def url(rig: Rig) -> Iterator[str]:
    """Give the address of a service that asks for no token."""
    yield from served(rig, ApiSettings(listen="127.0.0.1:0"))


def served(rig: Rig, settings: ApiSettings) -> Iterator[str]:
    server = ApiServer(rig.service, settings)
    server.bind()
    thread = threading.Thread(target=server.serve, name="http")
    thread.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()
    thread.join(20)
    assert not thread.is_alive()


def run(*arguments: str, **environ: str) -> str:
    result = CliRunner().invoke(application, [*arguments], env=environ, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str, **environ: str) -> MillraceError:
    result = CliRunner().invoke(application, [*arguments], env=environ)
    assert isinstance(result.exception, MillraceError), result.output
    return result.exception


def test_a_pause_lasts_until_resume(url: str) -> None:
    assert run("pause", "--url", url) == "paused; `millrace resume` continues learning\n"
    assert json.loads(run("status", "--url", url, "--json"))["state"] == "paused"
    assert json.loads(run("resume", "--url", url, "--json"))["state"] == "idle"
    assert json.loads(run("status", "--url", url, "--json"))["state"] == "idle"


def test_a_checkpoint_is_made_and_its_note_kept(url: str, rig: Rig) -> None:
    said = run("checkpoints", "save", "--url", url, "--note", "before the\nnew schema")
    assert rig.last is not None
    assert said == f"checkpoint {rig.last.number} is durable, at step {rig.last.step}\n"
    assert rig.last.note == "before the new schema"


def test_rewind_by_address_rewinds(url: str, rig: Rig) -> None:
    plan = json.loads(run("rewind", "--url", url, "--to", "0", "--dry-run", "--json"))
    assert plan["to"] == 0
    said = run("rewind", "--url", url, "--to", "0")
    assert rig.last is not None
    assert said.startswith(f"checkpoint {rig.last.number} is checkpoint 0 again")


def test_status_shows_the_verdict_and_the_balance_where_there_is_no_terminal(url: str) -> None:
    told = json.loads(run("status", "--url", url, "--json"))
    shown = run("status", "--url", url)
    assert told["verdict"] in shown
    assert "it balances" in shown
    assert f"checkpoint {told['checkpoint']['number']}, " in shown


def test_status_shows_how_many_lists_were_cut_and_in_which_feature(url: str, rig: Rig) -> None:
    rig.produce(P0, 8)
    facts = rig.feed.facts_of(rig.draw().facts.number)
    assert "cut in" not in run("status", "--url", url)
    (span,) = facts.spans
    rig.service.ledger.settle(replace(facts, spans=(replace(span, truncated={"words": 3, "tags": 1}),)))
    assert json.loads(run("status", "--url", url, "--json"))["records"]["truncated"] == {"words": 3, "tags": 1}
    assert ": it balances; 3 cut in words; 1 cut in tags\n" in run("status", "--url", url)


def test_the_service_must_be_named_one_way(url: str, rig: Rig) -> None:
    config = rig.folder.root.parents[1] / "clicks.yaml"
    for arguments in (["status"], ["pause", "--url", url, "-c", str(config)], ["resume", "--url", "ftp://host"]):
        assert refused(*arguments).exit_code == 2


def test_status_waits_for_a_starting_service_if_asked_to(url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    told = json.loads(run("status", "--url", url, "--json"))
    first = {**told, "mood": "well", "state": "training", "stream": {**told["stream"], "lag_records": 9}}
    late = Late(port, {**told, "mood": "busy"}, first, {**told, "mood": "well"})
    begun = threading.Timer(0.5, late.start)
    begun.start()
    try:
        waited = json.loads(run("status", "--url", f"127.0.0.1:{port}", "--json", "--wait", "60s"))
        assert (waited["mood"], waited["state"]) == ("well", "idle"), "it is waited for until something is learnt"
    finally:
        begun.join()
        late.stop()
    assert refused("status", "--url", f"127.0.0.1:{port}", "--wait", "0.3s").exit_code == 3
    assert refused("status", "--url", url, "--wait", "60").exit_code == 2


def figures(mood: str, state: str, lag: int | None, *, learnt: float = 0.0, scored: int = 0) -> dict[str, object]:
    stream = {} if lag is None else {"lag_records": lag}
    rates = {"10s": 0.0, "1m": 0.0, "5m": learnt}
    return {
        "mood": mood,
        "state": state,
        "stream": stream,
        "throughput": {"records_per_s": rates},
        "live": {"records": scored},
    }


@pytest.mark.parametrize(
    ("status", "enough"),
    [
        (figures("busy", "tracing", None), False),
        (figures("well", "idle", None), False),
        (figures("well", "training", 5000), False),
        (figures("warn", "idle", 5000), False),
        (figures("well", "training", 3000, learnt=7.0), False),
        (figures("well", "training", 3000, learnt=7.0, scored=2000), True),
        (figures("well", "idle", 0), True),
        (figures("well", "idle", 0, learnt=7.0), False),
        (figures("well", "idle", 0, learnt=7.0, scored=2000), True),
        (figures("rest", "paused", 5000), True),
        (figures("bad", "failed", None), True),
    ],
)
def test_status_waits_for_the_first_call_unless_none_is_to_come(status: dict[str, object], enough: bool) -> None:
    assert has_figures(status) is enough


class Late:
    """A service that begins to answer on request: one answer after the other, the last one repeatedly."""

    def __init__(self, port: int, *answers: Mapping[str, object]) -> None:
        still = list(answers)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(still.pop(0) if len(still) > 1 else still[0]).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as its base has it
                pass

        self._port, self._handler = port, Handler
        self._server: http.server.ThreadingHTTPServer | None = None

    def start(self) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self._port), self._handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:-1", "http://:8080"])
def test_what_is_no_address_is_a_mistake_and_no_other_port_is_asked(url: str) -> None:
    assert "is not an address of a service" in str(refused("status", "--url", url))


def test_an_address_without_a_service_is_unreachable() -> None:
    error = refused("status", "--url", "127.0.0.1:1")
    assert error.exit_code == 3
    assert "http://127.0.0.1:1" in str(error)


def test_another_service_at_the_configs_address_gets_no_command(url: str, rig: Rig) -> None:
    config = rig.folder.root.parents[1] / "other.yaml"
    config.write_text((config.parent / "clicks.yaml").read_text().replace("name: clicks", "name: other"))
    listen = {"MILLRACE_API__LISTEN": url.removeprefix("http://")}
    error = refused("pause", "-c", str(config), **listen)
    assert error.exit_code == 3
    assert "'clicks'" in str(error)
    assert json.loads(run("status", "--url", url, "--json"))["state"] != "paused"


def test_commands_carry_the_token_of_the_named_file(rig: Rig, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "ops").write_text("a-token-of-sixteen-or-more\n")
    for url in served(rig, ApiSettings(listen="127.0.0.1:0", tokens_dir=tokens)):
        without = refused("pause", "--url", url)
        assert without.exit_code == 2
        assert "token" in str(without)
        run("pause", "--url", url, "--token-file", str(tokens / "ops"))
        run("resume", "--url", url, MILLRACE_TOKEN_FILE=str(tokens / "ops"))
        missing = refused("resume", "--url", url, "--token-file", str(tokens / "nobody"))
        assert missing.exit_code == 2
        assert "a-token" not in f"{without}{missing}"


@pytest.mark.parametrize("held", ["a-token-of-sixteen\nand-another-one", "ein-schlüssel-mit-umlaut", "open sesame"])
def test_a_token_that_no_header_can_carry_is_a_mistake_in_its_file(held: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(held)
    error = refused("pause", "--url", "127.0.0.1:1", "--token-file", str(file))
    assert error.exit_code == 2
    assert "no header can carry" in str(error)
    assert not any(word in str(error).replace(str(file), "") for word in held.split())


class Stranger(http.server.BaseHTTPRequestHandler):
    """Something that answers, and is not what was meant."""

    says: ClassVar[Mapping[str, object]] = {}
    heard: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        self._answer()

    def _answer(self) -> None:
        self.heard.append((self.command, self.headers["authorization"]))
        body = json.dumps(self.says).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as its base has it
        pass


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Stranger, "heard", [])
    with http.server.HTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


STAMP = {"as_of": "2026-11-21T03:12:44.120Z", "version": "0.1.0"}


@pytest.mark.parametrize("says", [{}, {"name": "grafana", "version": "12.0"}, {**STAMP, "name": None}])
def test_a_stranger_at_the_address_is_reported_and_gets_no_token(
    says: Mapping[str, object], stranger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stranger, "says", says)
    (tmp_path / "token").write_text("a-token-of-sixteen-or-more")
    for arguments in (["status"], ["pause", "--token-file", str(tmp_path / "token")]):
        error = refused(*arguments, "--url", stranger)
        assert error.exit_code == 3
        assert str(error) == f"what answers at http://{stranger} is no millrace; name the right one by --url"
    assert Stranger.heard == [("GET", None)] * 2


@pytest.mark.parametrize("verb", [["pause"], ["checkpoints", "save"], ["rewind", "--to", "0"]])
def test_the_token_goes_only_to_the_service_with_the_right_name(
    verb: list[str], stranger: str, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stranger, "says", {**STAMP, "name": "views"})
    (tmp_path / "token").write_text("a-token-of-sixteen-or-more")
    config = rig.folder.root.parents[1] / "clicks.yaml"
    options = ["-c", str(config), "--token-file", str(tmp_path / "token")]
    error = refused(*verb, *options, MILLRACE_API__LISTEN=stranger)
    assert error.exit_code == 3
    assert "answered by the service 'views', not by 'clicks'" in str(error)
    assert Stranger.heard == [("GET", None)]


@pytest.mark.parametrize(
    ("why", "exit_code"),
    [
        (CheckpointError("cannot write: no space left on device"), 1),
        (CorruptError("checkpoint 1 is not what was written"), 4),
        (DataLossError("offsets are gone"), 4),
        (MissingCheckpointError("no checkpoint 9"), 2),
    ],
)
def test_a_refused_save_has_the_exit_code_of_a_local_refusal(
    url: str, rig: Rig, why: MillraceError, exit_code: int
) -> None:
    rig.refuse_with = why
    error = refused("checkpoints", "save", "--url", url)
    assert str(error).startswith(str(why))
    assert error.exit_code == exit_code


def test_a_trainer_that_is_ending_counts_as_unreachable_not_as_data_loss(url: str, rig: Rig) -> None:
    rig.service.phases.enter(Phase.STOPPING)
    error = refused("pause", "--url", url)
    assert "takes no more commands" in str(error)
    assert error.exit_code == 3


def test_the_view_shows_how_long_a_service_has_been_silent(url: str) -> None:
    watched = StatusReadings.of(json.loads(run("status", "--url", url, "--json")))
    watched.miss(12.0)
    screen = Console(file=io.StringIO(), width=100, record=True)
    screen.print(drawn(watched))
    assert "no answer for 12 s" in screen.export_text()


def shown(watched: StatusReadings) -> list[str]:
    """Return the lines of the view, as a terminal gets them."""
    screen = Console(file=io.StringIO(), width=120, record=True, force_terminal=True, color_system="standard")
    screen.print(drawn(watched))
    return screen.export_text(styles=True).splitlines()


RED, GREEN = "\x1b[31m", "\x1b[32m"


def test_the_dot_is_green_only_when_all_is_well(url: str, rig: Rig) -> None:
    assert f"{GREEN}●" in "\n".join(shown(StatusReadings.of(json.loads(run("status", "--url", url, "--json")))))
    rig.service.phases.enter(Phase.TRAINING)
    rig.clock.ahead = 301
    told = json.loads(run("status", "--url", url, "--json"))
    assert (told["state"], told["mood"]) == ("training", "bad")
    assert f"{RED}●" in "\n".join(shown(StatusReadings.of(told)))


def test_a_text_that_came_from_a_record_moves_no_cursor(url: str) -> None:
    told = json.loads(run("status", "--url", url, "--json"))
    problem = {"problem": "paused", "what": "a step raised: \x1b[2J", "since": told["as_of"], "fix": "look at \u202eit"}
    lines = "\n".join(shown(StatusReadings.of({**told, "problems": [problem]})))
    assert r"a step raised: \x1b[2J." in lines
    assert r"look at \u202eit" in lines


def test_kafka_counts_as_away_only_after_it_was_connected(url: str) -> None:
    told = json.loads(run("status", "--url", url, "--json"))
    away = {**told, "kafka": {**told["kafka"], "connected": False}}
    assert "KAFKA AWAY" in shown(StatusReadings.of({**away, "mood": "warn"}))[0]
    assert "KAFKA AWAY" not in shown(StatusReadings.of({**away, "mood": "busy"}))[0]


def test_the_bar_includes_saving_and_adds_up(url: str) -> None:
    told = json.loads(run("status", "--url", url, "--json"))
    told["throughput"]["waiting"] = {"records": 0.26, "input": 0.26, "compute": 0.26, "saving": 0.22}
    (line,) = [line for line in shown(StatusReadings.of(told)) if "computing 26%" in line]
    assert line.count("█") == 40
    assert "saving 22%" in line


def test_a_metric_above_one_still_shows_how_it_moves(url: str) -> None:
    told = json.loads(run("status", "--url", url, "--json"))
    watched = StatusReadings.of({**told, "live": {"headline": "mae", "mae": 2.0, "loss": 9.0, "baseline": {}}})
    watched.see({**told, "live": {"headline": "mae", "mae": 8.0, "loss": 9.0, "baseline": {}}})
    (line,) = [line for line in shown(watched) if "how well" in line]
    assert "8 mae" in line
    assert line.rstrip().endswith("▃█")


@pytest.mark.parametrize(("value", "text"), [(3.4e38, "3.4e+38"), (-12_345.6, "-12,346"), (0.25, "0.25"), (0, "0")])
def test_a_number_of_any_size_is_short(value: float, text: str) -> None:
    assert _number(value, " loss") == f"{text} loss"


def test_a_line_of_blocks_shows_the_newest_and_leaves_gaps() -> None:
    assert sparkline([0.0, 0.5, None, 1.0], low=0.0, high=1.0, width=4) == "▁▅ █"
    assert sparkline([0.0, 1.0], low=0.0, high=1.0, width=4) == "  ▁█"
    assert sparkline([0.0, 1.0, 2.0], low=0.0, high=1.0, width=1) == "█"


def test_the_view_shows_the_workers_of_a_group_and_the_slow_one(url: str, rig: Rig) -> None:
    rig.service.board.group = group(1, member(waited_s=2.0), member(lag_records=1234, states=("held",)))
    told = json.loads(run("status", "--url", url, "--json"))
    told["group"]["slowest"] = 1
    lines = [line for line in shown(StatusReadings.of(told)) if "worker 1" in line]
    assert len(lines) == 1
    assert all(one in lines[0] for one in ("(this one)", "1,234 behind", "slowest, held"))
    assert "The chief takes the commands: millrace-0.millrace" in "\n".join(shown(StatusReadings.of(told)))


def test_a_command_to_a_worker_exits_2_and_names_the_chief(url: str, rig: Rig) -> None:
    rig.service.board.group = group(1, member(), member())
    error = refused("pause", "--url", url)
    assert "on the host millrace-0.millrace" in str(error)
    assert error.exit_code == 2
