"""What takes two looks: rates, shares of waiting, and since when."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from millrace.app.monitoring.health import ready
from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.snapshot import Snapshot, take
from millrace.app.monitoring.status import status_of
from millrace.app.monitoring.throughput import throughput_of
from millrace.app.service.figures import GpuFigures
from millrace.app.service.kafka_stream import StreamStatistics
from millrace.consumers.kafka.statistics import OpenTransaction
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.training.telemetry.meter import Meterings
from millrace.training.telemetry.phases import Phase
from millrace.training.trainer.board import Posting
from tests.app.api_rig import P0, Rig


class Scene:
    """Snapshots as a test wants them, looked at one after the other."""

    def __init__(self, rig: Rig) -> None:
        rig.produce(P0, 10)
        self.snapshot = take(rig.service)
        self.observer = Observer(lambda: self.snapshot)
        self.began = self.snapshot.clock

    def at(self, seconds: float, *, starved_s: float | None = None, end: int | None = None, **more: object) -> None:
        """Move the clock to this many seconds after the beginning."""
        changes: dict[str, object] = {"clock": self.began + seconds, "at": 1_000_000 + seconds, **more}
        stream, source = self.snapshot.stream, self.snapshot.source
        if starved_s is not None:
            feed = replace(stream.feed, waiting_records_s=starved_s)
            changes["stream"] = StreamStatistics(feed=feed, handoff=stream.handoff)
        if end is not None:
            lags = dict(source.lag.partitions)
            lags[P0] = replace(lags[P0], end=end)
            changes["source"] = replace(source, lag=replace(source.lag, partitions=lags))
        self.snapshot = replace(self.snapshot, **changes)  # type: ignore[arg-type]
        self.observer.look()


@pytest.fixture
def scene(rig: Rig) -> Scene:
    return Scene(rig)


def metered(
    snapshot: Snapshot,
    *,
    blocks: float,
    compute: float,
    workers: float = 0.0,
    rate: float = 100.0,
    calls: int = 10,
) -> Meterings:
    waiting = {"blocks": blocks, "workers": workers, "compute": compute, "saving": 0.0}
    return replace(snapshot.meter, calls=calls, waiting=waiting, records_per_s={"10s": rate, "1m": rate, "5m": rate})


def posted(scene: Scene) -> Posting:
    posting = scene.snapshot.posting
    assert posting is not None
    return posting


@pytest.mark.parametrize(
    ("blocks", "starved_s", "bound", "records"),
    [
        (0.05, 9.0, "compute", 0.05),  # it waits little: what the pipeline waits for does not matter
        (0.9, 9.5, "records", 0.9),  # it waits, and so does the pipeline: nothing comes
        (0.9, 0.0, "input", 0.0),  # it waits though the pipeline always has records: decoding, or preprocess
        (0.9, 2.0, "input", 0.2),
    ],
)
def test_a_wait_is_for_records_only_as_long_as_the_pipeline_waited_for_them(
    scene: Scene, blocks: float, starved_s: float, bound: str, records: float
) -> None:
    scene.at(0, starved_s=0.0)
    meter = metered(scene.snapshot, blocks=blocks, compute=1 - blocks)
    scene.at(10, starved_s=starved_s, meter=meter)
    view = throughput_of(scene.observer.look())
    assert view.bound_by == bound
    assert view.waiting["records"] == pytest.approx(records)
    assert sum(view.waiting.values()) == pytest.approx(1.0)


def test_what_was_waited_for_an_hour_ago_says_nothing_of_now(scene: Scene) -> None:
    scene.at(0, starved_s=3600.0)
    scene.at(10, starved_s=3600.0, meter=metered(scene.snapshot, blocks=0.9, compute=0.1))
    assert throughput_of(scene.observer.look()).bound_by == "input"


@pytest.mark.parametrize(("behind_s", "limit"), [(0.5, "The topic"), (60.0, "Fetching")])
def test_what_was_written_a_moment_ago_is_no_sign_that_fetching_is_slow(
    scene: Scene, behind_s: float, limit: str
) -> None:
    scene.at(0, starved_s=0.0)
    posting = replace(posted(scene), learnt_to_ms=round((1_000_010 - behind_s) * 1000))
    meter = metered(scene.snapshot, blocks=1.0, compute=0.0)
    scene.at(10, starved_s=10.0, meter=meter, posting=posting)
    assert throughput_of(scene.observer.look()).advice.startswith(f"{limit} is the limit")


def test_a_new_incarnation_begins_a_new_measure(scene: Scene) -> None:
    scene.at(0, starved_s=100.0)
    scene.at(10, starved_s=0.0, ledger=replace(scene.snapshot.ledger, incarnation=2))
    scene.at(20, starved_s=10.0)
    assert scene.observer.look().starved == pytest.approx(1.0)


def test_nothing_is_said_to_bind_what_has_not_begun(scene: Scene) -> None:
    assert throughput_of(scene.observer.look()).bound_by is None


def test_before_the_first_call_returns_nothing_is_made_of_its_wait(scene: Scene) -> None:
    scene.at(0, starved_s=0.0)
    scene.at(1, end=5_000, starved_s=1.0, meter=metered(scene.snapshot, blocks=1.0, compute=0.0, rate=0.0, calls=0))
    status = status_of(scene.observer.look())
    assert status.throughput.bound_by is None
    assert status.verdict.startswith("At work on the first records. 5,000 records behind.")
    scene.at(2, meter=metered(scene.snapshot, blocks=0.1, compute=0.9, calls=1))
    assert status_of(scene.observer.look()).verdict.startswith("Learning. 100 records/s, ")


def test_it_catches_up_by_what_it_learns_beyond_what_arrives(scene: Scene) -> None:
    scene.at(0, end=100)
    scene.at(10, end=1_000, meter=metered(scene.snapshot, blocks=0.0, compute=1.0, rate=190.0))
    observation = scene.observer.look()
    assert observation.arriving_per_s == pytest.approx(90.0)
    assert status_of(observation).stream.catch_up_s == pytest.approx(10.0)
    scene.at(20, end=5_000)
    assert status_of(scene.observer.look()).stream.catch_up_s is None


def test_one_record_after_a_silent_night_is_no_nights_lag(rig: Rig) -> None:
    rig.learnt_to_ms = 1_000_000_000
    rig.post()
    scene = Scene(rig)
    ledger, night = scene.snapshot.ledger, 8 * 3600.0
    caught_up = replace(ledger, partitions={p: replace(s, position=10, start=10) for p, s in ledger.partitions.items()})
    scene.at(night, ledger=caught_up)
    assert scene.observer.look().lag.seconds == 0.0
    scene.at(night + 2, end=11)
    assert scene.observer.look().lag.seconds == pytest.approx(2.0)


def test_a_problem_stands_since_it_was_first_seen_and_anew_when_it_comes_back(scene: Scene) -> None:
    source = scene.snapshot.source
    away, back = replace(source, connected=False), source
    scene.at(0, source=away)
    scene.at(5, source=away)
    (problem,) = scene.observer.look().problems
    assert problem.since == "1970-01-12T13:46:40.000Z"
    scene.at(6, source=back)
    assert scene.observer.look().problems == ()
    scene.at(7, source=away)
    assert scene.observer.look().problems[0].since == "1970-01-12T13:46:47.000Z"


def test_a_refused_commit_is_a_problem_for_a_while_not_for_ever(scene: Scene) -> None:
    source = scene.snapshot.source
    scene.at(0, source=replace(source, commits_refused={"GroupAuthorizationFailedError": 1}))
    assert [problem.problem for problem in scene.observer.look().problems] == ["commits_refused"]
    scene.at(599)
    assert len(scene.observer.look().problems) == 1
    scene.at(601)
    assert scene.observer.look().problems == ()


def test_a_commit_that_an_absent_kafka_did_not_answer_is_no_matter_of_permission(scene: Scene) -> None:
    source = replace(scene.snapshot.source, commits_refused={"TimeoutError": 1})
    scene.at(0, source=replace(source, connected=False))
    assert [problem.problem for problem in scene.observer.look().problems] == ["kafka_away"]
    scene.at(5, source=source)
    (problem,) = scene.observer.look().problems
    assert problem.what.startswith("Kafka does not answer our commits (1 × TimeoutError).")
    assert "kafka-acls.sh" not in problem.fix
    scene.at(31)
    assert scene.observer.look().problems == ()


def test_a_refusal_is_named_without_the_commits_that_were_not_answered(scene: Scene) -> None:
    refused = {"TimeoutError": 7, "GroupAuthorizationFailedError": 2}
    scene.at(0, source=replace(scene.snapshot.source, commits_refused=refused))
    (problem,) = scene.observer.look().problems
    assert problem.what.startswith("Kafka refuses our commits (2 × GroupAuthorizationFailedError).")
    assert "--add --allow-principal User:NAME --operation Read --group millrace-clicks" in problem.fix


def test_a_minute_of_samples_is_kept_however_often_somebody_looks(scene: Scene) -> None:
    for tenth in range(3000):
        scene.at(tenth / 10)
    assert len(scene.observer._samples) <= 121


def test_a_rewind_forgets_when_all_was_learnt(scene: Scene) -> None:
    ledger = scene.snapshot.ledger
    learnt = {p: replace(s, position=10, start=10) for p, s in ledger.partitions.items()}
    scene.at(0, ledger=replace(ledger, partitions=learnt))
    assert scene.observer.look().lag.seconds == 0.0
    scene.at(5, ledger=replace(ledger, incarnation=2))
    assert scene.observer.look().lag.records == 10
    assert scene.observer.look().lag.seconds is None


def all_learnt(snapshot: Snapshot) -> Mapping[str, Any]:
    """Return the change to a snapshot after which its ten records are learnt."""
    partitions = {p: replace(s, position=10, start=10) for p, s in snapshot.ledger.partitions.items()}
    return {"ledger": replace(snapshot.ledger, partitions=partitions)}


def in_phase(snapshot: Snapshot, phase: Phase) -> Mapping[str, Any]:
    return {"phase": replace(snapshot.phase, phase=phase)}


def test_what_is_learnt_as_fast_as_it_comes_is_not_held_back_by_its_input(scene: Scene) -> None:
    scene.at(0, starved_s=0.0, **all_learnt(scene.snapshot))
    scene.at(10, starved_s=1.0, meter=metered(scene.snapshot, blocks=0.98, compute=0.02, rate=620.0))
    view = throughput_of(scene.observer.look())
    assert (view.bound_by, view.waiting["records"], view.waiting["input"]) == ("records", 0.98, 0.0)
    assert view.advice.startswith("The topic is the limit")


def test_a_steady_stream_is_described_alike_in_the_middle_of_a_block_and_behind_it(scene: Scene) -> None:
    meter = metered(scene.snapshot, blocks=0.9, compute=0.1, rate=1400.0)
    scene.at(0, starved_s=0.0, meter=meter, **all_learnt(scene.snapshot))
    verdicts = set()
    for second in range(1, 60):
        phase = in_phase(scene.snapshot, Phase.IDLE if second % 2 else Phase.TRAINING)
        posting = replace(posted(scene), learnt_to_ms=round((1_000_000 + second - second % 4 * 0.9) * 1000))
        scene.at(second, starved_s=second * 0.9, end=10 if second % 2 else 700, posting=posting, **phase)
        verdicts.add(status_of(scene.observer.look()).verdict.split(" Accuracy")[0])
    assert verdicts == {"Learning. 1,400 records/s, caught up, bound by records."}


def test_a_lag_that_grows_past_a_moment_is_reported_until_it_is_made_up(scene: Scene) -> None:
    scene.at(0, posting=None, **all_learnt(scene.snapshot))
    keeps_up = []
    for second in (1, 4, 6, 7):
        scene.at(second, end=20)
        keeps_up.append(scene.observer.look().keeps_up)
    scene.at(8, end=10)
    assert [*keeps_up, scene.observer.look().keeps_up] == [True, True, False, False, True]


def test_a_stream_that_has_stood_still_is_waited_for(scene: Scene) -> None:
    meter = metered(scene.snapshot, blocks=1.0, compute=0.0, rate=0.0)
    scene.at(0, meter=meter, **all_learnt(scene.snapshot), **in_phase(scene.snapshot, Phase.IDLE))
    assert status_of(scene.observer.look()).verdict.startswith("Caught up, waiting for records.")


def test_partitions_that_are_no_more_are_a_problem_and_no_lag(scene: Scene) -> None:
    gone = Partition(P0.topic, 3)
    learnt = all_learnt(scene.snapshot)["ledger"]
    ledger = replace(learnt, partitions={**learnt.partitions, gone: replace(learnt.partitions[P0], position=50)})
    source = replace(scene.snapshot.source, missing=(gone,), gone=frozenset({gone}))
    meter = metered(scene.snapshot, blocks=1.0, compute=0.0, rate=0.0)
    for second in (0, 600):
        scene.at(second, source=source, ledger=ledger, meter=meter, **in_phase(scene.snapshot, Phase.IDLE))
    observation = scene.observer.look()
    assert (observation.lag.records, observation.lag.seconds) == (0, 0.0)
    (problem,) = observation.problems
    assert problem.what.startswith(f"{gone} are no more: their topic was created again with fewer partitions.")
    assert f"--alter --topic {gone.topic} --partitions 4`" in problem.fix
    assert status_of(observation).verdict.startswith(problem.what)
    assert all(check.ok for check in ready(observation.snapshot))


def test_a_topic_that_is_away_as_a_whole_is_waited_for_and_has_no_lag(scene: Scene) -> None:
    source = replace(scene.snapshot.source, missing=tuple(scene.snapshot.ledger.partitions))
    meter = metered(scene.snapshot, blocks=1.0, compute=0.0, rate=0.0)
    scene.at(600, source=source, meter=meter, **in_phase(scene.snapshot, Phase.IDLE))
    observation = scene.observer.look()
    assert (observation.lag.records, observation.lag.seconds) == (None, None)
    view = throughput_of(observation)
    assert (view.bound_by, view.advice) == (None, "Waiting for the partitions: Kafka has none of them.")
    assert status_of(observation).verdict.startswith(f"Kafka has no {P0}")


def test_paused_it_gives_no_advice_for_speed(scene: Scene) -> None:
    scene.at(0, starved_s=0.0)
    meter = metered(scene.snapshot, blocks=1.0, compute=0.0)
    scene.at(10, starved_s=10.0, meter=meter, **in_phase(scene.snapshot, Phase.PAUSED))
    view = throughput_of(scene.observer.look())
    assert view.bound_by is None
    assert view.advice == "Paused: nothing is learnt until it is resumed."


def test_while_kafka_is_away_neither_lag_nor_limit_is_claimed(scene: Scene) -> None:
    idle = in_phase(scene.snapshot, Phase.IDLE)
    scene.at(0, posting=None, starved_s=0.0, **all_learnt(scene.snapshot), **idle)
    away = replace(scene.snapshot.source, connected=False)
    meter = metered(scene.snapshot, blocks=1.0, compute=0.0, rate=0.0)
    scene.at(30, starved_s=30.0, source=away, meter=meter)
    status = status_of(scene.observer.look())
    assert status.verdict.startswith(
        "Kafka has been away for under 1 s; the learning goes on by itself when it answers."
    )
    assert status.throughput.bound_by is None
    assert status.throughput.advice == "Kafka does not answer: nothing is learnt until it does."
    assert (status.stream.lag_records, status.stream.lag_s) == (None, 30.0)


def test_a_stream_of_which_nothing_is_learnt_is_never_called_caught_up(scene: Scene) -> None:
    meter = replace(metered(scene.snapshot, blocks=1.0, compute=0.0, rate=0.0), learnt=0)
    letters = replace(scene.snapshot.letters, put=134_485, by_reason={Reason.MALFORMED: 134_485})
    seen = []
    for second, phase in enumerate((Phase.IDLE, Phase.TRAINING, Phase.SAVING, Phase.IDLE)):
        idle = in_phase(scene.snapshot, phase)
        scene.at(second, posting=None, meter=meter, letters=letters, **all_learnt(scene.snapshot), **idle)
        seen.append(status_of(scene.observer.look()))
    assert {(status.verdict, status.mood) for status in seen} == {
        (
            "Nothing is learnt: all 134,485 records that came were set aside, most as malformed. 1 problem to look at.",
            "bad",
        )
    }
    assert seen[0].throughput.advice == "All records are set aside, so nothing can be said."


@pytest.mark.parametrize("rate", [0.0, 500.0])
def test_while_nothing_comes_the_verdict_names_the_partition_that_is_missing(scene: Scene, rate: float) -> None:
    idle = in_phase(scene.snapshot, Phase.IDLE)
    source = replace(scene.snapshot.source, missing=(P0,))
    scene.at(0, posting=None, starved_s=0.0)
    meter = metered(scene.snapshot, blocks=1.0, compute=0.0, rate=rate)
    scene.at(30, end=500, starved_s=30.0, meter=meter, **idle)
    scene.at(31, posting=None, starved_s=31.0, source=replace(source, lag=scene.snapshot.source.lag))
    status = status_of(scene.observer.look())
    missing = "Kafka has no clicks:0: deleted, or without a leader."
    assert status.verdict.startswith("Learning. 500 records/s" if rate else missing)
    assert status.throughput.advice == "What cannot be read is the limit: the problem says why, and what to do."


def test_behind_an_open_transaction_no_faster_fetching_is_advised(scene: Scene) -> None:
    scene.at(0, posting=None, starved_s=0.0)
    meter = metered(scene.snapshot, blocks=1.0, compute=0.0)
    scene.at(30, end=500, starved_s=30.0, meter=meter)
    transaction = OpenTransaction(offset=10, since=1_000_010.0)
    scene.at(31, starved_s=31.0, source=replace(scene.snapshot.source, open_transactions={P0: transaction}))
    observation = scene.observer.look()
    assert not observation.problems
    assert throughput_of(observation).advice.startswith("An open transaction is the limit")


@pytest.mark.parametrize(
    ("utilization", "advice"),
    [
        ((0.45, 0.02), "The CPU's side of the calls is the limit: the GPU is busy for only 50 % of them."),
        ((0.0, 0.81), "The GPU is the limit, busy for 90 % of the calls: the policy mixed_bfloat16, another GPU"),
        ((None, None), "Compute is the limit: a larger training.batch_size, more batches_per_call or another GPU"),
    ],
)
def test_how_busy_the_gpu_is_says_which_side_of_a_call_is_the_limit(
    scene: Scene, utilization: tuple[float | None, ...], advice: str
) -> None:
    posting = posted(scene)
    here = replace(posting, model=replace(posting.model, devices=("GPU:0",)))
    shown = {
        str(number): GpuFigures(utilization=one, memory_bytes=1, memory_total_bytes=2)
        for number, one in enumerate(utilization)
    }
    scene.at(0, starved_s=0.0)
    meter = metered(scene.snapshot, blocks=0.1, compute=0.9)
    scene.at(10, starved_s=0.0, posting=here, meter=meter, figures={"gpus": shown})
    found = throughput_of(scene.observer.look())
    assert found.bound_by == "compute"
    assert found.advice.startswith(advice)


@pytest.mark.parametrize(("device", "more"), [("GPU:0", "another GPU would"), ("CPU:0", "more CPU cores, or a GPU,")])
def test_no_other_gpu_is_advised_where_there_is_none(scene: Scene, device: str, more: str) -> None:
    posting = posted(scene)
    here = replace(posting, model=replace(posting.model, devices=(device,)))
    scene.at(0, starved_s=0.0)
    scene.at(10, starved_s=0.0, posting=here, meter=metered(scene.snapshot, blocks=0.1, compute=0.9))
    assert more in throughput_of(scene.observer.look()).advice
