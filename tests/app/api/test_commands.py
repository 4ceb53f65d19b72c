"""Commands over HTTP and their outcomes."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from millrace.app.api import checkpoint_reads, operations
from millrace.app.api.routes import commands
from millrace.consumers.errors import DataLossError
from millrace.consumers.records import Partition
from millrace.training.checkpoints import SaveReason
from millrace.training.checkpoints.pins import Pins
from millrace.training.errors import CheckpointError, ProfileBusyError, ProfileError
from millrace.training.group.one_state import portion
from millrace.training.history.rewind import RewindPlan, plan_rewind
from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import P0, P1, Client, Rig, is_problem
from tests.conftest import WaitFor

COMMANDS: list[tuple[str, Any]] = [
    ("/checkpoints", None),
    ("/checkpoints/0/restore", None),
    ("/rewind", {"to": 0}),
    ("/pause", None),
    ("/resume", None),
    ("/profile", {"calls": 3}),
]
LATE_S = 10.0
"""A time that a test would notice if the code waited for it by mistake."""


def learnt(rig: Rig, count: int = 20) -> None:
    rig.produce(P0, count)
    rig.learn_all()


def test_a_save_with_wait_is_durable_when_the_answer_comes(api: Client, rig: Rig) -> None:
    learnt(rig)
    answer = api.post("/checkpoints?wait=20s", {"note": "before the sale"})
    assert answer.status_code == 201
    assert answer.headers["location"] == "/checkpoints/1"
    made = answer.json()["checkpoint"]
    assert (made["number"], made["parent"], made["reason"], made["note"]) == (1, 0, "demand", "before the sale")
    assert made["positions"] == {"clicks:0": 20, "clicks:1": 0}
    assert rig.store.verify(1).verified


def test_a_save_without_wait_is_an_operation(api: Client, rig: Rig, wait_for: WaitFor) -> None:
    rig.obeying.clear()
    answer = api.post("/checkpoints")
    assert answer.status_code == 202
    where = answer.headers["location"]
    assert api.seen(where)["operation"]["state"] == "running"
    rig.obeying.set()
    wait_for(lambda: api.seen(where)["operation"]["state"] == "succeeded")
    operation = api.seen(where)["operation"]
    assert operation["checkpoint"] == 1
    assert operation["kind"] == "save"
    assert operation["ended_at"] >= operation["began_at"]


def test_a_wait_that_runs_out_leaves_the_operation_running(api: Client, rig: Rig) -> None:
    rig.obeying.clear()
    began = time.monotonic()
    assert api.post("/checkpoints?wait=100ms").status_code == 202
    assert 0.1 <= time.monotonic() - began < 10


def test_a_command_that_ends_the_trainer_is_a_failed_operation(api: Client, rig: Rig, wait_for: WaitFor) -> None:
    rig.refuse_with = RuntimeError("out of memory on the device")
    rig.obeying.clear()
    where = api.post("/checkpoints").headers["location"]
    rig.obeying.set()
    wait_for(lambda: api.seen(where)["operation"]["state"] != "running")
    operation = api.seen(where)["operation"]
    assert operation["state"] == "failed"
    assert "a defect of millrace" in operation["complaint"]


def test_a_failed_save_shows_in_the_answer_and_in_the_operation(api: Client, rig: Rig, wait_for: WaitFor) -> None:
    rig.refuse_with = CheckpointError("checkpoint 1 could not be written: No space left on device")
    body = is_problem(api.post("/checkpoints?wait=20s"), 503)
    assert "No space left" in body["detail"]
    rig.obeying.clear()
    where = api.post("/checkpoints").headers["location"]
    rig.obeying.set()
    wait_for(lambda: api.seen(where)["operation"]["state"] != "running")
    operation = api.seen(where)["operation"]
    assert operation["state"] == "failed"
    assert "No space left" in operation["complaint"]


def test_a_restore_goes_back_and_says_where_to(api: Client, rig: Rig) -> None:
    learnt(rig)
    answer = api.post("/checkpoints/0/restore?wait=20s", {"reason": "poisoned"})
    assert answer.status_code == 201
    made = answer.json()["checkpoint"]
    assert (made["number"], made["parent"], made["reason"], made["note"]) == (1, 0, "rewind", "poisoned")
    assert rig.service.ledger.positions() == {P0: 0, P1: 0}


def test_a_rewind_skips_the_named_ranges_both_ends_included(api: Client, rig: Rig) -> None:
    learnt(rig)
    body = {"to": 0, "skip": ["clicks:0:3-5", "clicks:0:5-6", "clicks:1:100-100"], "reason": "bad import"}
    answer = api.post("/rewind?wait=20s", body)
    assert answer.status_code == 201
    assert answer.json()["checkpoint"]["reason"] == "skip"
    skips = rig.service.ledger.skips
    assert [(skip.partition, skip.start, skip.end) for skip in skips] == [(P0, 3, 6), (P0, 6, 7), (P1, 100, 101)]
    (order,) = {skip.order for skip in skips}
    assert order.startswith("rewind-")
    assert {skip.reason for skip in skips} == {"bad import"}


def test_each_command_to_skip_has_its_own_name(api: Client, rig: Rig) -> None:
    for number in range(2):
        body = {"to": number, "skip": [f"clicks:0:{number}-{number}"]}
        assert api.post("/rewind?wait=20s", body).status_code == 201
    assert len({skip.order for skip in rig.service.ledger.skips}) == 2


@pytest.mark.parametrize("path", ["/rewind", "/checkpoints/0/restore"])
def test_a_dry_run_says_what_would_be_replayed_and_does_nothing(api: Client, rig: Rig, path: str) -> None:
    learnt(rig)
    body = {"skip": ["clicks:0:15-99"], "dry_run": True} | ({"to": 0} if path == "/rewind" else {})
    answer = api.post(path, body)
    assert answer.status_code == 200
    plan = answer.json()
    assert (plan["to"], plan["replayed"], plan["skipped"]) == (0, 15, 5)
    assert plan["partitions"]["clicks:0"] == {
        "position": 20,
        "back_to": 0,
        "replayed": 15,
        "skipped": 5,
        "earliest": 0,
        "gone": 0,
    }
    assert rig.folder.numbers() == [0]
    assert rig.service.ledger.positions()[P0] == 20


def test_a_dry_run_says_how_long_it_takes_and_which_offsets_are_gone(api: Client, rig: Rig) -> None:
    learnt(rig)
    rig.source.first[P0] = 7
    plan = api.post("/rewind", {"to": 0, "dry_run": True}).json()
    assert (plan["gone"], plan["partitions"]["clicks:0"]["gone"], plan["partitions"]["clicks:0"]["earliest"]) == (
        7,
        7,
        7,
    )
    assert "offsets 0..6 of clicks:0 are gone by retention" in plan["advice"]
    assert plan["takes_s"] > 0
    assert plan["step"] == 7
    assert plan["created_at"]


def test_a_rewind_to_offsets_that_are_gone_is_refused_before_anything_stops(api: Client, rig: Rig) -> None:
    learnt(rig)
    rig.source.first[P0] = 7
    problem = is_problem(api.post("/rewind?wait=20s", {"to": 0}), 409)
    assert "offsets 0..6 of clicks:0 are gone by retention" in problem["detail"]
    assert rig.folder.numbers() == [0]


def test_a_rewind_of_a_group_is_refused_for_what_is_gone_at_another_worker(api: Client, rig: Rig) -> None:
    learnt(rig)
    rig.publish(SaveReason.INTERVAL, 0)
    rig.post()
    ledger = rig.service.ledger
    ledger.restore(portion(ledger.snapshot(), [P1]))  # as the chief does, which leaves clicks:0 to another
    rig.source.first[P0] = 7
    plan = api.post("/rewind", {"to": 0, "dry_run": True}).json()
    assert (plan["partitions"]["clicks:0"]["position"], plan["gone"]) == (20, 7)
    problem = is_problem(api.post("/rewind?wait=20s", {"to": 0}), 409)
    assert "offsets 0..6 of clicks:0 are gone by retention" in problem["detail"]


def test_a_rewind_does_not_wait_for_a_kafka_that_is_away(api: Client, rig: Rig) -> None:
    learnt(rig)
    rig.source.first[P0] = 7
    rig.source.meter.unanswered("away")
    assert "gone" not in api.post("/rewind", {"to": 0, "dry_run": True}).json()
    assert api.post("/rewind?wait=20s", {"to": 0}).status_code == 201


def test_a_rewind_waits_only_briefly_for_a_slow_kafka(api: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "KAFKA_TIMEOUT_S", 0.05)
    answers = threading.Event()

    def slowly(_start: Any) -> dict[Partition, int]:
        answers.wait(LATE_S)
        return {P0: 7, P1: 0}

    monkeypatch.setattr(rig.source, "resolve_start", slowly)
    try:
        assert "gone" not in api.post("/rewind", {"to": 0, "dry_run": True}).json()
        assert api.post("/rewind?wait=20s", {"to": 0}).status_code == 201
    finally:
        answers.set()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let a read of a checkpoint end only when this is set, later than any client waits, or fail in the end."""
    monkeypatch.setattr(operations, "CHECK_TIMEOUT_S", 0.05)
    read = threading.Event()

    def slowly(*given: Any) -> RewindPlan:
        assert read.wait(LATE_S)
        return plan_rewind(*given)

    monkeypatch.setattr(checkpoint_reads, "plan_rewind", slowly)
    yield read
    read.set()


@pytest.mark.parametrize(("path", "body"), [("/checkpoints/0/restore", None), ("/rewind", {"to": 0})])
def test_a_rewind_with_a_slow_check_is_an_operation_and_carried_out_later(
    api: Client, rig: Rig, wait_for: WaitFor, slow_disk: threading.Event, path: str, body: Any
) -> None:
    learnt(rig)
    answer = api.post(path, body)
    assert answer.status_code == 202
    where = answer.headers["location"]
    assert api.seen(where)["operation"]["state"] == "running"
    assert rig.folder.numbers() == [0]
    slow_disk.set()
    wait_for(lambda: api.seen(where)["operation"]["state"] == "succeeded")
    operation = api.seen(where)["operation"]
    assert (operation["kind"], operation["checkpoint"]) == ("rewind", 1)
    assert rig.service.ledger.positions() == {P0: 0, P1: 0}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [({"to": 0}, "offsets 0..6 of clicks:0 are gone by retention"), ({"to": 7}, "no checkpoint has the number 7")],
)
def test_a_check_that_fails_late_fails_the_operation(
    api: Client, rig: Rig, wait_for: WaitFor, slow_disk: threading.Event, body: Any, complaint: str
) -> None:
    learnt(rig)
    rig.source.first[P0] = 7
    where = api.post("/rewind", body).headers["location"]
    slow_disk.set()
    wait_for(lambda: api.seen(where)["operation"]["state"] == "failed")
    assert complaint in api.seen(where)["operation"]["complaint"]
    assert rig.folder.numbers() == [0]


def test_rewinds_that_are_still_being_checked_are_bounded_too(
    api: Client, rig: Rig, slow_disk: threading.Event
) -> None:
    codes = [api.post("/rewind", {"to": 0}).status_code for _ in range(18)]
    assert codes == [202] * 16 + [429] * 2


def test_a_rewind_finds_the_checkpoint_of_a_time_or_an_offset(api: Client, rig: Rig) -> None:
    learnt(rig)
    rig.publish(SaveReason.INTERVAL, 0)
    learnt(rig)
    rig.publish(SaveReason.INTERVAL, 1)
    for to, number in (("clicks:0:39", 1), ("clicks:0:40", 2), ("clicks:0:19", 0), ("-1h", 0)):
        plan = api.post("/rewind", {"to": to, "dry_run": True})
        assert (plan.status_code, plan.json().get("to")) == (200, number), to
    assert "no partition of this timeline" in is_problem(api.post("/rewind", {"to": "clicks:7:1"}), 422)["detail"]
    assert "no place to go back to" in is_problem(api.post("/rewind", {"to": "yesterday"}), 422)["detail"]


def test_a_rewind_to_the_best_says_which_and_why_and_goes_there(api: Client, rig: Rig) -> None:
    for parent, accuracy in enumerate((0.75, 0.875, 0.5)):
        rig.publish(SaveReason.INTERVAL, parent, accuracy=accuracy)
    plan = api.post("/rewind", {"to": "best", "dry_run": True}).json()
    assert (plan["to"], plan["metrics"], plan["measured"]["watched"]) == (2, {"accuracy": 0.875}, "accuracy")
    assert plan["why"].startswith("the best of 3 on the present timeline by accuracy (higher is better): 0.875")
    assert "why" not in api.post("/rewind", {"to": "latest", "dry_run": True}).json()
    done = api.post("/rewind?wait=20s", {"to": "best"})
    assert (done.status_code, done.json()["checkpoint"]["parent"]) == (201, 2)


def test_the_status_keeps_showing_skips(api: Client, rig: Rig) -> None:
    learnt(rig)
    assert "skips" not in api.seen("/status")
    api.post("/rewind?wait=20s", {"to": 0, "skip": ["clicks:0:3-5", "clicks:1:100-100"], "reason": "bad import"})
    order = {
        "order": "rewind-1",
        "number": 1,
        "by": "127.0.0.1 over HTTP",
        "reason": "bad import",
        "ranges": ["clicks:0:3-5", "clicks:1:100-100"],
        "offsets": 4,
        "passed": 0,
    }
    assert api.seen("/status")["skips"] == [order]
    api.post("/rewind?wait=20s", {"to": 0, "reason": "once more"})
    status = api.seen("/status")
    assert status["skips"] == [order]
    assert status["rewound"] == {"number": 2, "to": 0, "by": "127.0.0.1 over HTTP", "reason": "once more"}
    assert (status["checkpoint"]["note"], status["checkpoint"]["ordered_by"]) == ("once more", "127.0.0.1 over HTTP")
    plan = api.post("/rewind", {"to": 0, "dry_run": True}).json()
    assert plan["skips"] == [order]
    api.post("/rewind?wait=20s", {"to": 0, "unskip": ["rewind-1"]})
    assert api.seen("/status")["skips"] == [{**order, "lifted_by": 3}]
    assert rig.service.ledger.skips == ()


def test_a_skip_that_does_not_exist_cannot_be_lifted(api: Client, rig: Rig) -> None:
    assert "rewind-9" in is_problem(api.post("/rewind?wait=5s", {"to": 0, "unskip": ["rewind-9"]}), 422)["detail"]
    assert rig.folder.numbers() == [0]


def test_a_damaged_checkpoint_is_refused_before_anything_stops(api: Client, rig: Rig) -> None:
    learnt(rig)
    rig.publish(SaveReason.INTERVAL, 0)
    (rig.folder.checkpoint(1) / "model.safetensors").write_bytes(b"")
    for body in ({"to": 1, "dry_run": True}, {"to": 1}):
        detail = is_problem(api.post("/rewind", body), 409)["detail"]
        assert "corrupt" in detail
    assert rig.folder.numbers() == [0, 1]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"to": 7}, 404, "no checkpoint has the number 7"),
        ({"to": 0, "skip": ["clicks:9:1-2"]}, 422, "clicks:9"),
        ({"to": 0, "skip": ["clicks:0:5-4"]}, 422, "ends before it begins"),
        ({"to": 0, "skip": ["clicks:0"]}, 422, "not a range"),
        ({"to": 0, "skip": ["clicks:0:-1-4"]}, 422, "not a range"),
        ({"to": 0, "skip": ["../..:0:1-4"]}, 422, "no partition"),
        ({"to": 0, "skip": ["clicks:٣:1-4"]}, 422, "not a range"),
        ({"to": 0, "skip": [f"clicks:0:1-{'9' * 40}"]}, 422, "not a range"),
        ({"to": 0, "skip": ["clicks:0:1-2"] * 101}, 422, "at most 100"),
        ({"to": -1}, 422, "body.to"),
        ({"to": "0"}, 422, "body.to"),
        ({"to": True}, 422, "body.to"),
        ({"to": 10**400}, 422, "body.to"),
        ({"to": 0.5}, 422, "body.to"),
        ({"to": None}, 422, "body.to"),
        ({"to": 0, "surplus": 1}, 422, "surplus"),
        ({"to": 0, "reason": "x" * 501}, 422, "reason"),
        ({"to": 0, "reason": "two\nlines"}, 422, "reason"),
        ({}, 422, "body.to"),
        ([], 422, "body"),
        ("0", 422, "body"),
    ],
)
def test_an_impossible_rewind_is_refused(standing: Client, body: Any, status: int, word: str) -> None:
    assert word in is_problem(standing.post("/rewind?wait=5s", body), status)["detail"]
    assert standing.rig.folder.numbers() == [0]


def test_an_offset_that_the_checkpoint_has_learnt_cannot_be_skipped_from_there(api: Client, rig: Rig) -> None:
    learnt(rig)
    rig.publish(SaveReason.INTERVAL, 0)
    assert "clicks:0" in is_problem(api.post("/rewind", {"to": 1, "skip": ["clicks:0:3-4"]}), 409)["detail"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b'{"to": ' + b"9" * 5000 + b"}",
        b'{"to": NaN}',
        b'{"to": 0, "reason": "\\ud800"}',
        b'{"\\ud800": 0}',
        b'{"to": 0, "skip": ["\\ud800:0:1-2"]}',
    ],
)
@pytest.mark.parametrize("path", ["/rewind", "/checkpoints/0/restore", "/checkpoints", "/profile"])
def test_a_malformed_body_is_never_a_server_error(api: Client, rig: Rig, path: str, content: bytes) -> None:
    answer = api.post(path, content=content, headers={"content-type": "application/json"})
    if content or path == "/rewind":
        assert answer.status_code in (400, 409, 422)
        is_problem(answer, answer.status_code)
    else:
        assert answer.status_code in (200, 202)


@pytest.mark.parametrize("wait", ["30", "x", "11m", "-1s", "1e9s", "9" * 19 + "d", "", "1s" * 20, "%ff"])
@pytest.mark.parametrize(("path", "body"), COMMANDS)
def test_an_invalid_wait_is_refused_before_the_command_is_sent(
    standing: Client, path: str, body: Any, wait: str
) -> None:
    assert "wait" in is_problem(standing.post(f"{path}?wait={wait}", body), 422)["detail"]
    assert standing.rig.folder.numbers() == [0]
    assert standing.rig.service.phases.phase is Phase.IDLE


def test_a_profile_has_its_own_folder_and_says_how_to_open_it(api: Client, rig: Rig) -> None:
    first, second = (api.post("/profile", {"calls": 3}).json() for _ in range(2))
    assert first["calls"] == 3
    assert first["folder"] != second["folder"]
    assert Path(first["folder"]).parent == rig.folder.root / "profiles"
    assert first["open"].endswith(f"tensorboard --logdir {first['folder']}")


def test_a_profile_without_wait_is_an_operation(api: Client, rig: Rig, wait_for: WaitFor) -> None:
    rig.obeying.clear()
    answer = api.post("/profile?wait=0s")
    assert answer.status_code == 202
    rig.obeying.set()
    wait_for(lambda: api.seen(answer.headers["location"])["operation"]["state"] == "succeeded")
    operation = api.seen(answer.headers["location"])["operation"]
    assert (operation["kind"], Path(operation["profile"]).parent) == ("profile", rig.folder.root / "profiles")


@pytest.mark.parametrize("calls", [0, 1001, "3", 2.5, True])
def test_a_profile_of_an_invalid_number_of_calls_is_refused(standing: Client, calls: Any) -> None:
    is_problem(standing.post("/profile", {"calls": calls}), 422)


def test_a_profile_that_cannot_be_taken_says_why(api: Client, rig: Rig) -> None:
    rig.refuse_with = ProfileError("TensorFlow took no profile")
    assert "took no profile" in is_problem(api.post("/profile"), 503)["detail"]
    rig.refuse_with = ProfileBusyError("a profile is being taken already; ask again when it is written")
    assert "taken already" in is_problem(api.post("/profile"), 409)["detail"]


def test_a_pause_pauses_and_a_resume_goes_on(api: Client, rig: Rig) -> None:
    answer = api.post("/pause")
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["reason"]) == ("paused", "asked to by 127.0.0.1 over HTTP")
    assert rig.service.phases.phase is Phase.PAUSED
    assert api.post("/resume").json()["state"] == "idle"


@pytest.mark.parametrize(("path", "body"), COMMANDS)
def test_an_ending_trainer_takes_no_command(api: Client, rig: Rig, path: str, body: Any) -> None:
    rig.service.phases.enter(Phase.STOPPING)
    is_problem(api.post(path, body), 409)


@pytest.mark.parametrize(("path", "body"), COMMANDS)
def test_a_trainer_that_has_not_restored_takes_no_command_yet(api: Client, rig: Rig, path: str, body: Any) -> None:
    rig.service.board.latest = None
    answer = api.post(path, body)
    is_problem(answer, 503)
    assert answer.headers["retry-after"] == "5"


def test_a_command_to_a_trainer_that_dies_does_not_run_for_ever(api: Client, rig: Rig) -> None:
    rig.obeying.clear()
    where = api.post("/checkpoints").headers["location"]
    rig.deaf = True
    rig.kill_trainer()
    operation = api.seen(where)["operation"]
    assert operation["state"] == "failed"
    assert operation["complaint"] == "The trainer ended before it carried the command out."


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    operation = operations.Operation(id="1", kind="save", answer=Future(), began_at=0.0, trainer_alive=lambda: True)

    async def leave() -> None:
        waiting = asyncio.create_task(operation.wait(60.0))
        await asyncio.sleep(0)
        assert len(operation._waits) == 1
        waiting.cancel()
        await asyncio.wait({waiting})

    asyncio.run(leave())
    assert not operation._waits


def test_commands_that_wait_for_the_trainer_are_bounded(api: Client, rig: Rig) -> None:
    rig.obeying.clear()
    codes = [api.post("/checkpoints").status_code for _ in range(20)]
    assert codes == [202] * 16 + [429] * 4
    is_problem(api.post("/checkpoints"), 429)


def test_finished_operations_make_room_the_oldest_first(api: Client, rig: Rig) -> None:
    rig.obeying.clear()
    first = api.post("/pause?wait=0s").headers["location"]
    rig.obeying.set()
    for _ in range(100):
        assert api.post("/resume?wait=20s").status_code == 200
    is_problem(api.get(first), 404)


def test_an_error_of_the_trainer_reaches_the_client(api: Client, rig: Rig) -> None:
    rig.refuse_with = DataLossError("clicks:0 cannot be skipped")
    assert is_problem(api.post("/rewind?wait=20s", {"to": 0}), 409)["detail"] == "clicks:0 cannot be skipped"


def test_a_plan_leaves_out_a_partition_newer_than_the_checkpoint(api: Client, rig: Rig) -> None:
    rig.service.ledger.join(Partition("clicks", 2), 5)
    plan = api.post("/rewind", {"to": 0, "dry_run": True}).json()
    assert set(plan["partitions"]) == {"clicks:0", "clicks:1"}


def test_a_pin_is_held_by_who_sent_it_until_it_is_lifted(api: Client, rig: Rig) -> None:
    learnt(rig)
    api.post("/checkpoints?wait=20s")
    answer = api.post("/checkpoints/1/pin")
    assert answer.status_code == 200
    (pin,) = answer.json()["pins"]
    assert pin["by"] == "127.0.0.1 over HTTP"
    newest, beginning = api.seen("/checkpoints")["checkpoints"]
    assert (newest["pins"], "pins" in beginning) == ([pin], False)
    assert api.seen("/checkpoints/1")["checkpoint"]["pins"] == [pin]
    assert Pins(rig.folder).numbers() == {1}
    is_problem(api.post("/checkpoints/1/unpin", {"by": "somebody else"}), 404)
    assert api.post("/checkpoints/1/unpin").json()["pins"] == []
    is_problem(api.post("/checkpoints/1/unpin"), 404)
    is_problem(api.post("/checkpoints/9/pin"), 404)
    assert Pins(rig.folder).numbers() == frozenset()
