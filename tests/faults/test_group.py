"""A group of processes that learn one model: whatever happens to any of them, nothing is lost or learnt twice."""

import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.reasons import Reason
from millrace.training.ledger.offset_checksum import Evidence
from tests.faults.campaigns.exactness import SHAPED, Figures, compare_sequences
from tests.faults.campaigns.group_kills import wage
from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.broker_disturbances import BrokerStopped
from tests.faults.harness.disturbances import disturbed
from tests.faults.harness.group import GroupOfProcesses
from tests.faults.harness.kafka import Letter, dead_letters
from tests.faults.harness.process import Run
from tests.faults.harness.records import ExpectedPosition, Mixture, Verdict
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.shifting import ShiftingTopic
from tests.faults.harness.spikes import QUIET
from tests.faults.harness.station import Station
from tests.faults.harness.topics import Topic
from tests.faults.test_pretraining import SEQUENCES
from tests.faults.test_raising import PREPROCESS, RAISING

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(31)]
PARTITIONS = 4
CI_KILLS = 6
"""A worker, one after a rewind, the chief, both at once, and one at a failpoint."""


@pytest.mark.law
def test_when_the_chief_is_killed_the_group_learns_every_record_once(stream: MakeStream, tmp_path: Path) -> None:
    topic = stream(PARTITIONS, Mixture(share=0.01, kinds=QUIET))
    topic.write(500)
    with GroupOfProcesses(tmp_path, topic, 2, cold_again=True) as group:
        group.start()
        topic.flow(400)
        group.wait_until(lambda: group.settled() > 3000, "the group learns", restart=False)
        group.chief.kill()
        at = group.settled()
        group.wait_until(lambda: group.settled() > at + 1000, "the group learns again")
        topic.still()
        group.assert_learnt_once()


@pytest.mark.nightly  # in the gate a chief and a worker are killed by a test each; `make proof` kills 60
def test_whoever_is_killed_at_any_instant_nothing_is_lost_or_learnt_twice(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = wage(broker, tmp_path, kills=CI_KILLS, workers=(2,), seed=seed, on_strike=print)
    record_property("group", figures.summary())
    assert figures.kills >= CI_KILLS
    assert figures.rewinds >= 1
    assert (figures.lost, figures.learnt_twice) == (0, 0)
    assert {"chief", "worker"} <= figures.victims.keys()


def test_a_chief_waits_for_who_is_missing_or_dies_before_the_meeting_and_both_show_a_score_before_a_save(
    stream: MakeStream, tmp_path: Path
) -> None:
    topic = stream(PARTITIONS)
    topic.write(500)
    with GroupOfProcesses(tmp_path, topic, 2, timeout="12s", checkpoints={"every": "1h"}) as group:
        group.start(0)
        group.chief.wait_for(lambda: "waiting for the group" in group.chief.log(), "the chief waits")
        missing = "Waiting for worker 1 of the group."
        group.chief.wait_for(lambda: group.chief.status().get("verdict") == missing, "it names worker 1")
        assert group.chief.ready()

        host, port = group.addresses[1].split(":")
        with socket.create_server((host, int(port))):
            group.start(1, failpoints="group.before_meeting=kill")
            taken = f"cannot listen on port {port} for the other workers"
            group.member(1).wait_for(lambda: taken in group.member(1).log(), "worker 1 says why it begins again")
            assert group.chief.status().get("verdict") == missing
        late = "the group did not meet within 12 s"
        group.chief.wait_for(lambda: group.member(1).alive is False, "worker 1 has died")
        assert group.chief.ready()  # probes are answered while the runtime waits
        group.chief.wait_for(lambda: late in group.chief.log(), "the chief gives the meeting up")

        group.wait_until(
            lambda: all(run.status().get("live", {}).get("records") for run in (group.chief, group.member(1))),
            "all show how well the group learns",
        )
        assert group.newest().manifest.number == 0
        group.wait_until(
            lambda: sum(run.settled() or 0 for run in (group.chief, group.member(1))) == topic.records,
            "all is learnt",
            restart=False,
        )
        assert group.chief.ask("POST", "/checkpoints?wait=60s")[0] == HTTPStatus.CREATED
        group.assert_learnt_once()


@pytest.mark.nightly  # in the gate one process waits so, and a group for a worker that stands still
def test_a_broker_that_is_away_makes_all_wait_and_none_begin_again(station: Station, tmp_path: Path) -> None:
    with Topic(station.straight, f"away-{uuid.uuid4().hex[:8]}", PARTITIONS, Mixture(), 7) as topic:
        topic.write(500)
        with GroupOfProcesses(tmp_path, topic, 2) as group:
            group.start()
            group.wait_until(lambda: group.settled() == topic.records, "all is learnt", restart=False)
            with disturbed(BrokerStopped(station.broker)):
                runs = group.chief, group.member(1)
                group.chief.wait_for(
                    lambda: not any(run.status()["kafka"]["connected"] for run in runs), "all see that nobody answers"
                )
                assert group.chief.ask("POST", "/checkpoints?wait=60s")[0] == HTTPStatus.CREATED  # they still agree
            topic.write(500)
            group.assert_learnt_once()
            assert not any("beginning again" in group.member(index).log() for index in range(2)), group.tails()


_PAST_THE_OPTIMIZER = """

class TailIds(Ids):
    def __init__(self, **options):
        super().__init__(**options)
        self.tail = self.add_weight(name="tail", shape=(), initializer="zeros", trainable=False, aggregation="sum")


class Tail(Counting):
    def train_step(self, data):
        features, labels, weights = data
        sums = tf.where(tf.reshape(weights, [-1]) > 0, tf.exp(tf.reshape(features["curse"], [-1])), 0.0)
        self.ids.tail.value.assign_add(tf.reduce_sum(sums))
        return super().train_step(({**features, "curse": tf.zeros_like(features["curse"])}, labels, weights))


Ids, Counting = TailIds, Tail
"""
"""A weight that the step assigns by itself: what a cursed record makes of it, no guard of an optimizer sees."""


def test_a_state_with_infinity_is_not_saved_and_its_cause_is_set_aside(stream: MakeStream, tmp_path: Path) -> None:
    topic = stream(PARTITIONS)
    topic.write(300)
    topic.write(1, Mixture(share=1.0, kinds=(Reason.UPDATE_NOT_FINITE,)))
    topic.write(300)
    with GroupOfProcesses(tmp_path, topic, 2) as group:
        for project in group.projects:
            with (project.path / "model.py").open("a") as file:
                file.write(_PAST_THE_OPTIMIZER)
        group.start()
        group.assert_learnt_once()
        assert "NaN or infinity in" in group.chief.log()
        for account in group.newest().ledger.values():
            assert sum(account.set_aside.values()) == 1


def test_any_number_of_workers_resumes_from_the_checkpoint_of_another_number(
    stream: MakeStream, tmp_path: Path
) -> None:
    topic = stream(PARTITIONS, Mixture(share=0.01, kinds=QUIET))
    for workers in (1, 3):  # another test goes from two to one
        topic.write(300)
        with GroupOfProcesses(tmp_path, topic, workers, training={"batch_size": 48}) as group:
            group.start(arguments=("--until", "now"))
            for run in group.runs:
                assert run is not None
                run.finish()
            group.assert_learnt_once()


def _has_passed(group: GroupOfProcesses, settled: int) -> bool:
    return group.settled() > settled


@pytest.mark.nightly  # in the gate members remember rows of their own through kills
def test_windows_and_resampling_in_a_group_are_those_of_one_process_through_kills(
    stream: MakeStream, project: MakeProject, tmp_path: Path
) -> None:
    topic = stream(PARTITIONS, Mixture(share=0.01, kinds=QUIET))
    sections: dict[str, Any] = {**SEQUENCES, "training": {"batch_size": 48}}
    topic.write(300)
    with GroupOfProcesses(tmp_path, topic, 2, **sections) as group:
        group.start()
        topic.flow(400)
        for victims in ((0,), (1,), (0, 1)):
            group.wait_until(partial(_has_passed, group, group.settled() + 600), "the group learns")
            for index in victims:
                group.member(index).kill()
        topic.still()
        group.wait_until(lambda: group.settled() == topic.records, "all is learnt")
    for workers in (3, 1):
        topic.write(300)
        with GroupOfProcesses(tmp_path, topic, workers, **sections) as group:
            group.start(arguments=("--until", "now"))
            for run in group.runs:
                assert run is not None
                run.finish()
            group.assert_sound()
            of_group = group.newest()
    alone = project(topic, "alone", **sections)
    with Run(alone, "--until", "now") as run:
        run.finish()
    of_one = Shelf(alone.folder).newest()
    assert of_one is not None
    assert of_group.positions == of_one.positions == dict(enumerate(map(len, topic.verdicts)))
    assert of_group.seen == of_one.seen, "every record once that one process keeps, and no other"
    assert of_group.ids == of_one.ids
    for number, account in of_group.ledger.items():
        assert account.balanced
        assert account.skipped == of_one.ledger[number].skipped
        assert account.skipped["balance"] > 0
    figures = Figures(seed=0)
    compare_sequences(figures, topic, group.projects[0])
    assert figures.sequences > 0
    assert figures.wrong == 0


def test_members_remember_rows_of_their_own_through_kills_and_one_process_takes_all_of_them(
    stream: MakeStream, tmp_path: Path
) -> None:
    topic = stream(PARTITIONS, Mixture(share=0.01, kinds=QUIET))
    sections: dict[str, Any] = {"reservoir": {**SHAPED["reservoir"], "size": 400}, "training": {"batch_size": 48}}
    topic.write(200)
    with GroupOfProcesses(tmp_path, topic, 2, **sections) as group:
        group.start()
        group.wait_until(lambda: group.settled() == topic.records, "all is learnt", restart=False)
        for index in (1, 0):
            topic.write(150)
            group.member(index).kill()
            group.wait_until(lambda: group.settled() == topic.records, "all is learnt again")
        of_two = group.newest()
        two = group.shelf.part(of_two.number, "reservoir")
    shares = two.facts["shares"]
    # Each class has half of the places, of each member.
    assert [share["held"] for share in shares] == [[100, 100], [100, 100]]
    assert sum(sum(share["seen"]) for share in shares) == sum(account.learnt for account in of_two.ledger.values())
    with GroupOfProcesses(tmp_path, topic, 1, **sections) as group:
        topic.write(20)
        group.start(arguments=("--until", "now"))
        group.member(0).finish()
        of_one = group.newest()
        one = group.shelf.part(of_one.number, "reservoir")
    assert [share["held"] for share in one.facts["shares"]] == [[200, 200]]
    for rows in (two.arrays, one.arrays):
        found = list(zip(rows["feature.partition"].tolist(), rows["feature.id"].tolist(), strict=True))
        assert len(set(found)) == len(found) == 400, "no row is there twice"
        assert set(rows["label"].tolist()) == {0.0, 1.0}
    for partition in range(PARTITIONS):
        assert of_one.seen[partition] == topic.evidence(partition)


class InPartitionOne(Mixture):
    """Raises in one partition, so at one worker alone."""

    def draw(self, place: ExpectedPosition, random: Random) -> tuple[bytes | None, Verdict]:
        return (RAISING if place.partition == 1 else Mixture()).draw(place, random)


def test_records_that_raise_on_one_worker_are_set_aside_and_all_others_learnt(
    stream: MakeStream, tmp_path: Path
) -> None:
    topic = stream(PARTITIONS, Mixture(share=0.005, kinds=(Reason.UPDATE_NOT_FINITE,)))
    topic.write(200)
    topic.write(1, RAISING)  # at 200, where `preprocess` raises, at both workers
    topic.write(200)
    topic.write(1, InPartitionOne())  # at 401, where the step does
    create_topic(topic.bootstrap, f"{topic.name}-dead", 1)
    records = {"dead_letters": {"topic": f"{topic.name}-dead"}}
    with GroupOfProcesses(tmp_path, topic, 2, records=records) as group:
        for project in group.projects:
            with (project.path / "model.py").open("a") as file:
                file.write(PREPROCESS)
        group.start()
        group.assert_learnt_once()
        for partition, account in group.newest().ledger.items():
            assert account.set_aside == topic.set_aside(partition)
            assert account.set_aside[Reason.STEP_RAISED] == 1 + (partition == 1)
        logs = "".join(run.log() for run in group.runs if run is not None)
        assert "InvalidArgumentError in preprocess" in logs
        assert "InvalidArgumentError in the training step" in logs
    expected = {
        Letter(partition, offset, verdict, topic.name)
        for partition, verdicts in enumerate(topic.verdicts)
        for offset, verdict in enumerate(verdicts)
        if verdict is not None
    }
    assert set(dead_letters(topic.bootstrap, f"{topic.name}-dead")) == expected


@pytest.fixture
def shifting(broker: str) -> Iterator[ShiftingTopic]:
    """Make a topic of two partitions, to which things may happen."""
    with ShiftingTopic(broker, f"s-{uuid.uuid4().hex[:10]}", 2, Mixture(), 11) as topic:
        yield topic


@pytest.mark.parametrize(
    "shaping",
    [pytest.param((), marks=pytest.mark.nightly), ("records", "model", "windows")],
    ids=["plain", "windows"],
)
def test_a_group_takes_in_new_partitions_and_topics_that_are_created_again(
    shifting: ShiftingTopic, tmp_path: Path, shaping: tuple[str, ...]
) -> None:
    shifting.write(500)
    sections: dict[str, Any] = {name: SEQUENCES[name] for name in shaping}
    with GroupOfProcesses(tmp_path, shifting, 2, kafka={"on_recreated": "earliest"}, **sections) as group:
        group.start()
        group.wait_until(lambda: group.settled() == 1000, "all is learnt", restart=False)
        shifting.grow(4)
        shifting.write(500)
        group.wait_until(lambda: group.settled() == shifting.records, "new partitions are learnt", restart=False)
        group.assert_learnt_once()
        shifting.delete()
        shifting.create_again()
        shifting.write(400)
        group.wait_until(lambda: group.settled() == shifting.records, "the new topic is learnt")
        for partition, account in group.newest().ledger.items():
            *_, former, now = account.histories
            assert former.learnt == (1000 if partition < 2 else 500)
            assert (now.position, now.learnt) == (400, 400)


def test_a_worker_of_another_config_is_refused_by_all_before_anything_is_learnt(
    stream: MakeStream, tmp_path: Path
) -> None:
    topic = stream(PARTITIONS)
    topic.write(100)
    with GroupOfProcesses(tmp_path, topic, 2) as group:
        other = group.projects[1].config
        other.write_text(other.read_text().replace('"batches_per_call": 4', '"batches_per_call": 8'))
        group.start()
        assert [run.exit_code() for run in group.runs if run is not None] == [2, 2], group.tails()
        assert "worker 1 differs from the chief in config_sha256" in group.chief.log()
        assert group.shelf.newest_number() is None


# What one group lives through, test by test. Who has ended is started again before each. They stand last, so that the
# group ends with them, and the rewind after all others, as nobody learns what it skips.

_AGAIN = "beginning again"


@pytest.fixture(scope="module")
def pair(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GroupOfProcesses, Topic]]:
    """Start a group of two, which has learnt what is in its topic."""
    with (
        Topic(broker, f"f-{uuid.uuid4().hex[:10]}", PARTITIONS, Mixture(), 11) as topic,
        GroupOfProcesses(tmp_path_factory.mktemp("pair"), topic, 2) as group,
    ):
        topic.write(500)
        group.start()
        yield group, topic


@pytest.fixture
def group_of_two(pair: tuple[GroupOfProcesses, Topic]) -> Iterator[tuple[GroupOfProcesses, Topic]]:
    """Return the group and its topic, all of which it has learnt."""
    group, topic = pair
    group.wait_until(lambda: group.settled() == topic.records, "all is learnt")
    yield group, topic
    topic.still()


def test_a_paused_group_learns_nothing_saves_on_demand_and_goes_on(
    group_of_two: tuple[GroupOfProcesses, Topic],
) -> None:
    group, topic = group_of_two
    begun = group.chief.said(_AGAIN)
    assert group.chief.ask("POST", "/pause")[0] == HTTPStatus.OK
    group.chief.wait_for(lambda: group.member(1).status().get("state") == "paused", "all are paused")
    group.member(1).kill()  # the chief begins again, and stays paused
    group.start(1)
    group.chief.wait_for(lambda: group.chief.said(_AGAIN) > begun, "the chief begins again")
    group.chief.wait_for(lambda: group.member(1).status().get("state") == "paused", "all are paused again")
    before = topic.records
    topic.write(200)
    code, answer = group.chief.ask("POST", "/checkpoints?wait=60s")
    assert code == HTTPStatus.CREATED, answer
    assert sum(group.newest().positions.values()) == before
    assert group.chief.ask("POST", "/resume")[0] == HTTPStatus.OK
    group.assert_learnt_once()


def test_a_worker_that_is_drained_saves_first_and_the_others_wait_for_it(
    group_of_two: tuple[GroupOfProcesses, Topic],
) -> None:
    group, topic = group_of_two
    at, waits = group.settled(), "waiting for the group"
    topic.flow(400)
    group.wait_until(lambda: group.settled() > at + 400, "the group learns", restart=False)
    waited = group.chief.said(waits)
    group.member(1).terminate()
    assert group.member(1).exit_code() == 0, group.tails()
    saved = group.settled()
    group.chief.wait_for(lambda: group.chief.said(waits) > waited, "the chief waits")
    assert group.settled() == saved
    group.start(1)
    group.wait_until(lambda: group.settled() > saved + 400, "the group learns again")
    topic.still()
    group.assert_learnt_once()


def test_a_worker_that_stands_still_is_given_up_and_publishes_nothing(
    group_of_two: tuple[GroupOfProcesses, Topic],
) -> None:
    group, topic = group_of_two
    at, begun = group.settled(), group.chief.said(_AGAIN)
    topic.flow(400)
    group.wait_until(lambda: group.settled() > at + 400, "the group learns", restart=False)
    os.kill(group.member(1).pid, signal.SIGSTOP)
    given_up = group.comes_true(lambda: group.chief.said(_AGAIN) > begun, restart=False)
    os.kill(group.member(1).pid, signal.SIGCONT)
    assert given_up, group.tails()
    at = group.settled()
    group.wait_until(lambda: group.settled() > at + 1000, "the group learns again")
    topic.still()
    group.assert_learnt_once()


def test_a_rewind_with_a_skip_holds_in_a_group_through_a_kill_and_a_full_disk_at_the_chief(
    group_of_two: tuple[GroupOfProcesses, Topic],
) -> None:
    group, topic = group_of_two
    ends = [len(verdicts) for verdicts in topic.verdicts]
    body = {"to": 0, "skip": [f"{topic.name}:1:100-199"], "reason": "a bad hour"}
    status, answer = group.chief.ask("POST", "/rewind?wait=60s", body)
    assert status in {200, 201}, answer
    begun = group.member(1).said(_AGAIN)
    group.chief.kill()
    group.wait_until(lambda: group.member(1).said(_AGAIN) > begun, "the worker begins again", restart=False)
    begun = group.member(1).said(_AGAIN)
    group.start(0, failpoints="save.after_data=full:once")
    failed = "a checkpoint failed, and the next save tries again"
    group.chief.wait_for(lambda: failed in group.chief.log(), "a save finds no room")
    group.wait_until(lambda: group.settled() == topic.records, "all is learnt again, and saved", restart=False)
    assert (group.chief.said(_AGAIN), group.member(1).said(_AGAIN)) == (0, begun), group.tails()
    statement = group.newest()
    assert statement.ledger[1].learnt == ends[1] - 100
    assert statement.seen[1] == Evidence.of(offset for offset in range(ends[1]) if not 100 <= offset < 200)
    assert statement.seen[0] == topic.evidence(0)
    assert group.assert_sound()
