"""The answers of the reads."""

import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.app.service.lifecycle_events import tell_ended
from millrace.app.service.service import await_letters
from millrace.consumers.dead_letters.backlog import Backlog, BacklogOptions
from millrace.consumers.dead_letters.letter import CountedOnly, DeadLetter, DeadLetterStatistics
from millrace.consumers.errors import TopicMissingError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.gates.flood import FloodGate, Judged, PauseAboveSettings
from millrace.pipelines.gates.schema_gate import SchemaGate
from millrace.pipelines.registry.schemas import KeptSchemas
from millrace.pipelines.stream.decode import Refused, decode_chunk
from millrace.training.checkpoints import SaveReason
from millrace.training.checkpoints.mirror.figures import MirrorFigures
from millrace.training.errors import CheckpointError
from millrace.training.group.lockstep_trainer import _not_acknowledged
from millrace.training.recovery.crash_guard import CrashLoop
from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import P0, P1, Client, Rig, is_problem
from tests.pipelines.stream.test_decode import BARE, chunk_of

LOOKS = ["/livez", "/readyz", "/health", "/status", "/lag", "/throughput", "/checkpoints", "/checkpoints/0"]


@pytest.fixture
def starting(rig: Rig) -> Iterator[Client]:
    """Serve a service that has only its settings yet."""
    from millrace.app.service.service import RunOptions, Service

    service = Service(rig.service._loaded, RunOptions())
    client = Client(rig, service=service)
    yield client
    client.close()


@pytest.mark.parametrize("path", LOOKS)
def test_every_answer_carries_its_time_the_name_and_the_version(api: Client, path: str) -> None:
    answer = api.seen(path)
    assert answer["name"] == "clicks"
    assert answer["version"]
    assert answer["as_of"].endswith("Z")


def test_a_service_at_work_is_alive_and_ready(api: Client) -> None:
    alive = api.seen("/livez")
    assert (alive["status"], alive["state"]) == ("ok", "idle")
    assert not {"checks", "reasons"} & set(alive)
    assert [check["check"] for check in api.seen("/readyz?verbose")["checks"]] == [
        "trainer",
        "failed",
        "progress",
        "restored",
        "kafka",
        "crash_loop",
        "registry",
        "held",
    ]
    checks = [[check["check"] for check in api.seen(path)["checks"]] for path in ("/health", "/livez?verbose")]
    assert checks[0] == checks[1]


def test_a_starting_service_is_alive_and_not_ready(starting: Client, rig: Rig) -> None:
    starting.service._thread = rig.service._thread
    assert starting.get("/livez").status_code == 200
    answer = starting.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["it is starting, not at work", "Kafka does not answer"]


def test_the_status_of_a_starting_service_leaves_out_unknown_values(starting: Client) -> None:
    status = starting.seen("/status")
    assert status["verdict"].startswith("Starting:")
    assert not {"live", "training", "checkpoint"} & set(status)
    assert "lag_records" not in status["stream"]
    assert "fetched" not in status["records"]
    assert starting.seen("/checkpoints")["total"] == 1


def test_an_unreachable_broker_makes_it_unready_but_not_dead(api: Client, rig: Rig) -> None:
    rig.source.meter.unanswered("no answer within 10 s")
    assert api.get("/livez").status_code == 200
    assert api.get("/readyz").json()["reasons"] == ["Kafka does not answer"]
    status = api.seen("/status")
    assert status["verdict"].startswith("Kafka has been away for under 1 s; ")
    assert status["mood"] == "warn"
    (problem,) = status["problems"]
    assert problem["problem"] == "kafka_away"
    assert "localhost:9092" in problem["what"]


def test_a_phase_past_its_limit_fails_liveness(api: Client, rig: Rig) -> None:
    rig.service.phases.enter(Phase.TRAINING)
    rig.clock.ahead = 299
    assert api.get("/livez").status_code == 200
    rig.clock.ahead = 301
    answer = api.get("/livez")
    assert answer.status_code == 503
    (reason,) = answer.json()["reasons"]
    assert re.fullmatch(r"training for 30\d\.\d s, which is past its limit of 300 s", reason)
    status = api.seen("/status")
    assert status["verdict"].startswith("Hung: training for 5 min without progress.")
    assert status["mood"] == "bad"
    (problem,) = status["problems"]
    assert problem["problem"] == "hung"
    assert problem["fix"].endswith("If it is only slow, raise limits.call.")


def test_a_pause_may_last_for_ever(api: Client, rig: Rig) -> None:
    rig.service.phases.enter(Phase.PAUSED, "asked to")
    rig.clock.ahead = 1e6
    assert api.get("/livez").status_code == 200
    assert api.get("/readyz").status_code == 200
    status = api.seen("/status")
    assert status["verdict"].startswith("Paused: asked to.")
    assert status["mood"] == "rest"


def test_a_crash_loop_is_alive_and_not_ready_and_says_how_to_skip_the_record(api: Client, rig: Rig) -> None:
    loop = CrashLoop(starts=3, number=0, suspects={P1: (7, 9), P0: (100, 164)})
    rig.brake(loop)
    assert api.get("/livez").status_code == 200
    assert api.get("/readyz").json()["reasons"] == [f"paused: {loop}"]
    status = api.seen("/status")
    assert status["verdict"].startswith("Paused: 3 starts in a row died in a call")
    (problem,) = status["problems"]
    assert problem["problem"] == "crash_loop"
    command = "millrace rewind -c CONFIG --to 0 --skip clicks:0:100-163 --skip clicks:1:7-8"
    assert f"`{command}`, then POST /resume" in problem["fix"]

    skip = {"to": 0, "skip": ["clicks:0:100-163", "clicks:1:7-8"]}
    assert api.post("/rewind?wait=5s", skip).status_code == 201
    rig.post()
    rig.service.phases.enter(Phase.PAUSED, str(loop))
    (problem,) = api.seen("/status")["problems"]
    assert problem["fix"] == "Checkpoint 1 was ordered since: POST /resume continues from it."
    assert api.get("/readyz").status_code == 503
    assert api.post("/resume").status_code == 200
    assert api.seen("/status")["problems"] == []
    assert api.get("/readyz").status_code == 200


def test_a_crash_loop_without_suspects_and_a_pause_by_command_after_it(api: Client, rig: Rig) -> None:
    loop = CrashLoop(starts=9, number=0, suspects={})
    rig.brake(loop)
    (problem,) = api.seen("/status")["problems"]
    assert problem["fix"].startswith("Look for a cause other than the records")
    assert api.post("/pause").status_code == 200
    assert api.seen("/status")["problems"] == []
    assert api.get("/readyz").status_code == 200


def test_a_failure_fails_liveness_and_says_why(api: Client, rig: Rig) -> None:
    rig.service.phases.enter(Phase.FAILED, "the topic is gone")
    assert api.get("/livez").json()["reasons"] == ["it failed: the topic is gone"]
    assert api.get("/health").status_code == 503
    status = api.seen("/status")
    assert status["verdict"].startswith("Failed: the topic is gone.")
    assert status["mood"] == "bad"
    assert status["reason"] == "the topic is gone"


def test_a_long_failure_stands_once_with_its_command(api: Client, rig: Rig) -> None:
    command = "kafka-topics.sh --bootstrap-server localhost:9092 --create --topic clicks --partitions 4"
    why = f"topic clicks is not at localhost:9092; create it: {command}"
    rig.service.phases.enter(Phase.FAILED, why)
    tell_ended(rig.service.events.report, TopicMissingError(why))
    status, (event,) = api.seen("/status"), api.seen("/events")["events"]
    assert status["verdict"].startswith("Failed: topic clicks is not at localhost:9092. ")
    assert event["text"] == "The training ended: topic clicks is not at localhost:9092."
    assert event["facts"] == {"error": why}
    assert [command in text for text in (status["verdict"], event["text"], status["problems"][0]["what"])] == [
        False,
        False,
        True,
    ]


def test_one_dead_letter_is_singular(api: Client, rig: Rig) -> None:
    rig.running.dead_letters = Waiting()
    (problem,) = api.seen("/status")["problems"]
    assert problem["what"].startswith("1 dead letter waits for its topic, 1.0 kB (TimeoutError).")
    assert re.fullmatch(r"Check that the topic \S+ exists and may be written to\.", problem["fix"])


class Waiting(CountedOnly):
    """One letter waits for its topic."""

    def statistics(self) -> DeadLetterStatistics:
        return replace(super().statistics(), waiting=1, waiting_bytes=1024, last_error="TimeoutError")


def test_a_start_that_sets_all_aside_says_which_field_and_the_way_back(api: Client, rig: Rig) -> None:
    def problems() -> list[dict[str, str]]:
        return [problem for problem in api.seen("/status")["problems"] if problem["problem"] == "nothing_learnt"]

    for offset in range(99):
        rig.running.dead_letters.put([_letter(offset, Reason.MISSING, field="click")])
    assert not problems()
    rig.running.dead_letters.put([_letter(99, Reason.MALFORMED)])
    (problem,) = problems()
    assert problem["what"] == (
        "Nothing is learnt: all 100 records that came were set aside, most as missing (field 'click')."
    )
    assert "millrace validate -c CONFIG" in problem["fix"]
    assert "millrace rewind -c CONFIG --to 0" in problem["fix"]
    rig.produce(P0, 1)
    rig.learn_all()
    assert not problems()


def test_a_flood_is_alive_and_not_ready_and_names_three_ways_out(api: Client, rig: Rig) -> None:
    gate = FloodGate(PauseAboveSettings(share=0.05, over="60s"))
    rig.service.holding.gates = (gate,)
    bad = Judged(partition=P0, start=0, end=500, records=500, bad=480, most="missing (field 'id')")
    assert not gate.passes(bad)
    why = "480 of the 500 records decoded within 4 s cannot be learnt, most as missing (field 'id')"
    rig.service.phases.enter(Phase.PAUSED, why)
    assert api.get("/livez").status_code == 200
    assert api.get("/readyz").json()["reasons"] == [f"paused: {why}"]
    status = api.seen("/status")
    assert status["verdict"].startswith(f"Paused: {why}.")
    (problem,) = status["problems"]
    assert problem["problem"] == "bad_records"
    assert problem["what"] == f"The learning is paused, as there are too many bad records: {why}."
    assert "millrace validate -c CONFIG" in problem["fix"]
    assert "millrace resume -c CONFIG" in problem["fix"]
    gate.let_pass({})
    assert api.get("/readyz").status_code == 200
    assert api.seen("/status")["problems"] == []


def test_records_that_wait_for_their_schema_are_a_problem_and_not_ready(api: Client, rig: Rig) -> None:
    lacks = "the schema registry does not give schema 7: http://registry:8081: connection refused"
    whole = rig.running.stream_statistics()
    rig.running.stream_statistics = lambda: replace(whole, feed=replace(whole.feed, lacks=lacks))
    assert api.get("/livez").status_code == 200
    assert api.get("/readyz").json()["reasons"] == [f"records wait for their schema: {lacks}"]
    (problem,) = api.seen("/status")["problems"]
    assert (problem["problem"], problem["what"]) == ("registry_away", f"Records wait for their schema: {lacks}.")
    rig.running.stream_statistics = lambda: whole
    assert api.get("/readyz").status_code == 200


def test_a_schema_that_cannot_be_read_is_alive_and_not_ready_and_says_what_to_do(api: Client, rig: Rig) -> None:
    gate = SchemaGate(KeptSchemas(None), lambda _: None)
    rig.service.holding.gates = (gate,)
    refused = Refused(7, Reason.MISSING, "price", 6, "the schema has no field 'price'; it has hour")
    decoded = replace(decode_chunk(chunk_of([]), make_decoder("json", BARE)), partition=P0, refused=(refused,))
    assert not gate.admits(decoded)
    why = f"at {P0}:7 schema 6 does not give the field 'price': the schema has no field 'price'; it has hour"
    assert api.get("/livez").status_code == 200
    assert api.get("/readyz").json()["reasons"] == [f"paused: {why}"]
    (problem,) = api.seen("/status")["problems"]
    assert problem["problem"] == "schema_incompatible"
    assert problem["what"] == f"The learning is paused, as a new schema cannot be read: {why}."
    assert problem["fix"].startswith("Mend the field 'price' in `records` (missing, field or dtype) and restart")
    rig.service.holding.let_pass()
    assert api.get("/readyz").status_code == 200


def _letter(offset: int, reason: Reason, field: str | None = None) -> DeadLetter:
    return DeadLetter(
        partition=P0,
        offset=offset,
        timestamp_ms=0,
        key=None,
        value=b"{}",
        headers=(),
        reason=reason,
        field=field,
        model="clicks",
    )


def test_a_trainer_without_its_thread_fails_liveness(api: Client, rig: Rig) -> None:
    rig.kill_trainer()
    assert api.get("/livez").json()["reasons"] == ["its thread is gone"]
    rig.service.phases.enter(Phase.STOPPING)
    rig.service.phases.enter(Phase.ENDED)
    assert api.get("/livez").status_code == 200


def test_the_records_add_up_at_every_stage(api: Client, rig: Rig) -> None:
    def records() -> dict[str, int]:
        seen: dict[str, int] = dict(api.seen("/status")["records"])
        assert seen["balanced"]
        assert seen["fetched"] == seen["handed"] + seen["held"] + seen["discarded"]
        assert seen["offsets"] == seen["learnt"] + sum(seen["set_aside"].values())  # type: ignore[attr-defined]
        return seen

    rig.produce(P0, 10, bad=2)
    rig.produce(P1, 20)
    assert records()["held"] == 30
    block = rig.draw()
    assert records()["held"] == 30
    rig.learn(block)
    assert records()["held"] < 30
    rig.learn_all()
    after = records()
    assert after | {"held": 0, "learnt": 28, "offsets": 30, "set_aside": {"malformed": 2}} == after
    rig.produce(P0, 5)
    rig.handoff.close()
    assert records()["discarded"] == 5


def test_lag_is_what_is_not_learnt_rather_than_what_is_not_fetched(api: Client, rig: Rig) -> None:
    rig.produce(P0, 10)
    rig.produce(P1, 30)
    assert rig.source.statistics().lag.records == 0
    lag = api.seen("/lag")
    assert lag["lag_records"] == 40
    assert lag["partitions"]["clicks:1"] == {"position": 0, "fetched": 30, "end": 30, "lag_records": 30}
    rig.learn_all()
    after = api.seen("/lag")
    assert (after["lag_records"], after["lag_s"], after["catch_up_s"]) == (0, 0.0, 0.0)
    assert ", caught up, bound by " in api.seen("/status")["verdict"]


def test_a_partition_with_an_unknown_end_makes_the_lag_unknown_not_zero(api: Client, rig: Rig) -> None:
    rig.service.ledger.join(Partition("clicks", 2), 0)
    lag = api.seen("/lag")
    assert "lag_records" not in lag
    assert lag["partitions"]["clicks:2"] == {"position": 0}


def test_retention_left_counts_from_the_oldest_record_that_is_not_learnt(api: Client, rig: Rig) -> None:
    rig.source.meter.retention({"clicks": 3_600_000})
    rig.produce(P0, 8)
    rig.learn_all()
    assert rig.learnt_to_ms is not None
    rig.learnt_to_ms -= 600_000
    rig.post()
    rig.produce(P1, 4)
    left = api.seen("/lag")["retention_s_left"]
    assert 2900 < left < 3001
    assert api.seen("/status")["stream"]["retention_s_left"] <= left


def test_where_everything_is_learnt_the_whole_retention_is_left(api: Client, rig: Rig) -> None:
    assert "retention_s_left" not in api.seen("/lag")
    rig.source.meter.retention({"clicks": 3_600_000})
    assert api.seen("/lag")["retention_s_left"] == 3600.0


@pytest.mark.parametrize("kept_ms", [{"clicks": None}, {"others": 3_600_000}])
def test_retention_that_is_unlimited_or_unknown_is_left_out(
    api: Client, rig: Rig, kept_ms: dict[str, int | None]
) -> None:
    rig.source.meter.retention(kept_ms)
    rig.produce(P0, 8)
    rig.learn(rig.draw())
    rig.post()
    rig.produce(P0, 8)
    assert "retention_s_left" not in api.seen("/lag")


def test_the_verdict_is_made_of_the_numbers(api: Client, rig: Rig) -> None:
    rig.produce(P0, 100)
    rig.learn(rig.draw())
    rig.post()
    rig.service.phases.enter(Phase.TRAINING)
    status = api.seen("/status")
    rate = status["throughput"]["records_per_s"]["10s"]
    shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    assert status["verdict"] == (
        f"Learning. {shown} records/s, caught up, bound by compute. "
        "Accuracy 0.75 over the last minute (base rate: 0.75)."
    )
    assert status["mood"] == "well"
    assert status["live"]["headline"] == "accuracy"


def test_the_live_metrics_stand_beside_the_baseline(api: Client, rig: Rig) -> None:
    rig.produce(P0, 8)
    rig.learn_all()
    rig.post()
    live = api.seen("/status")["live"]
    assert live["accuracy"] == 0.75
    assert live["baseline"]["accuracy"] == 0.75
    assert live["guesses"]["accuracy"] == "base rate"
    assert live["watch"] == {
        "metric": "accuracy",
        "better": "higher",
        "value": 0.75,
        "baseline": 0.75,
        "guess": "base rate",
        "ahead": 0.0,
    }
    assert live["cumulative"] == {"records": 8, "loss": 0.5, "accuracy": 0.75}


def test_a_metric_that_is_not_finite_is_left_out_rather_than_failing_the_answer(api: Client, rig: Rig) -> None:
    rig.live._results = lambda _states: {"accuracy": float("nan"), "window": 3.0}
    rig.produce(P0, 8)
    rig.learn_all()
    rig.post()
    live = api.seen("/status")["live"]
    assert "accuracy" not in live
    assert live["window"] == "1m"
    assert live["window_"] == 3.0


@pytest.mark.parametrize("away", [True, False], ids=["Kafka is away", "the topic takes none"])
def test_letters_that_wait_are_one_problem_with_the_save_that_waits_for_them(api: Client, rig: Rig, away: bool) -> None:
    clock = [100.0]
    backlog = Backlog(BacklogOptions(), lambda: clock[0])
    rig.running.dead_letters = rig.service.holding._letters = cast("Any", backlog)
    for offset in range(3):
        backlog.put_at_once(_letter(offset, Reason.MALFORMED))
    clock[0] += 60
    with pytest.raises(CheckpointError) as alone:
        await_letters(
            cast("Any", SimpleNamespace(sequence=lambda: 3, wait_acknowledged=lambda *_: False)),
            "dead",
            cast("Any", None),
        )
    for error in (alone.value, _not_acknowledged(5.0)):
        rig.save_error = error
        rig.post()
        rig.service.phases.enter(Phase.PAUSED, rig.service.holding.reason)
        if away:
            rig.source.meter.unanswered("no answer within 10 s")
        status = api.seen("/status")
        (problem,) = status["problems"]
        assert problem["problem"] == ("kafka_away" if away else "dead_letters_waiting")
        assert "3 dead letters wait for their topic, 1.5 kB" in problem["what"]
        begins = "Kafka has been away for" if away else "Paused: the topic None has taken no dead letter for 60 s"
        assert status["verdict"].startswith(begins)
        assert status["resumes_by_itself"] is True
        assert "by itself" in status["throughput"]["advice"] or away
    rig.service.phases.enter(Phase.PAUSED, "asked to")
    status = api.seen("/status")
    assert "resumes_by_itself" not in status
    assert status["verdict"].startswith("Paused: asked to.")
    backlog.acknowledge(3)
    kinds = {problem["problem"]: problem for problem in api.seen("/status")["problems"]}
    assert "dead_letters_waiting" not in kinds
    assert kinds["save_failing"]["fix"] == "The next save waits for the dead letters again."


def test_the_queue_is_shown_by_part_against_its_bound(api: Client, rig: Rig) -> None:
    rig.produce(P0, 10)
    queued = api.seen("/throughput")["queued_bytes"]
    assert (
        queued["total"] == sum(queued[part] for part in ("client", "handoff", "decoding", "assembling", "blocks")) == 80
    )
    assert queued["limit"] == 256 * 2**20


def test_a_mirror_that_fails_is_a_problem_and_a_place_in_the_status(
    api: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = MirrorFigures(place="s3://models/clicks", number=3, failed=2, error="the bucket is gone")
    monkeypatch.setattr(rig.service.mirroring, "figures", lambda: figures)
    status = api.seen("/status")
    assert status["mirror"] == {
        "place": "s3://models/clicks",
        "number": 3,
        "copied": 0,
        "failed": 2,
    } | {"error": "the bucket is gone"}
    (problem,) = status["problems"]
    assert problem["problem"] == "mirror_failing"
    assert problem["what"].endswith("s3://models/clicks, which has checkpoint 3: the bucket is gone")
    assert api.seen("/status")["throughput"].get("advice") != problem["fix"]


def test_a_save_that_fails_is_a_problem_until_one_succeeds(api: Client, rig: Rig) -> None:
    rig.save_error = "No space left on device"
    rig.post()
    (problem,) = api.seen("/status")["problems"]
    assert problem["problem"] == "save_failing"
    assert "No space left on device" in problem["what"]
    again = api.seen("/status")["problems"][0]
    assert again["since"] == problem["since"]
    rig.save_error = None
    rig.post()
    assert api.seen("/status")["problems"] == []


def test_other_consumers_in_the_group_are_a_problem_that_names_the_group(api: Client, rig: Rig) -> None:
    rig.source.meter.committed(None)
    rig.source.meter.committed("CommitFailedError")
    (problem,) = api.seen("/status")["problems"]
    assert problem["problem"] == "commits_refused"
    assert "other consumers are in the group millrace-clicks" in problem["what"]
    assert api.seen("/lag")["commits"] == {"accepted": 1, "refused": {"CommitFailedError": 1}}


def test_partitions_that_may_not_join_are_a_problem(api: Client, rig: Rig) -> None:
    rig.source.meter.waiting([Partition("clicks", 2)])
    status = api.seen("/status")
    assert "clicks:2" in status["problems"][0]["what"]
    assert status["stream"]["partitions"] == {"assigned": 2, "of": 3}


def test_a_ledger_that_does_not_add_up_is_a_problem(api: Client, rig: Rig) -> None:
    accounts = rig.service.ledger._accounts
    accounts[P0] = replace(accounts[P0], learnt=accounts[P0].learnt + 1)
    status = api.seen("/status")
    assert status["records"]["balanced"] is False
    assert [problem["problem"] for problem in status["problems"]] == ["unbalanced"]


def test_reasons_are_those_of_the_ledger(api: Client, rig: Rig) -> None:
    rig.produce(P0, 6, bad=3)
    rig.learn_all()
    assert api.seen("/status")["records"]["set_aside"] == {Reason.MALFORMED.value: 3}


def test_checkpoints_are_listed_page_by_page_the_newest_first(api: Client, rig: Rig) -> None:
    for parent in range(5):
        rig.publish(SaveReason.INTERVAL, parent)
    path, numbers = "/checkpoints?limit=2", list[int]()
    while path:
        page = api.seen(path)
        assert page["total"] == len(rig.folder.numbers())
        numbers += [one["number"] for one in page["checkpoints"]]
        path = page.get("next", "")
    assert numbers == sorted(rig.folder.numbers(), reverse=True)


def test_what_is_wrong_with_a_checkpoint_is_shown(api: Client, rig: Rig) -> None:
    rig.publish(SaveReason.INTERVAL, 0)
    model = rig.folder.checkpoint(1) / "model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    (rig.folder.checkpoints / ".saving-0000000009-0000000001").mkdir()
    (rig.folder.checkpoints / "notes.txt").write_text("mine")
    listing = api.seen("/checkpoints")
    assert [one["condition"] for one in listing["checkpoints"]] == ["good", "good"]  # by sizes alone
    assert {one["name"]: one["condition"] for one in listing["others"]} == {
        ".saving-0000000009-0000000001": "temporary",
        "notes.txt": "unknown",
    }
    verified = api.seen("/checkpoints/1?verify=true")["checkpoint"]
    assert verified["condition"] == "corrupt"
    assert verified["verified"] is False
    assert "model.safetensors" in verified["complaints"][0]
    assert api.seen("/checkpoints/0?verify=true")["checkpoint"]["verified"] is True


def test_checkpoints_carry_their_metrics_and_the_best_is_named(api: Client, rig: Rig) -> None:
    for parent, accuracy in enumerate((0.75, 0.875, 0.5)):
        rig.publish(SaveReason.INTERVAL, parent, accuracy=accuracy)
    listing = api.seen("/checkpoints")
    assert listing["best"] == 2
    assert [one.get("metrics") for one in listing["checkpoints"]] == [
        {"accuracy": 0.5},
        {"accuracy": 0.875},
        {"accuracy": 0.75},
        {},
    ]
    measured = listing["checkpoints"][0]["measured"]
    assert (measured["watched"], measured["records"], measured["baseline"]["accuracy"]) == ("accuracy", 12_345, 0.5)
    assert api.seen("/checkpoints/best")["checkpoint"] == api.seen("/checkpoints/2")["checkpoint"]
    assert api.seen("/checkpoints/latest?verify=true")["checkpoint"]["number"] == 3


def test_where_nothing_was_measured_there_is_no_best(api: Client) -> None:
    assert "best" not in api.seen("/checkpoints")
    is_problem(api.get("/checkpoints/best"), 404)
    assert api.seen("/checkpoints/latest")["checkpoint"]["number"] == 0


def test_one_checkpoint_says_where_it_comes_from(api: Client, rig: Rig) -> None:
    rig.produce(P0, 8)
    rig.learn_all()
    rig.publish(SaveReason.DEMAND, 0, note="before the sale")
    seen = api.seen("/checkpoints/1")["checkpoint"]
    assert seen["parent"] == 0
    assert seen["positions"] == {"clicks:0": 8, "clicks:1": 0}
    assert seen["note"] == "before the sale"
    assert set(seen["files"]) == {"ledger.json", "model.safetensors"}


@pytest.mark.parametrize("path", ["/checkpoints/99", "/operations/nope", "/nope", "/checkpoints/0/../../etc/passwd"])
def test_a_missing_resource_is_a_404_with_a_fix(api: Client, path: str) -> None:
    is_problem(api.get(path), 404)


@pytest.mark.parametrize("number", ["-1", "x", "1.5", "9" * 30, "9" * 5000, "%00", "0x1", "1e3", "..."])
def test_an_invalid_number_is_refused(api: Client, number: str) -> None:
    is_problem(api.get(f"/checkpoints/{number}"), 422)


@pytest.mark.parametrize("number", ["..%2f..%2fetc", "%2e%2e%2f0", "..%2F0", "0%2f..%2f0"])
def test_a_number_that_climbs_out_of_the_folder_finds_nothing(api: Client, number: str) -> None:
    assert api.get(f"/checkpoints/{number}").status_code in (404, 422)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "before=-1", f"before={10**16}"])
def test_an_invalid_page_is_refused(api: Client, query: str) -> None:
    is_problem(api.get(f"/checkpoints?{query}"), 422)


def test_the_answer_to_a_wrong_method_names_the_right_ones(api: Client) -> None:
    answer = api.ask("DELETE", "/checkpoints/0")
    is_problem(answer, 405)
    assert answer.headers["allow"] == "GET, HEAD"
    is_problem(api.get("/pause"), 405)
    assert api.ask("PUT", "/checkpoints").headers["allow"] == "GET, HEAD, POST"
    is_problem(api.post("/status"), 405)


def test_an_internal_error_is_a_problem_document_too(api: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.folder.__class__, "numbers", lambda _self: 1 / 0)
    body = is_problem(api.get("/checkpoints"), 500)
    assert "ZeroDivision" not in body["detail"]


@pytest.mark.parametrize("path", ["/status", "/livez", "/metrics", "/checkpoints"])
def test_an_unreadable_service_says_so_in_a_problem_document(
    api: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Not even the envelope of that document may need what cannot be read."""
    monkeypatch.setattr(rig.service.ledger, "statistics", lambda: 1 / 0)
    body = is_problem(api.get(path), 500)
    assert body["name"] == "clicks"
    assert body["fix"] == "Report it with the log."


def test_a_command_to_an_unreadable_service_ends_in_a_problem_document(
    api: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.service.ledger, "statistics", lambda: 1 / 0)
    is_problem(api.post("/pause"), 500)
    is_problem(api.post("/pause", headers={"host": "evil.example"}), 403)
