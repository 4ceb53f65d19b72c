"""`serve.log` on a real Kafka: predictions are records of a topic, also those of an outage."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from millrace.app.settings import load
from millrace.app.settings.sections.records import to_schema
from millrace.app.tools.local_broker import LocalBroker
from millrace.app.tools.local_broker.topics import create_topic
from millrace.pipelines.stream.row_identity import RowIdentity
from tests.app.tools.serve.memory_rig import HERE, RECORD, published, row
from tests.app.tools.serve.server_rig import serving

pytestmark = [pytest.mark.broker, pytest.mark.tensorflow, pytest.mark.slow]
WaitFor = Callable[..., Any]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[LocalBroker]:
    """Start a broker of this test's own, to be killed."""
    with LocalBroker(tmp_path / "broker") as local:
        yield local


def logged(servers: str, count: int) -> list[tuple[bytes | None, dict[str, Any]]]:
    async def consume() -> list[tuple[bytes | None, dict[str, Any]]]:
        async with AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False) as consumer:
            partition = TopicPartition("cards-served", 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            found = list[tuple[bytes | None, dict[str, Any]]]()
            while len(found) < count:
                record = await asyncio.wait_for(consumer.getone(), 30)
                found.append((record.key, json.loads(record.value)))
            return found

    return asyncio.run(consume())


def test_predictions_are_in_the_topic_at_least_once_also_those_of_an_outage(
    mortal: LocalBroker, tmp_path: Path, wait_for: WaitFor
) -> None:
    servers = mortal.bootstrap_servers
    for topic in ("cards", "cards-served"):
        create_topic(servers, topic, 1)
    published(tmp_path, 1, {HERE: 0})
    given = {
        "kafka__bootstrap_servers": f'["{servers}"]',
        "serve__log__topic": "cards-served",
        "serve__log__share": "1",
    }
    with serving(tmp_path, "cards", **given) as server:
        server.answers_with(1)
        answer = server.predict({"records": [RECORD, {**RECORD, "card": "b"}]})
        server.wait_for(lambda: server.get("/served")["log"]["written"] == 2)
        (key, first), (_, second) = logged(servers, 2)
        assert (key, first["key"], first["version"], first["name"]) == (b"a", "a", 1, "cards")
        wanted = {f"{name}_there": value for name, value in row(answer).items()}
        assert first["prediction"] == wanted
        assert first["memory_age"] == pytest.approx(float(answer.headers["millrace-memory-age"]), abs=1e-3)
        assert first["positions"].keys() == {"cards:0"}
        features = {"card": [b"a"], "amount": [9.0], "kind": [1]}
        dtypes: dict[str, Any] = {"card": object, "amount": np.float32, "kind": np.int32}
        identity = RowIdentity(to_schema(load(tmp_path / "cards.yaml", {}).settings.records))
        columns = {name: np.array(values, dtypes[name]) for name, values in features.items()}
        assert first["row"] == f"{identity.of(columns)[0]:016x}"
        assert second["row"] != first["row"]

        mortal.kill()
        for _ in range(20):
            assert row(server.predict({"records": [RECORD]}))["known"] == 1
        server.wait_for(lambda: server.get("/served")["log"]["problem"] is not None)
        mortal.start()
        wait_for(lambda: server.get("/served")["log"]["written"] == 22, timeout=60)
        board = server.get("/served")["log"]
        assert (sum(board["dropped"].values()), board["waiting"], board["problem"]) == (0, 0, None)
    assert len({one["time"] for _, one in logged(servers, 22)}) > 1
