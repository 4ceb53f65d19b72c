"""Checks and what they come to; the folder's, on real folders. No broker, no model."""

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from millrace.app.settings import Settings, load
from millrace.app.settings.secret_files import exposure
from millrace.app.tools.validate import CheckOutcome, CheckResult, exit_code_of
from millrace.app.tools.validate.check import fail, ok, skip, warn
from millrace.app.tools.validate.checkpoint_check import folder_checks
from millrace.app.tools.validate.examination import examine_file
from millrace.app.tools.validate.kafka_check import Bounds
from millrace.app.tools.validate.record_check import Verdict, judged
from millrace.app.tools.validate.settings_checks import group_check, tokens_check
from millrace.consumers.errors import ConfigError, DataLossError, UnreachableError
from millrace.consumers.reasons import Reason
from millrace.pipelines.gates.flood import PauseAboveSettings
from millrace.training.checkpoints import FolderLease
from tests.app.checkpoint_history import P0, P1, config_in, folder_in, publish_history


def test_the_exit_code_is_that_of_the_worst_failure() -> None:
    assert exit_code_of([ok("a", ""), warn("b", ""), skip("c", "")]) == 0
    checks = [fail("a", ConfigError("")), fail("b", UnreachableError("")), ok("c", "")]
    assert exit_code_of(checks) == 3
    assert exit_code_of([*checks, fail("d", DataLossError(""))]) == 4


def test_a_server_that_no_host_can_be_named_is_a_wrong_setting(tmp_path: Path) -> None:
    path = config_in(tmp_path)
    path.write_text(re.sub(r"(bootstrap_servers\W+)[\w.]+", r"\1a..b", path.read_text()))
    (check,) = examine_file(path)
    assert exit_code_of([check]) == 2
    assert "kafka.bootstrap_servers[0]: 'a..b' can be no host's name (" in check.detail


def test_a_sample_that_decodes_is_fine() -> None:
    assert judged(400, Counter()).outcome is CheckOutcome.OK


def test_an_empty_topic_shows_nothing() -> None:
    check = judged(0, Counter())
    assert check.outcome is CheckOutcome.WARN
    assert "no record yet" in check.detail


def test_a_sample_is_reported_by_reason_and_field() -> None:
    check = judged(400, Counter({(Reason.MISSING, "price"): 3, (Reason.MALFORMED, None): 1}))
    assert check.outcome is CheckOutcome.WARN
    assert "396 of 400" in check.detail
    assert "3 missing (0.75 %, field 'price'), 1 malformed (0.25 %); give the field a `missing` value" in check.detail


def test_a_sample_for_which_the_learning_would_pause_says_so() -> None:
    flood = PauseAboveSettings(share=0.05, over="60s")
    some = Counter[Verdict]({(Reason.MALFORMED, None): 21})
    assert (
        "pause_above.share is 5 %, so the learning would pause: 21 malformed (5.25 %)"
        in judged(400, some, flood).detail
    )
    assert "pause_above" not in judged(420, some, flood).detail


def test_a_sample_of_which_nothing_decodes_fails() -> None:
    check = judged(2, Counter({(Reason.WRONG_TYPE, "price"): 2}))
    assert (check.outcome, check.exit_code) == (CheckOutcome.FAIL, 2)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(config_in(tmp_path), {}).settings


def bounds(first: int = 0, end: int = 100) -> Bounds:
    return Bounds(first={P0: first, P1: 0}, end={P0: end, P1: 100}, start={P0: 0, P1: 40})


def examined(settings: Settings, seen: Bounds | None = None) -> dict[str, CheckResult]:
    return {check.name: check for check in folder_checks(settings, None, seen)}


def test_a_schema_that_the_learning_would_pause_at_is_named() -> None:
    verdicts = Counter[Verdict]({(Reason.MISSING, "price"): 3})
    check = judged(
        400, verdicts, schema="pause at schema 6, which does not give 'price': the schema has no field 'price'"
    )
    assert check.outcome is CheckOutcome.WARN
    assert "397 of 400 sampled records decode (99.2 %), and learning would pause at schema 6" in check.detail


def test_a_folder_that_is_not_there_can_be_made_and_is_not(settings: Settings, tmp_path: Path) -> None:
    checks = examined(settings, bounds())
    assert checks["folder"].outcome is CheckOutcome.OK
    assert "160 offsets to learn" in checks["checkpoint"].detail
    assert not (tmp_path / "checkpoints").exists()


def test_a_file_in_place_of_the_folder_is_reported_with_a_remedy(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    check = examined(settings)["folder"]
    assert (check.outcome, check.exit_code) == (CheckOutcome.FAIL, 2)
    assert "Not a directory; make it a folder" in check.detail


def test_the_holder_of_the_folder_is_named_and_keeps_it(settings: Settings, tmp_path: Path) -> None:
    writer = FolderLease.acquire(folder_in(tmp_path), "millrace run clicks")
    try:
        check = examined(settings)["lock"]
        assert (check.outcome, check.exit_code) == (CheckOutcome.FAIL, 4)
        assert "held by millrace run clicks (process" in check.detail
        writer.check()
    finally:
        writer.release()
    assert examined(settings)["lock"].outcome is CheckOutcome.OK


def test_the_positions_to_resume_from_are_compared_with_the_topic(settings: Settings, tmp_path: Path) -> None:
    publish_history(folder_in(tmp_path), steps=3)  # clicks:0 stands at 30, clicks:1 at 15
    assert "155 offsets are to be learnt" in examined(settings, bounds())["positions"].detail
    gone = examined(settings, bounds(first=31))["positions"]
    assert (gone.outcome, gone.exit_code) == (CheckOutcome.FAIL, 4)
    assert "offsets 30..30 of clicks:0 are gone by retention" in gone.detail
    anew = examined(settings, bounds(end=29))["positions"]
    assert (anew.outcome, anew.exit_code) == (CheckOutcome.FAIL, 4)
    assert "clicks:0 ends at offset 29, yet 30 is the next" in anew.detail


def test_a_gap_that_the_settings_accept_is_a_warning(tmp_path: Path) -> None:
    publish_history(folder_in(tmp_path), steps=3)
    accepting = load(config_in(tmp_path), {"MILLRACE_KAFKA__OUT_OF_RANGE": "earliest"}).settings
    assert examined(accepting, bounds(first=31))["positions"].outcome is CheckOutcome.WARN


def test_a_missing_partition_is_a_failure(settings: Settings, tmp_path: Path) -> None:
    publish_history(folder_in(tmp_path), steps=1)
    check = examined(settings, Bounds(first={P0: 0}, end={P0: 99}, start={P0: 0}))["positions"]
    assert (check.outcome, check.exit_code) == (CheckOutcome.FAIL, 4)


def test_damaged_checkpoints_fail_with_the_exit_code_of_a_start(settings: Settings, tmp_path: Path) -> None:
    publish_history(folder_in(tmp_path), steps=0)
    (folder_in(tmp_path).checkpoint(0) / "model.safetensors").write_bytes(b"x")
    check = examined(settings)["checkpoint"]
    assert (check.outcome, check.exit_code) == (CheckOutcome.FAIL, 4)


def tokens_of(tmp_path: Path, **environ: str) -> CheckResult:
    found = load(config_in(tmp_path), {f"MILLRACE_API__{name.upper()}": value for name, value in environ.items()})
    return tokens_check(found.settings)


def test_without_tokens_only_this_machine_may_send_commands(tmp_path: Path) -> None:
    alone = tokens_of(tmp_path)
    assert (alone.outcome, alone.detail) == (
        CheckOutcome.OK,
        "none; 127.0.0.1:8080 takes commands from this machine only",
    )
    reached = tokens_of(tmp_path, listen="0.0.0.0:8080")
    assert (reached.outcome, reached.exit_code) == (CheckOutcome.WARN, 0)
    assert "no one may pause, save or rewind: set api.tokens_dir to a folder" in reached.detail


@pytest.mark.parametrize("listen", ["127.0.0.1:8080", "0.0.0.0:8080"])
def test_token_owners_are_listed_by_name_and_never_by_token(tmp_path: Path, listen: str) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    for name in ("ops", "ci"):
        (folder / name).write_text("canary-4711-canary-4711")
    check = tokens_of(tmp_path, listen=listen, tokens_dir=str(folder))
    assert (check.outcome, check.detail) == (CheckOutcome.OK, f"2 in {folder}; may send commands: ci, ops")


def test_a_token_that_every_user_can_read_is_warned_about(tmp_path: Path, token: Path) -> None:
    check = tokens_of(tmp_path, tokens_dir=str(token.parent))
    assert (check.outcome, check.exit_code) == (CheckOutcome.WARN, 0)
    assert check.detail == f"api.tokens_dir: {exposure(token)}"
    token.chmod(0o600)
    assert tokens_of(tmp_path, tokens_dir=str(token.parent)).outcome is CheckOutcome.OK


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "holds no token; write one file per token"),
        ("", "/ops is empty; write a token into it"),
        ("canary", "/ops holds a token of another length than 16 to 4096"),
    ],
)
def test_a_tokens_folder_that_a_start_refuses_is_refused_alike(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    folder = tmp_path / "tokens"
    assert "cannot be read: no such file or directory" in tokens_of(tmp_path, tokens_dir=str(folder)).detail
    folder.mkdir()
    if content is not None:
        (folder / "ops").write_text(content)
    check = tokens_of(tmp_path, tokens_dir=str(folder))
    assert (check.outcome, check.exit_code) == (CheckOutcome.FAIL, 2)
    assert check.detail.startswith("api.tokens_dir: ")
    assert complaint in check.detail
    assert "canary" not in check.detail


def of_a_group(tmp_path: Path, **scale: str) -> Settings:
    """Return the settings of three workers."""
    environ = {"MILLRACE_SCALE__WORKERS": "3", "MILLRACE_TRAINING__BATCH_SIZE": "96"}
    return load(
        config_in(tmp_path), environ | {f"MILLRACE_SCALE__{name}": value for name, value in scale.items()}
    ).settings


def test_a_group_is_told_its_portions_its_addresses_and_the_hosts_place(tmp_path: Path) -> None:
    settings = of_a_group(tmp_path)
    for host, place in (("millrace-0", "the chief"), ("millrace-workers-1", "worker 2")):
        check = group_check(settings, host)
        assert check.outcome is CheckOutcome.OK
        assert "3 workers, each with 32 rows" in check.detail
        assert ", ".join(settings.scale.everyone) in check.detail
        assert check.detail.endswith(f"this host is {place}")


def test_a_host_that_is_no_worker_by_its_name_is_told_that_it_needs_an_index(tmp_path: Path) -> None:
    check = group_check(of_a_group(tmp_path), "laptop")
    assert check.outcome is CheckOutcome.WARN
    assert "scale.index" in check.detail
    assert "'laptop'" in check.detail
    assert group_check(of_a_group(tmp_path, INDEX="1"), "laptop").outcome is CheckOutcome.OK


def test_two_workers_of_one_address_are_refused(tmp_path: Path) -> None:
    check = group_check(of_a_group(tmp_path, INDEX="0", ADDRESSES="a:1,b:1,a:1"))
    assert (check.outcome, check.exit_code) == (CheckOutcome.FAIL, 2)
    assert "a:1 is there more than once" in check.detail


def test_the_line_about_the_group_comes_only_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config_in(tmp_path)
    assert "group" not in first_two(path)
    monkeypatch.setenv("MILLRACE_SCALE__WORKERS", "2")
    assert first_two(path) == ["settings", "group"]


def first_two(path: Path) -> list[str]:
    from millrace.app.tools.validate.examination import examine_file

    return [check.name for check in islice(examine_file(path), 2)]
