"""What happens to the topics themselves: partitions that join, topics deleted and created again, records that are
removed before they are read, offsets that hold none."""

import asyncio
import http.client
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from millrace.consumers.records import Partition
from millrace.training.checkpoints.manifest import SaveReason
from millrace.training.ledger.offset_checksum import Evidence
from tests.conftest import MakeTopic, WaitFor
from tests.faults.conftest import MakeProject
from tests.faults.harness.account import assert_learnt_once
from tests.faults.harness.kafka import committed
from tests.faults.harness.liveness import LivenessProbe
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import ExpectedPosition, Mixture
from tests.faults.harness.shelf import Shelf, Statement
from tests.faults.harness.shifting import ShiftingTopic
from tests.faults.harness.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]

MakeShifting = Callable[..., ShiftingTopic]
REFUSED = 4
"""The exit code of whoever would lose or repeat records if it went on."""


@pytest.fixture
def shifting(broker: str) -> Iterator[MakeShifting]:
    """Make a topic to which things may happen."""
    with ExitStack() as stack:

        def make(partitions: int = 1) -> ShiftingTopic:
            name = f"s-{uuid.uuid4().hex[:10]}"
            return stack.enter_context(ShiftingTopic(broker, name, partitions, Mixture(), 11))

        yield make


def newest(made: Project) -> Statement:
    found = Shelf(made.folder).newest()
    assert found is not None
    return found


def problems(run: Run) -> set[str]:
    return {problem["problem"] for problem in run.status().get("problems", [])}


def lag(run: Run) -> dict[str, Any]:
    """Return how far behind it is; an empty mapping where there is no answer."""
    with suppress(OSError, http.client.HTTPException):
        return dict(run.ask("GET", "/lag")[1])
    return {}


def _view(run: Run, topic: ShiftingTopic, partition: int) -> dict[str, Any]:
    return dict(lag(run).get("partitions", {}).get(f"{topic.name}:{partition}", {}))


def refused(run: Run, text: str) -> None:
    """Check that it ends by itself and gives the reason in one line."""
    assert run.exit_code() == REFUSED, run.tail()
    lines = [line for line in run.log().splitlines() if line.startswith("millrace: error: ")]
    assert len(lines) == 1, run.tail()
    assert text in lines[0]


# Row 12.


@pytest.mark.row(12)
def test_quiet_and_new_partitions_are_learnt_beside_a_hot_and_an_empty_one(
    shifting: MakeShifting, project: MakeProject
) -> None:
    topic = shifting(3)
    hot, quiet, _empty, joined = range(4)
    made = project(topic, memory={"limit": "1MiB"})
    with Run(made, failpoints="call.before=sleep:0.05") as run:  # the backlog lasts for some seconds
        run.wait_for(run.ready, "it took orders")
        assert run.ask("POST", "/pause")[0] == 200
        topic.write_to(hot, 20_000)
        topic.write_to(quiet, 20)
        topic.grow(4)
        topic.write_to(joined, 30)
        run.wait_for_line("New partitions join")
        assert run.ask("POST", "/resume")[0] == 200

        def behind(partition: int) -> Any:
            view = _view(run, topic, partition)
            return view.get("lag_records") if view.get("position") else None

        run.wait_for(lambda: behind(quiet) == 0 and behind(joined) == 0, "the quiet ones were learnt")
        assert behind(hot) > 0, "they waited for the end of the backlog"
        assert_learnt_once(run, topic)
        assert lag(run)["lag_records"] == 0


# Row 13.


@pytest.mark.row(13)
def test_a_topic_recreated_while_we_were_away_is_refused_or_restarted_never_mixed(
    shifting: MakeShifting, project: MakeProject
) -> None:
    topic = shifting(2)
    topic.write(300)
    with Run(project(topic), "--until", "now") as run:
        run.finish()
    before = [topic.evidence(partition) for partition in range(2)]
    topic.delete()
    topic.create_again()
    topic.write(400)

    made = project(topic)
    last = newest(made).number
    with Run(made, "--until", "now") as run:
        refused(run, f"{topic.name} is another topic under the same name, deleted and created again")
    assert newest(made).number == last, "nothing was learnt of it"

    made = project(topic, kafka={"on_recreated": "earliest"})
    with Run(made, "--until", "now") as run:
        run.finish()
    end = newest(made)
    for partition, (evidence, account) in enumerate(zip(before, end.ledger.values(), strict=True)):
        former, now = account.histories
        assert (former.start, former.position, former.learnt) == (0, 300, 300)
        assert (now.start, now.position, now.learnt) == (0, 400, 400)
        assert account.balanced
        seen = end.seen[partition]
        assert seen == _both(evidence, topic.evidence(partition)), "each offset of either topic once"
    assert committed(topic.bootstrap, made.group, topic.name, 2) == {0: 400, 1: 400}

    with Run(made) as run:
        run.wait_for(lambda: _view(run, topic, 0).get("same_topic") == "same", "it had known the topic again")
        assert (run.settled(), run.status()["records"]["begun_anew"]) == (1400, 2)


def _both(first: Evidence, second: Evidence) -> Evidence:
    wrapped = (first.mixed + second.mixed + 2**63) % 2**64 - 2**63
    return Evidence(first.count + second.count, first.total + second.total, wrapped)


@pytest.mark.row(13)
def test_a_topic_deleted_while_read_is_waited_for_and_its_successor_refused(
    shifting: MakeShifting, project: MakeProject
) -> None:
    topic = shifting()
    topic.write(300)
    made = project(topic, checkpoints={"every": "1h"})
    with Run(made) as run:
        assert_learnt_once(run, topic)
        last = newest(made).number
        with LivenessProbe(run) as livez:
            topic.delete()
            run.wait_for(lambda: "partitions_missing" in problems(run), "it said what is missing")
            assert run.alive
        assert livez.answers.keys() == {200}, livez.answers
        topic.create_again()
        topic.write(400)
        refused(run, f"{topic.name} is another topic under the same name, deleted and created again")
    assert newest(made).number == last
    assert run.said("Kafka has no leader for") == 1
    assert run.said("not found in cluster metadata") <= 10, "its log was flooded"


@pytest.mark.row(13)
def test_a_topic_recreated_while_read_is_learnt_from_its_beginning_despite_a_kill(
    shifting: MakeShifting, project: MakeProject
) -> None:
    topic = shifting()
    topic.write(300)
    made = project(topic, kafka={"on_recreated": "earliest"}, checkpoints={"every": "1h"})
    with Run(made, failpoints="save.before_manifest=kill:after=2") as run:
        assert_learnt_once(run, topic)
        before = topic.evidence(0)
        topic.delete()
        topic.create_again()
        topic.write(400)
        run.exit_code()
        assert run.hits("save.before_manifest") == 1, "it died while it published the new beginning"
    with Run(made) as run:
        run.wait_for(lambda: run.settled() == 700, "both topics were settled")
        status, answer = run.ask("POST", "/checkpoints?wait=60s")
        assert status == 201, answer
        statement = Shelf(made.folder).statement(int(answer["checkpoint"]["number"]))
    assert statement.seen[0] == _both(before, topic.evidence(0))
    (account,) = statement.ledger.values()
    assert [history.position for history in account.histories] == [300, 400]
    assert account.balanced
    shelf = Shelf(made.folder)
    reasons = [shelf.statement(number).manifest.reason for number in shelf.numbers()]
    assert reasons[-2:] == [SaveReason.RECREATED, SaveReason.DEMAND]


# Row 14.


def _remove_what_comes_next(run: Run, topic: ShiftingTopic, *, backlog: int) -> None:
    """Let Kafka remove half of a backlog that is more than the queue takes, before it was read."""
    assert run.ask("POST", "/pause")[0] == 200
    topic.write(backlog)
    run.wait_for(lambda: (run.status()["records"].get("held") or 0) > 0, "something was queued")
    run.wait_for(lambda: _queue_stands(run), "the queue was full")
    topic.shorten(0, topic.records - 100)
    with suppress(OSError, http.client.HTTPException):
        run.ask("POST", "/resume")


def _queue_stands(run: Run) -> bool:
    held = [run.status().get("records", {}).get("held") for _ in range(3)]
    return len(set(held)) == 1


@pytest.mark.row(14)
def test_unread_records_removed_by_retention_end_the_run_with_a_way_out(
    shifting: MakeShifting, project: MakeProject
) -> None:
    topic = shifting()
    topic.write(300)
    made = project(topic, memory={"limit": "1MiB"})
    with Run(made) as run:
        assert_learnt_once(run, topic)
        _remove_what_comes_next(run, topic, backlog=40_000)
        refused(run, "are gone by retention: set kafka.out_of_range: earliest")
    kept = newest(made)
    assert all(account.balanced and account.lost == 0 for account in kept.ledger.values())
    with Run(made) as run:
        refused(run, f"of {topic.name}:0 are gone by retention: set kafka.out_of_range: earliest")
    assert newest(made).positions == kept.positions


@pytest.mark.row(14)
def test_unread_records_removed_by_retention_are_counted_as_lost_for_ever(
    shifting: MakeShifting, project: MakeProject
) -> None:
    topic = shifting()
    topic.write(300)
    made = project(topic, memory={"limit": "1MiB"}, kafka={"out_of_range": "earliest"})
    with Run(made) as run:
        assert_learnt_once(run, topic)
        _remove_what_comes_next(run, topic, backlog=40_000)
        run.wait_for(lambda: run.settled() == topic.records, "it stood at the end")
        records = run.status()["records"]
        assert records["balanced"]
        assert records["lost"] > 100, "they were removed before they were read"
        assert "lost" in problems(run)
        run.terminate()
        run.finish()
    running = newest(made)
    assert running.ledger[0].lost == records["lost"]
    assert running.seen[0].count == topic.records - records["lost"]

    at = topic.records
    topic.write(200)
    topic.shorten(0, at + 150)
    with Run(made) as run:
        run.wait_for(lambda: run.settled() == topic.records, "it stood at the end")
        assert run.status()["records"]["lost"] == records["lost"] + 150
        view = _view(run, topic, 0)
        assert (view["same_topic"], view["lag_records"]) == ("unknown", 0)
        assert run.said("Taken on trust to be of the same topics as before") == 1
        run.terminate()
        run.finish()
    end = newest(made)
    assert end.ledger[0].balanced
    assert end.seen[0].count == topic.records - end.ledger[0].lost


# Row 15.

_PASSED_WITHIN_S = 60.0
"""A running trainer passes a few offsets within a second; one that never does so should not take the test's minutes."""


def _values(offsets: range) -> list[bytes]:
    random, mixture = Random(7), Mixture()
    drawn = [mixture.draw(ExpectedPosition(0, offset), random)[0] for offset in offsets]
    return [value for value in drawn if value is not None]


async def _transactions(bootstrap: str, topic: str) -> list[int]:
    """Write committed and aborted ones in turn; return the offsets to be learnt."""
    kept: list[int] = []
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"tx-{topic}") as producer:
        for turn in range(12):
            await producer.begin_transaction()
            sent = [await producer.send(topic, value, partition=0) for value in _values(range(40))]
            at = [(await future).offset for future in sent]
            if turn % 3:
                await producer.commit_transaction()
                kept += at
            else:
                await producer.abort_transaction()
    return kept


async def _write_keyed(bootstrap: str, topic: str, records: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number, value in enumerate(_values(range(records))):
            await producer.send_and_wait(topic, value, key=b"%d" % (number % 7), partition=0)


async def _left(bootstrap: str, topic: str) -> list[int]:
    """Return the offsets that compaction has left."""
    at = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    found: list[int] = []
    async with asyncio.timeout(60), consumer:
        consumer.assign([at])
        end = (await consumer.end_offsets([at]))[at]
        while await consumer.position(at) < end:
            records = (await consumer.getmany(at, timeout_ms=500)).get(at, [])
            found += [record.offset for record in records]
    return found


@pytest.mark.row(15)
def test_compacted_offsets_are_passed_and_aborted_records_are_not_learnt(
    broker: str, topic: MakeTopic, wait_for: WaitFor, shifting: MakeShifting, tmp_path: Path
) -> None:
    transacted = topic()
    compacted = topic(
        cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01, max_compaction_lag_ms=100
    )
    kept = asyncio.run(_transactions(broker, transacted))
    asyncio.run(_write_keyed(broker, compacted, 100))

    def gaps() -> bool:
        asyncio.run(_write_keyed(broker, compacted, 1))  # a new record closes the segment that is then compacted
        return len(asyncio.run(_left(broker, compacted))) < 50

    wait_for(gaps, timeout=60)
    made = Project(tmp_path, shifting(), kafka={"topics": [transacted, compacted], "bootstrap_servers": [broker]})
    with Run(made, "--until", "now") as run:
        run.finish()
    learnt = newest(made)
    of_transacted, of_compacted = (learnt.testimonies[Partition(name, 0)] for name in (transacted, compacted))
    assert of_transacted == Evidence.of(kept)
    assert learnt.accounts[Partition(transacted, 0)].gaps == 12 + 4 * 40, "markers, and what was aborted"
    assert 0 < of_compacted.count < 60
    assert learnt.accounts[Partition(compacted, 0)].gaps > 0
    assert all(account.balanced for account in learnt.accounts.values())

    kept += asyncio.run(_commit(broker, transacted))
    end = asyncio.run(_abort(broker, transacted))
    with Run(made) as run:

        def position() -> Any:
            return lag(run).get("partitions", {}).get(f"{transacted}:0", {}).get("position")

        run.wait_for(lambda: position() == end, "it had passed an aborted record that came with committed ones")
        # The next one comes alone: no poll returns a record whose chunk could reach over it.
        end = asyncio.run(_abort(broker, transacted))
        wait_until(lambda: position() == end, "an aborted record that came alone to be passed", _PASSED_WITHIN_S)
        run.wait_for(lambda: lag(run).get("lag_records") == 0, "nothing was left to learn")
        run.terminate()
        run.finish()
    learnt = newest(made)
    assert learnt.testimonies[Partition(transacted, 0)] == Evidence.of(kept)
    assert learnt.accounts[Partition(transacted, 0)].position == end


async def _commit(bootstrap: str, topic: str) -> list[int]:
    """Write a committed transaction; return its offsets."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"tx-{topic}") as producer:
        await producer.begin_transaction()
        sent = [await producer.send(topic, value, partition=0) for value in _values(range(40))]
        offsets = [(await future).offset for future in sent]
        await producer.commit_transaction()
    return offsets


async def _abort(bootstrap: str, topic: str) -> int:
    """Write one record in an aborted transaction; return the end of the log, one past the marker behind the record."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"tx-{topic}") as producer:
        await producer.begin_transaction()
        record = await (await producer.send(topic, b"aborted", partition=0))
        await producer.abort_transaction()
    return int(record.offset) + 2
