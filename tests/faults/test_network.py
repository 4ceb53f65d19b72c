"""The network is bad: slow, resetting, or open at one end only. The learning goes on, and loses nothing."""

import time

import pytest

from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka.source import KafkaOptions, KafkaSource
from tests.faults.harness.account import assert_learnt_once
from tests.faults.harness.disturbances import disturbed
from tests.faults.harness.kafka import committed
from tests.faults.harness.liveness import LivenessProbe
from tests.faults.harness.network_disturbances import HalfOpenNetwork, ResettingNetwork, SlowNetwork
from tests.faults.harness.shared import SharedTrainer
from tests.faults.harness.station import Station
from tests.faults.harness.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(8)]

SEED: int | None = None
"""Draws the resets; None for another one each time, which is printed."""
RECORDS = 3000
RESETS = 12


def test_a_slow_network_slows_and_loses_nothing(station: Station, proxied: SharedTrainer) -> None:
    run, topic = proxied.run, proxied.topic
    with LivenessProbe(run) as livez:
        with disturbed(SlowNetwork(station.proxy)):
            topic.write(RECORDS // 3)
            assert_learnt_once(run, topic)
        topic.write(100)
        assert_learnt_once(run, topic)
    assert livez.answers.keys() == {200}, livez.answers


def test_a_network_that_resets_and_cuts_connections_loses_nothing(station: Station, proxied: SharedTrainer) -> None:
    run, topic = proxied.run, proxied.topic
    topic.flow(2000)
    with LivenessProbe(run) as livez:
        with disturbed(ResettingNetwork(station.proxy, int(time.time()) if SEED is None else SEED)) as resetting:
            run.wait_for(lambda: resetting.hits >= RESETS, f"{RESETS} connections were broken")
            goal = (run.settled() or 0) + RECORDS
            run.wait_for(lambda: (run.settled() or 0) >= goal, "it learnt in the midst of it")
        topic.still()
        assert_learnt_once(run, topic)
    assert livez.answers.keys() == {200}, livez.answers


def test_connections_that_are_open_at_our_end_only_are_given_up_and_nothing_is_lost(
    station: Station, proxied: SharedTrainer
) -> None:
    run, topic, project = proxied.run, proxied.topic, proxied.project
    with LivenessProbe(run) as livez:
        with disturbed(HalfOpenNetwork(station.proxy)) as network:
            topic.write(RECORDS)
            run.wait_for(lambda: network.hits, "something vanished")
        statement = assert_learnt_once(run, topic)
    run.wait_for(
        lambda: committed(station.straight, project.group, topic.name, topic.partitions) == statement.positions,
        "its commits went through",
    )
    assert livez.answers.keys() == {200}, livez.answers


def test_a_connection_that_is_open_at_our_end_only_is_given_up_though_nobody_fetches(station: Station) -> None:
    create_topic(station.straight, "idle")
    options = KafkaOptions(
        bootstrap_servers=(station.proxied,), topics=("idle",), group_id="g", request_timeout_ms=1000
    )
    source, handoff = KafkaSource(options), Handoff(capacity_bytes=1)
    source.start(30)
    try:
        wait_until(lambda: source.statistics().connected, "it was connected", 30)
        with disturbed(HalfOpenNetwork(station.proxy)):
            wait_until(lambda: not source.statistics().connected, "it saw that nobody answers", 30)
        wait_until(lambda: source.statistics().connected, "it was answered again, over another connection", 30)
    finally:
        handoff.close()
        source.stop(5)
