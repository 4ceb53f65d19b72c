"""`serve.memory: follow` on a real Kafka: the memory follows the topic, also over a broker that dies and comes back."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaProducer

from millrace.app.tools.local_broker import LocalBroker
from millrace.app.tools.local_broker.topics import create_topic
from tests.app.tools.serve.memory_rig import HERE, OTHER, RECORD, published, row
from tests.app.tools.serve.server_rig import Server, serving

pytestmark = [pytest.mark.broker, pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.row(47)]
WaitFor = Callable[..., Any]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[LocalBroker]:
    """Start a broker of this test's own, to be killed."""
    with LocalBroker(tmp_path / "broker") as local:
        yield local


def write(servers: str, first: int, last: int) -> None:
    """Write the records of these offsets to both partitions, as `learnt` has them, and a bad one behind."""

    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for partition, card in ((HERE, "a"), (OTHER, "b")):
                for at in range(first, last):
                    record = {"card": card, "amount": float(at), "kind": "shop", "fraud": 0.0, "at": at * 1000}
                    await producer.send_and_wait(
                        partition.topic, json.dumps(record).encode(), partition=partition.number
                    )
                # Training sets it aside for its label, so it is in no sequence.
                bad = {"card": card, "amount": -1.0, "kind": "shop", "fraud": "none", "at": 0}
                await producer.send_and_wait(partition.topic, json.dumps(bad).encode(), partition=partition.number)

    asyncio.run(produce())


def amounts(server: Server) -> list[float]:
    return list(row(server.predict({"records": [RECORD]}))["amount"])


def holds(server: Server, end: int) -> bool:
    return bool(server.get("/served")["memory"]["positions"] == {"cards:0": end, "cards:1": end})


def test_it_follows_the_topic_and_answers_through_an_outage_saying_how_old_it_is(
    mortal: LocalBroker, tmp_path: Path, wait_for: WaitFor
) -> None:
    servers = mortal.bootstrap_servers
    create_topic(servers, "cards", 2)
    write(servers, 0, 10)
    published(tmp_path, 1, {HERE: 4, OTHER: 4})
    environment = {"kafka__bootstrap_servers": f'["{servers}"]', "serve__memory__max_lag": "2s"}
    with serving(tmp_path, "cards", **environment) as server:
        server.answers_with(1)
        server.wait_for(lambda: holds(server, 11))
        assert amounts(server) == [8.0, 9.0, 9.0]
        wait_for(lambda: server.http.get("/readyz").status_code == 200)
        memory = server.get("/served")["memory"]
        assert (memory["behind"], memory["lost"], memory["problem"], memory["keys"]) == (0, 0, None, 2)

        mortal.kill()
        ages = list[float]()

        def answered() -> bool:
            answer = server.predict({"records": [RECORD]})
            assert row(answer)["amount"] == [8.0, 9.0, 9.0]
            ages.append(float(answer.headers["millrace-memory-age"]))
            return server.http.get("/readyz").status_code == 503

        wait_for(answered, timeout=60)
        assert ages == sorted(ages)
        assert ages[-1] > 1.5
        assert "serve.memory.max_lag is 2 s" in server.http.get("/readyz").json()["reasons"][0]

        mortal.start()
        write(servers, 11, 13)
        server.wait_for(lambda: holds(server, 14))
        assert amounts(server) == [11.0, 12.0, 9.0]
        wait_for(lambda: server.http.get("/readyz").status_code == 200, timeout=60)

        # A newer version that knows less changes nothing.
        published(tmp_path, 2, {HERE: 9, OTHER: 9})
        server.answers_with(2)
        assert holds(server, 14)
        assert amounts(server) == [11.0, 12.0, 9.0]


def test_a_server_of_some_partitions_follows_these_alone(mortal: LocalBroker, tmp_path: Path) -> None:
    servers = mortal.bootstrap_servers
    create_topic(servers, "cards", 2)
    write(servers, 0, 10)
    published(tmp_path, 1, {HERE: 4, OTHER: 4})
    given = {"kafka__bootstrap_servers": f'["{servers}"]', "serve__memory__partitions": "[1]"}
    with serving(tmp_path, "cards", **given) as server:
        server.answers_with(1)
        server.wait_for(lambda: bool(server.get("/served")["memory"]["behind"] == 0))
        assert server.get("/served")["memory"]["positions"] == {"cards:1": 11}
        answer = server.predict({"records": [RECORD, {**RECORD, "card": "b"}]})
        assert (row(answer)["known"], row(answer, 1)["amount"]) == (1, [8.0, 9.0, 9.0])


@pytest.mark.nightly
def test_kafka_away_for_a_minute_fails_no_request_and_is_caught_up_within_ten_seconds_of_its_return(
    mortal: LocalBroker, tmp_path: Path, wait_for: WaitFor
) -> None:
    servers = mortal.bootstrap_servers
    create_topic(servers, "cards", 2)
    write(servers, 0, 10)
    published(tmp_path, 1, {HERE: 4, OTHER: 4})
    with serving(tmp_path, "cards", kafka__bootstrap_servers=f'["{servers}"]') as server:
        server.answers_with(1)
        server.wait_for(lambda: holds(server, 11))
        ended, answers = threading.Event(), list[tuple[float, int, float, float]]()

        def ask() -> None:
            with httpx.Client(base_url=server.url, timeout=30) as client:
                while not ended.is_set():
                    began = time.monotonic()
                    answer = client.post("/v1/models/cards:predict", json={"records": [RECORD]})
                    age = float(answer.headers.get("millrace-memory-age", "nan"))
                    answers.append((began, answer.status_code, age, time.monotonic() - began))
                    time.sleep(0.01)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            time.sleep(2)
            mortal.kill()
            away = time.monotonic()
            time.sleep(60)
            returning = time.monotonic()
            mortal.start()
            back = time.monotonic()
            write(servers, 11, 13)
            wait_for(lambda: holds(server, 14), timeout=60)
            caught_up_s = time.monotonic() - back
        finally:
            ended.set()
            asking.join()
        assert amounts(server) == [11.0, 12.0, 9.0]
    assert len(answers) > 1000
    assert {status for _, status, _, _ in answers} == {200}
    # Each answer says by how much it may lack what was written since Kafka went away.
    assert all(age > began - away - 3 for began, _, age, _ in answers if away + 3 < began < returning - 1)
    assert max(age for began, _, age, _ in answers if began < returning) > 55
    assert max(took for *_, took in answers) < 5
    assert caught_up_s < 10, caught_up_s
