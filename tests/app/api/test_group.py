"""Workers that are not the chief answer whoever asks, and send whoever commands to the chief."""

from dataclasses import replace
from typing import Any

import pytest

from millrace.app.monitoring.observer import Observation, Observer
from millrace.app.monitoring.snapshot import take
from millrace.app.monitoring.status import status_of
from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import P0, Client, Rig, is_problem
from tests.app.groups import group, member

LED: list[tuple[str, Any]] = [
    ("/checkpoints", None),
    ("/checkpoints/0/restore", None),
    ("/checkpoints/0/pin", None),
    ("/checkpoints/0/unpin", None),
    ("/rewind", {"to": 0}),
    ("/rewind", {"to": 0, "dry_run": True}),
    ("/pause", None),
    ("/resume", None),
]


@pytest.fixture
def follower(api: Client, rig: Rig) -> Client:
    """Whoever asks worker 1 of two."""
    rig.service.board.group = group(1, member(lag_records=7, waited_s=2.0), member(learnt=3, states=("held",)))
    return api


@pytest.mark.parametrize(("path", "body"), LED)
def test_a_command_to_a_worker_is_refused_and_names_the_chief(follower: Client, path: str, body: Any) -> None:
    problem = is_problem(follower.post(path, body), 409)
    assert problem["type"] == "urn:millrace:not-the-chief"
    assert "worker 1" in problem["detail"]
    assert problem["fix"].endswith("on the host millrace-0.millrace.")


def test_a_worker_takes_a_profile_of_its_own_calls(follower: Client) -> None:
    assert follower.post("/profile", {"calls": 3}).status_code == 200


def test_the_chief_takes_commands(api: Client, rig: Rig) -> None:
    rig.service.board.group = group(0, member(), member())
    assert api.post("/pause").json()["state"] == "paused"


def test_a_worker_answers_probes_reads_and_metrics(follower: Client) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/lag", "/throughput", "/events", "/checkpoints"):
        assert follower.get(path).status_code == 200, path
    shown = follower.seen("/status")["group"]
    assert (shown["worker"], shown["workers"], shown["lag_records"]) == (1, 2, 7)
    assert shown["members"]["1"]["states"] == ["held"]
    assert "states" not in shown["members"]["0"]


def test_one_process_alone_leaves_the_group_out(api: Client) -> None:
    assert "group" not in api.seen("/status")


def test_a_chief_that_waits_says_where_the_missing_are_named(api: Client, rig: Rig) -> None:
    rig.service.board.group, rig.service.board.latest = group(0, missing=(1,)), None
    rig.service.phases._phase = Phase.WAITING
    assert "/status names those" in is_problem(api.post("/pause"), 503)["fix"]
    assert api.get("/readyz").status_code == 200


def as_a_worker(rig: Rig) -> Observation:
    """Look at a worker as it learns: it saves nothing, commits nothing, and reads a part of the partitions."""
    rig.produce(P0, 5)
    rig.learn_all()
    rig.last = None
    rig.post()
    rig.service.board.group = group(1, member(), member(learnt=5))
    return Observer(lambda: take(rig.service)).look()


def test_a_worker_that_never_saves_nor_commits_has_no_problem(rig: Rig) -> None:
    seen = as_a_worker(rig)
    status = status_of(seen)
    assert (status.problems, status.checkpoint, status.mood) == ([], None, "well")


def test_without_a_group_nothing_of_it_is_in_a_verdict(rig: Rig) -> None:
    seen = as_a_worker(rig)
    alone = replace(seen, snapshot=replace(seen.snapshot, group=None))
    assert "group" not in status_of(alone).verdict
