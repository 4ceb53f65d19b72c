"""A flood of bad records, and a topic that takes no dead letters: the learning pauses, nothing is lost or repeated."""

import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from millrace.app.tools.local_broker.topics import create_topic
from millrace.app.tools.traffic.topic_reader import Letter, dead_letters
from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.account import assert_learnt_once
from tests.faults.harness.group import GroupOfProcesses
from tests.faults.harness.process import Run
from tests.faults.harness.records import Mixture
from tests.faults.harness.shelf import Shelf, Statement
from tests.faults.harness.shifting import ShiftingTopic
from tests.faults.harness.topics import Topic
from tests.faults.harness.vitals import Vitals
from tests.faults.harness.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(300), pytest.mark.row(37)]

UNDECODABLE = (Reason.MALFORMED, Reason.EMPTY, Reason.MISSING, Reason.WRONG_TYPE, Reason.NOT_ALLOWED)
FLOOD, GOOD = Mixture(share=1.0, kinds=UNDECODABLE), Mixture()
SOME_BAD = Mixture(share=0.2, kinds=UNDECODABLE)
PER_S, WITHIN_S = 500, 5.0
FLOOD_S = float(os.environ.get("MILLRACE_TEST_FLOOD_S", "4"))
"""How long a flood goes on once it is held; a campaign may set more."""
MEMORY_BYTES = 32 * 2**20
"""Most that memory may grow meanwhile."""
PAUSING = {"pause_above": {"share": "5 %", "over": "1m"}}
Measure = Callable[[str, object], None]


@pytest.fixture
def letters(broker: str) -> str:
    """Make a topic for dead letters."""
    name = f"l-{uuid.uuid4().hex[:10]}"
    create_topic(broker, name)
    return name


def watched(project: MakeProject, topic: Topic, letters: str) -> Run:
    """Start a trainer that a flood pauses."""
    return Run(project(topic, records={"dead_letters": {"topic": letters, **PAUSING}}))


def problems(run: Run) -> dict[str, str]:
    return {problem["problem"]: problem["what"] for problem in run.status().get("problems", [])}


def unready_because(run: Run) -> str:
    code, answer = run.ask("GET", "/readyz")
    assert code == 503
    return str(answer["reasons"][0])


def learnt(run: Run) -> int:
    return int(run.status()["records"]["learnt"])


def assert_set_aside_once(topic: Topic, statement: Statement, found: Counter[Letter]) -> None:
    """Check each bad record by its reason: the checkpoint counts it once, and it has a letter."""
    for partition, account in statement.ledger.items():
        assert Counter(account.set_aside) == topic.set_aside(partition)
        assert account.balanced
    expected = {
        (partition, offset, reason)
        for partition, verdicts in enumerate(topic.verdicts)
        for offset, reason in enumerate(verdicts)
        if reason is not None
    }
    assert {(letter.partition, letter.offset, letter.reason) for letter in found} == expected


def test_a_flood_is_held_back_until_good_records_come_and_none_is_lost_or_sent_twice(
    stream: MakeStream, project: MakeProject, letters: str, record_property: Measure
) -> None:
    topic = stream(2, FLOOD)
    topic.write(300, GOOD)
    with watched(project, topic, letters) as run:
        run.wait_for(lambda: run.settled() == topic.records, "the good ones were learnt")
        before = learnt(run)
        began = time.monotonic()
        topic.flow(PER_S)
        run.wait_for(lambda: run.state() == "paused", "it paused")
        record_property("seconds_to_pause", round(time.monotonic() - began, 1))
        assert run.ask("GET", "/livez")[0] == 200
        assert "cannot be learnt, most as" in unready_because(run)
        assert "too many bad records" in problems(run)["bad_records"]

        sent, written = dead_letters(topic.bootstrap, letters), topic.records
        assert sent.total() < PER_S * WITHIN_S, "it was held within seconds"
        held = Vitals.of(run.pid).anonymous_bytes
        run.wait_for(lambda: topic.records > written + FLOOD_S * PER_S, f"the flood went on for {FLOOD_S:g} s")
        grown = Vitals.of(run.pid).anonymous_bytes - held
        record_property("grown_bytes", grown)
        assert grown < MEMORY_BYTES
        topic.still()
        assert (run.state(), learnt(run)) == ("paused", before)
        assert dead_letters(topic.bootstrap, letters) == sent, "nothing more was set aside"

        topic.write(300, GOOD)
        run.wait_for_line("good records come again")
        statement = assert_learnt_once(run, topic)
        assert run.ask("GET", "/readyz")[0] == 200
        assert "bad_records" not in problems(run)
        found = dead_letters(topic.bootstrap, letters)
        assert_set_aside_once(topic, statement, found)
        assert set(found.values()) == {1}, "what was held was sent once"


def test_a_kill_while_held_changes_nothing_and_an_order_lets_the_flood_pass(
    stream: MakeStream, project: MakeProject, letters: str
) -> None:
    topic = stream(2)
    topic.write(300)
    topic.write(2000, FLOOD)
    with watched(project, topic, letters) as run:
        run.wait_for(lambda: run.state() == "paused", "it paused")
        run.kill()
    assert dead_letters(topic.bootstrap, letters).total() < 4000, "it was held back"
    with watched(project, topic, letters) as run:
        run.wait_for(lambda: run.state() == "paused", "it paused again")
        run.wait_for_line("a flood of bad records is held back")
        assert run.ask("POST", "/resume")[0] == 200
        statement = assert_learnt_once(run, topic)
        assert run.log().count("a flood of bad records is held back") == 1, "not again for the same records"
        assert_set_aside_once(topic, statement, dead_letters(topic.bootstrap, letters))

        topic.write(500, FLOOD)
        run.wait_for(lambda: run.state() == "paused", "it paused for the next flood")
        run.terminate()
        assert run.exit_code() == 0, run.tail()


def test_a_flood_in_a_backlog_passes_to_the_same_bits_as_without_a_pause(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(2)
    for records, mixture in ((300, GOOD), (2000, FLOOD), (300, GOOD)):
        topic.write(records, mixture)
    exact = {"deterministic": True, "replicas": 1, "max_wait": None}
    states = list[Statement]()
    for pausing in ({}, PAUSING):
        made = project(topic, f"p{len(states)}", records={"dead_letters": pausing}, training=exact)
        with Run(made, "--until", "now") as run:
            run.finish()
            assert bool(run.said("good records come again")) == bool(pausing), "only with a bound it paused"
        state = Shelf(made.folder).newest()
        assert state is not None
        states.append(state)
    plain, paused = states
    assert plain.seen == paused.seen == {partition: topic.evidence(partition) for partition in range(2)}
    assert plain.arrays.keys() == paused.arrays.keys()
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(array, paused.arrays[name], name)


def test_a_flood_at_one_worker_holds_the_group_until_a_resume_at_the_chief(broker: str, tmp_path: Path) -> None:
    with (
        ShiftingTopic(broker, f"g-{uuid.uuid4().hex[:10]}", 2, GOOD, 11) as topic,
        GroupOfProcesses(tmp_path, topic, 2, records={"dead_letters": PAUSING}) as group,
    ):
        topic.write(300)
        group.start()
        group.wait_until(lambda: group.settled() == topic.records, "the group learns", restart=False)
        chief, other = group.chief, group.member(1)
        for partition in range(2):
            topic.write_to(partition, 1000, FLOOD)
            chief.wait_for(lambda: chief.state() == other.state() == "paused", "both paused")
            held = [run for run in (chief, other) if "bad_records" in problems(run)]
            assert len(held) == 1, "one of them holds its partition"
            waiting = other if held == [chief] else chief
            assert "is held, and says why" in waiting.status()["verdict"]
            assert chief.ask("POST", "/resume")[0] == 200
            group.wait_until(lambda: group.settled() == topic.records, "the flood passed", restart=False)
        group.assert_learnt_once()


def test_learning_pauses_while_the_topic_of_dead_letters_is_gone_and_skips_nothing(
    stream: MakeStream, project: MakeProject, letters: str
) -> None:
    topic = stream(2, SOME_BAD)
    topic.write(200)
    made = project(topic, records={"dead_letters": {"topic": letters}})
    with Run(made) as run:
        run.wait_for(lambda: run.settled() == topic.records, "all was settled")
        sent = topic.set_aside(0).total() + topic.set_aside(1).total()
        run.wait_for(lambda: dead_letters(topic.bootstrap, letters).total() == sent, "its letters were sent")
        found = dead_letters(topic.bootstrap, letters)

        asyncio.run(_delete(topic.bootstrap, letters))
        topic.flow(100)
        run.wait_for(lambda: run.state() == "paused", "it paused")
        assert f"the topic {letters} has taken no dead letter for" in unready_because(run)
        assert "the learning is paused until then" in problems(run)["dead_letters_waiting"]
        before, written = learnt(run), topic.records
        run.wait_for(lambda: topic.records > written + 200, "more came")
        topic.still()
        assert (run.state(), run.status()["records"]["learnt"]) == ("paused", before)
        assert run.ask("GET", "/livez")[0] == 200

        wait_until(lambda: _created(topic.bootstrap, letters), "the name was free")
        statement = assert_learnt_once(run, topic)
        assert run.ask("GET", "/readyz")[0] == 200
        assert_set_aside_once(topic, statement, found + dead_letters(topic.bootstrap, letters))


@pytest.mark.nightly  # in the gate it is killed while a flood holds it
def test_a_kill_while_the_topic_refuses_dead_letters_loses_nothing(
    broker: str, stream: MakeStream, project: MakeProject
) -> None:
    refusing = f"l-{uuid.uuid4().hex[:10]}"
    create_topic(broker, refusing, config={"max.message.bytes": "64"})
    topic = stream(2, SOME_BAD)
    topic.write(500)
    made = project(topic, records={"dead_letters": {"topic": refusing}})
    for _ in range(2):
        with Run(made) as run:
            run.wait_for(lambda: run.state() == "paused", "it paused")
            assert f"the topic {refusing} has taken no dead letter for" in unready_because(run)
            run.kill()
    with Run(made) as run:
        run.wait_for(lambda: run.state() == "paused", "it paused")
        assert run.went_on_from() == 0, "no checkpoint is ahead of the letters"
        asyncio.run(_take_all(broker, refusing))
        statement = assert_learnt_once(run, topic)
        assert run.ask("GET", "/readyz")[0] == 200
    assert_set_aside_once(topic, statement, dead_letters(broker, refusing))


async def _take_all(bootstrap: str, topic: str) -> None:
    """Have a topic take letters of any size again."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "1048588"})])
    finally:
        await admin.close()


async def _delete(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()


def _created(bootstrap: str, topic: str) -> bool:
    try:
        create_topic(bootstrap, topic)
    except ConfigError:
        return False
    return True
