"""`serve.memory: follow` without a Kafka: what the export carries, what a request gets of it, and what is refused."""

from pathlib import Path

import pytest

from millrace.app.monitoring.metrics.serving_catalogue import SERVING
from millrace.app.tools.export.exported_memory import CarriedMemory, SkippedRange, window_shaper
from millrace.app.tools.serve.memory.topic_memory import TopicMemory
from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.windows.windows import NAME
from tests.app.tools.serve.exports_rig import publish
from tests.app.tools.serve.memory_rig import HERE, INPUTS, OTHER, RECORD, Echo, learnt, published, row, settings
from tests.app.tools.serve.server_rig import serving

pytestmark = pytest.mark.tensorflow


def test_a_request_gets_the_sequence_of_its_key_and_is_not_remembered(tmp_path: Path) -> None:
    published(tmp_path, 1, {HERE: 10, OTHER: 2})
    wanted = {
        "amount": [8.0, 9.0, 9.0],
        "card": "a",
        "gaps": [0.0, 1.0, 1.5],
        "kind": ["shop", "shop", "web"],
        "known": 3,
    }
    with serving(tmp_path, "cards") as server:
        server.answers_with(1)
        other, unknown = {**RECORD, "card": "b", "at": 1500}, {**RECORD, "card": "new"}
        for _ in range(2):
            answer = server.predict({"records": [RECORD, other, unknown, RECORD]})
            assert row(answer) == row(answer, 3) == wanted
            assert row(answer, 1)["amount"] == [0.0, 1.0, 9.0]
            assert (row(answer, 1)["known"], row(answer, 1)["gaps"]) == (3, [0.0, 1.0, 0.5])
            assert (row(answer, 2)["known"], row(answer, 2)["amount"]) == (1, [0.0, 0.0, 9.0])
        features = {name: value for name, value in RECORD.items() if name != "at"}
        assert row(server.predict({"instances": [features], "timestamps": [RECORD["at"]]})) == wanted
        assert float(answer.headers["millrace-memory-age"]) > 0
        memory = server.get("/served")["memory"]
        assert (memory["positions"], memory["keys"]) == ({"cards:0": 10, "cards:1": 2}, 2)
        assert "timestamps" in server.refused({"instances": [features]})
        refused = server.predict({"instances": [{**features, "kind": "boat"}], "timestamps": [0]})
        assert refused.json()["refused"] == [{"index": 0, "reason": "not_allowed", "field": "kind"}]
        said = server.refused({"inputs": {"amount": [[1.0, 2.0, 3.0]]}})
        assert said.startswith("the server makes sequences itself (serve.memory): send the newest record of each key")


@pytest.mark.slow
def test_without_kafka_it_answers_and_says_how_old_its_memory_is(tmp_path: Path) -> None:
    published(tmp_path, 1, {HERE: 10})
    with serving(tmp_path, "cards", serve__memory__max_lag="1m") as server:
        server.answers_with(1)
        server.wait_for(lambda: "127.0.0.1:1" in (server.get("/served")["memory"]["problem"] or ""))
        assert row(server.predict({"records": [RECORD]}))["known"] == 3
        # The export was made long ago, and the memory has never met the topic since.
        ready = server.http.get("/readyz")
        assert ready.status_code == 503
        assert "and serve.memory.max_lag is 60 s" in ready.json()["reasons"][0]
        metrics = server.http.get("/metrics").text
        assert 'millrace_serve_memory_keys{model="cards"} 1.0' in metrics
        told = {line.partition("{")[0] for line in metrics.splitlines() if line.startswith("millrace_serve_memory_")}
        of_memory = {one.name for one in SERVING if one.short.startswith("serve_memory_")}
        assert of_memory - told == {"millrace_serve_memory_behind_records"}, "not known before Kafka has answered"


@pytest.mark.row(47)
def test_a_version_goes_on_with_the_newer_of_both_states(tmp_path: Path) -> None:
    published(tmp_path, 1, {HERE: 10, OTHER: 2})
    with serving(tmp_path, "cards") as server:
        server.answers_with(1)
        published(tmp_path, 2, {HERE: 7, OTHER: 5})
        server.answers_with(2)
        server.wait_for(lambda: server.get("/served")["memory"]["positions"] == {"cards:0": 10, "cards:1": 5})
        answer = server.predict({"records": [RECORD, {**RECORD, "card": "b"}]})
        assert (row(answer)["amount"], row(answer, 1)["amount"]) == ([8.0, 9.0, 9.0], [3.0, 4.0, 9.0])


def test_a_server_of_some_partitions_holds_their_keys_alone_and_refuses_partitions_that_are_not_there(
    tmp_path: Path,
) -> None:
    published(tmp_path, 1, {HERE: 10, OTHER: 2})
    with serving(tmp_path, "cards", serve__memory__partitions="[1]") as server:
        server.answers_with(1)
        memory = server.get("/served")["memory"]
        assert (memory["positions"], memory["keys"]) == ({"cards:1": 2}, 1)
        answer = server.predict({"records": [RECORD, {**RECORD, "card": "b"}]})
        assert (row(answer)["known"], row(answer, 1)["amount"]) == (1, [0.0, 1.0, 9.0])
    with serving(tmp_path, "cards", serve__memory__partitions="[1, 7]") as server:
        server.wait_for(lambda: "the version knows no partition 7" in (server.get("/served")["problem"] or ""))


def test_a_range_that_was_cut_out_since_takes_the_memory_back_to_the_version(tmp_path: Path) -> None:
    given = settings(tmp_path)
    memory = TopicMemory(given)

    def carried(end: int, skips: tuple[SkippedRange, ...]) -> CarriedMemory:
        checkpoint = learnt(given, {HERE: end})
        part = checkpoint.parts[NAME]
        states = window_shaper(given).states_of(part.arrays, part.facts) or {}
        return CarriedMemory(
            positions={HERE: end},
            states=lambda: {partition: state for partition, (_, state) in states.items()},
            skips=skips,
            left_out=0,
        )

    def positions_after(number: int, end: int, *skips: SkippedRange) -> dict[Partition, int]:
        memory.offer(number, 0.0, carried(end, skips))
        return memory.keys.positions()

    try:
        memory._ended.set()  # nobody reads
        assert positions_after(1, 50) == {HERE: 50}
        assert positions_after(2, 40) == {HERE: 50}, "it has read further"
        ahead = SkippedRange(HERE, 60, 70)
        assert positions_after(3, 45, ahead) == {HERE: 50}, "that is still to come"
        assert positions_after(4, 20, ahead, SkippedRange(HERE, 30, 35)) == {HERE: 20}
        assert positions_after(3, 80, ahead) == {HERE: 20}, "an older version"
        assert positions_after(5, 20, ahead, SkippedRange(HERE, 30, 35)) == {HERE: 20}
    finally:
        memory.end(5.0)


def test_a_version_without_keys_never_answers_and_the_one_before_goes_on(tmp_path: Path) -> None:
    published(tmp_path, 1, {HERE: 10})
    with serving(tmp_path, "cards") as server:
        server.answers_with(1)
        publish(tmp_path / "exports" / "cards", 2, Echo(), INPUTS, settings(tmp_path))
        server.wait_for(lambda: "carries no keys" in (server.get("/served")["problem"] or ""))
        assert server.get("/served")["served"] == 1
        assert row(server.predict({"records": [RECORD]}))["known"] == 3


def test_one_word_asks_for_it_and_without_keys_it_is_refused(tmp_path: Path) -> None:
    assert settings(tmp_path, {"serve__memory": "follow"}).serve.memory.follows
    with pytest.raises(ConfigError, match="serve: memory: it is of the keys of windows"):
        settings(tmp_path, {"windows__by": "null"})
