"""How fast a topic's records come, as `millrace init` and the first start of a lineage ask Kafka."""

import time
from pathlib import Path

import pytest

from millrace.app.service.step_numbers import settled
from millrace.app.settings import load
from millrace.app.settings.connection import kafka_options
from millrace.app.settings.sections.kafka import KafkaSettings
from millrace.app.settings.sections.training import StepNumbers
from millrace.app.tools.init import topic_sample
from millrace.app.tools.init.topic_sample import sampled_records
from millrace.consumers.kafka.source import KafkaSource
from tests.app.checkpoint_history import config_in
from tests.conftest import MakeTopic, Produce

pytestmark = pytest.mark.broker
MINUTE_MS = 60_000


def _looked_at(broker: str, name: str) -> tuple[int, float | None]:
    found = sampled_records(KafkaSettings(bootstrap_servers=(broker,), topics=(name,)))
    held, rate = found.held, found.records_per_s
    return held, rate


def test_a_topic_that_has_been_written_to_for_half_an_hour_has_a_rate(
    broker: str, topic: MakeTopic, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, now = topic(partitions=2), round(time.time() * 1000)
    times = [now - 30 * MINUTE_MS + second * 1000 for second in range(0, 1800, 2)]
    produce(name, [(number % 2, b"%d" % (number // 2)) for number in range(len(times))], timestamps=times)
    held, rate = _looked_at(broker, name)
    assert held == 900
    assert rate == pytest.approx(0.5, rel=0.05)
    # Of what is more than it looks at, ten stretches that are spread over each partition.
    monkeypatch.setattr(topic_sample, "_MOST", 100)
    kafka = KafkaSettings(bootstrap_servers=(broker,), topics=(name,))
    spread = [b"%d" % (445 * place // 9 + offset) for place in range(10) for offset in range(5)]
    assert list(sampled_records(kafka).values) == 2 * spread
    assert list(sampled_records(kafka, places=1).values) == 2 * [b"%d" % offset for offset in range(50)]
    monkeypatch.setattr(topic_sample, "_MOST_BYTES", 100)
    few = {int(value) for value in sampled_records(kafka).values}
    assert min(few) == 0
    assert max(few) >= 445


def test_a_topic_that_was_filled_just_now_has_none(broker: str, topic: MakeTopic, produce: Produce) -> None:
    name = topic()
    produce(name, [b'{"x":1}'] * 50)
    assert _looked_at(broker, name) == (50, None)


@pytest.mark.parametrize(
    ("training", "records", "numbers"),
    [
        ("{}", 500, StepNumbers(batch_size=8, passes=4, memory=300)),
        ("{}", 0, StepNumbers(batch_size=32)),
        ("{passes: 2}", 500, StepNumbers(batch_size=32, passes=2)),
        ("{batch_size: 64}", 500, StepNumbers(batch_size=64)),
        ("{partial_batches: wait, rows: together, replicas: 1}", 500, StepNumbers(batch_size=1024)),
    ],
    ids=["slow", "empty", "own passes", "own batch", "compared rows"],
)
def test_a_lineage_begins_with_the_numbers_of_its_topic(
    broker: str, tmp_path: Path, topic: MakeTopic, produce: Produce, training: str, records: int, numbers: StepNumbers
) -> None:
    name = topic(partitions=2)
    produce(name, [(number % 2, b"{}") for number in range(records)])
    config = config_in(tmp_path, f"training: {training}\n")
    told = {"MILLRACE_KAFKA__BOOTSTRAP_SERVERS": broker, "MILLRACE_KAFKA__TOPICS": name}
    settings = load(config, told).settings
    source = KafkaSource(kafka_options(settings.kafka))
    source.start(15)
    try:
        found = settled(settings, source).training
    finally:
        source.stop(5)
    assert (found.numbers, found.left_to_auto) == (numbers, frozenset())


def test_a_fast_topic_gets_large_batches_by_the_times_of_its_records(
    broker: str, tmp_path: Path, topic: MakeTopic, produce: Produce
) -> None:
    name, now = topic(), round(time.time() * 1000)
    times = [now - 4 * MINUTE_MS + number * 4 * MINUTE_MS // 120_000 for number in range(120_000)]
    produce(name, [b"{}"] * len(times), timestamps=times)
    told = {"MILLRACE_KAFKA__BOOTSTRAP_SERVERS": broker, "MILLRACE_KAFKA__TOPICS": name}
    settings = load(config_in(tmp_path), told).settings
    source = KafkaSource(kafka_options(settings.kafka))
    source.start(15)
    try:
        # 500 a second, ten times as fast: by the times alone of the last hour it would be taken for 33.
        assert settled(settings, source).training.numbers == StepNumbers(batch_size=32, passes=4, memory=300)
    finally:
        source.stop(5)
