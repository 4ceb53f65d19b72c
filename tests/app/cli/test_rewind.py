"""`millrace rewind`: offline with a trainer's rights, or by the trainer that runs."""

import json
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.app.tools import rewind
from millrace.consumers.errors import MillraceError
from millrace.consumers.records import Partition
from millrace.training.checkpoints import CheckpointStore, Folder, FolderLease
from millrace.training.checkpoints.lease import holder_of
from tests.app.checkpoint_history import P0, P1, config_in, folder_in, publish_history


@pytest.fixture(autouse=True)
def kafka(monkeypatch: pytest.MonkeyPatch) -> dict[Partition, int]:
    """Give the first offsets that Kafka has, which a test may change; Kafka does not answer while it is empty."""
    first: dict[Partition, int] = {}
    monkeypatch.setattr(rewind, "_beginnings", lambda _settings: dict(first) or None)
    return first


@pytest.fixture
def config(tmp_path: Path) -> str:
    publish_history(folder_in(tmp_path), steps=3)
    return str(config_in(tmp_path))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return folder_in(tmp_path)


def run(*arguments: str, **environ: str) -> str:
    result = CliRunner().invoke(application, ["rewind", *arguments], env=environ, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def refused(*arguments: str, **environ: str) -> MillraceError:
    result = CliRunner().invoke(application, ["rewind", *arguments], env=environ)
    assert isinstance(result.exception, MillraceError), result.output
    return result.exception


def test_the_next_start_finds_the_rewind(config: str, folder: Folder) -> None:
    said = run("-c", config, "--to", "1", "--reason", "a broken\nproducer")
    assert said == "checkpoint 4 is checkpoint 1 again: learning resumes from it\n"
    newest = CheckpointStore(folder).newest()
    assert newest is not None
    assert (newest.number, newest.parent, newest.reason, newest.note) == (4, 1, "rewind", "a broken producer")
    assert newest.incarnation >= 1
    assert holder_of(folder) is None


def test_a_skip_includes_both_of_its_ends(config: str, folder: Folder) -> None:
    answer = json.loads(run("-c", config, "--to", "1", "--skip", "clicks:0:12-14", "--json"))
    assert answer["checkpoint"]["reason"] == "skip"
    (skip,) = CheckpointStore(folder).load(4)["ledger"].facts["skips"]
    assert (skip["partition"], skip["start"], skip["end"]) == ("clicks:0", 12, 15)


def test_a_dry_run_counts_and_does_nothing(config: str, folder: Folder, kafka: dict[Partition, int]) -> None:
    kafka.update({P0: 0, P1: 0})
    head, *said = run("-c", config, "--to", "1", "--skip", "clicks:0:12-14", "--dry-run").splitlines()
    assert head.startswith("back to checkpoint 1: step 1, written 20")
    assert head.endswith(", has learnt up to 2025-11-21T03:59:59.999Z")
    assert said == [
        "clicks:0  30 -> 10: 17 offsets again, 3 skipped",
        "clicks:1  15 -> 5: 10 offsets again",
        "27 offsets would be read again and 3 skipped; nothing was done",
    ]
    assert folder.numbers() == [0, 1, 2, 3]


def test_a_dry_run_without_kafka_says_what_is_not_known(config: str) -> None:
    said = run("-c", config, "--to", "1", "--dry-run")
    assert said.endswith("nothing was done; Kafka does not answer, so whether it still has them is not known\n")
    assert "gone" not in json.loads(run("-c", config, "--to", "1", "--dry-run", "--json"))


def test_a_rewind_to_offsets_gone_from_kafka_is_refused_with_their_names(
    config: str, folder: Folder, kafka: dict[Partition, int]
) -> None:
    kafka.update({P0: 16, P1: 0})
    for further in ([], ["--dry-run"]):
        error = refused("-c", config, "--to", "1", *further)
        assert error.exit_code == 4
        assert "offsets 10..15 of clicks:0 are gone by retention" in str(error)
        assert "kafka.out_of_range: earliest" in str(error)
    assert folder.numbers() == [0, 1, 2, 3]
    run("-c", config, "--to", "2")


def test_offsets_gone_from_kafka_count_as_lost_if_the_settings_allow_it(
    tmp_path: Path, folder: Folder, config: str, kafka: dict[Partition, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.update({P0: 16, P1: 0})
    monkeypatch.setenv("MILLRACE_KAFKA__OUT_OF_RANGE", "earliest")
    error = refused("-c", config, "--to", "1", "--dry-run")
    assert error.exit_code == 4
    assert "would count as lost" in str(error)
    run("-c", config, "--to", "1")
    assert folder.numbers() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("to", "target"), [("2025-11-21T05:00:00Z", 2), ("clicks:0:19", 1), ("clicks:1:10", 2), ("-1s", 3)]
)
def test_a_time_or_an_offset_finds_its_checkpoint(config: str, folder: Folder, to: str, target: int) -> None:
    said = run("-c", config, "--to", to)
    assert said == f"checkpoint 4 is checkpoint {target} again: learning resumes from it\n"


def test_a_skip_applies_until_it_is_taken_back(config: str, folder: Folder) -> None:
    run("-c", config, "--to", "2", "--skip", "clicks:0:22-24", "--reason", "a bad hour")
    said = run("-c", config, "--to", "1", "--dry-run")
    assert "rewind-4 still applies: clicks:0:22-24 skipped (a bad hour)" in said
    plan = json.loads(run("-c", config, "--to", "1", "--dry-run", "--unskip", "rewind-4", "--json"))
    assert "skips" not in plan
    assert folder.numbers() == [0, 1, 2, 3, 4]


def test_an_invalid_destination_is_refused_with_the_valid_forms(config: str, folder: Folder) -> None:
    error = refused("-c", config, "--to", "yesterday")
    assert error.exit_code == 2
    assert "write a checkpoint's number" in str(error)
    assert folder.highest_term() == 1


def test_pruning_follows_the_settings_as_in_a_trainer(tmp_path: Path, folder: Folder) -> None:
    publish_history(folder, steps=8)
    run("-c", str(config_in(tmp_path)), "--to", "1")
    assert folder.numbers() == [*range(10)]


def test_a_bad_range_names_the_form(config: str, folder: Folder) -> None:
    error = refused("-c", config, "--to", "1", "--skip", "clicks:0")
    assert error.exit_code == 2
    assert "write topic:partition:first-last" in str(error)
    assert folder.numbers() == [0, 1, 2, 3]


def test_a_number_that_is_not_there_takes_no_folder(config: str, folder: Folder) -> None:
    assert refused("-c", config, "--to", "9").exit_code == 2
    assert folder.highest_term() == 1


def test_a_busy_folder_whose_trainer_does_not_answer_is_left_alone(config: str, folder: Folder) -> None:
    writer = FolderLease.acquire(folder, "millrace run clicks")
    try:
        error = refused("-c", config, "--to", "1", MILLRACE_API__LISTEN="127.0.0.1:9")
        assert error.exit_code == 3
        assert "millrace run clicks (process" in str(error)
        assert "no millrace answers at http://127.0.0.1:9" in str(error)
        assert folder.numbers() == [0, 1, 2, 3]
        writer.check()
    finally:
        writer.release()


class Answers(BaseHTTPRequestHandler):
    """Stands for a trainer's HTTP side."""

    name: ClassVar[str] = "clicks"
    orders: ClassVar[list[dict[str, Any]]] = []
    status: ClassVar[int] = 201

    def do_GET(self) -> None:
        self._answer(200, {})

    def do_POST(self) -> None:
        self.orders.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        refusal = {"type": "urn:millrace:conflict", "detail": "Checkpoint 1 is corrupt.", "fix": "Choose another one."}
        self._answer(self.status, {"checkpoint": {"number": 4, "parent": 1}} if self.status == 201 else refusal)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps({"as_of": "2026-11-21T03:12:44.120Z", "name": self.name, "version": "0", **body}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base has it
        """Say nothing."""


@pytest.fixture
def trainer(folder: Folder, config: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Answers]]:
    """Hold the folder, and answer at api.listen."""
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("MILLRACE_API__LISTEN", f"127.0.0.1:{server.server_port}")
    monkeypatch.setattr(Answers, "orders", [])
    writer = FolderLease.acquire(folder, "millrace run clicks")
    yield Answers
    writer.release()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_running_trainer_gets_the_rewind(config: str, folder: Folder, trainer: type[Answers]) -> None:
    said = run("-c", config, "--to", "1", "--skip", "clicks:0:12-14", "--reason", "why")
    assert said.startswith("checkpoint 4 is checkpoint 1 again")
    assert trainer.orders == [{"to": 1, "skip": ["clicks:0:12-14"], "reason": "why", "dry_run": False}]
    assert folder.numbers() == [0, 1, 2, 3]


def test_a_running_trainer_resolves_times_and_offsets_itself(config: str, trainer: type[Answers]) -> None:
    run("-c", config, "--to", "-2h", "--unskip", "rewind-3")
    assert trainer.orders == [{"to": "-2h", "skip": [], "reason": None, "dry_run": False, "unskip": ["rewind-3"]}]


def test_another_trainer_at_that_address_gets_no_rewind(
    config: str, trainer: type[Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "name", "views")
    error = refused("-c", config, "--to", "1")
    assert error.exit_code == 3
    assert "millrace run clicks (process" in str(error)
    assert "answered by the service 'views', not by 'clicks'" in str(error)
    assert trainer.orders == []


def test_a_refusal_keeps_its_words_and_its_meaning(
    config: str, trainer: type[Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "status", 409)
    error = refused("-c", config, "--to", "1")
    assert error.exit_code == 4
    assert str(error) == "Checkpoint 1 is corrupt. Choose another one"


def test_a_command_that_an_error_suggests_runs_as_it_is_printed(config: str, folder: Folder) -> None:
    weights = folder.checkpoint(2) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    said = str(refused("-c", config, "--to", "2"))
    name, *words = shlex.split(said.partition("`")[2].partition("`")[0])
    assert name == "millrace"
    assert words == ["checkpoints", "verify", "-c", config]
    result = CliRunner().invoke(application, words)
    assert "model.safetensors" in result.stdout
