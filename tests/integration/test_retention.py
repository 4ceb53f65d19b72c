"""For how long Kafka keeps what is not learnt yet: asked of a real broker, known without being waited for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from millrace.consumers.kafka.source import KafkaOptions, KafkaSource
from tests.conftest import MakeTopic, WaitFor

pytestmark = pytest.mark.broker


@contextmanager
def opened(broker: str, *topics: str) -> Iterator[KafkaSource]:
    source = KafkaSource(KafkaOptions(bootstrap_servers=(broker,), topics=topics, group_id=f"g-{topics[0]}"))
    source.start(30)
    try:
        yield source
    finally:
        source.stop(10)


def known(source: KafkaSource, wait_for: WaitFor) -> Mapping[str, int | None]:
    wait_for(lambda: source.statistics().retention_ms)
    return source.statistics().retention_ms


def test_each_topic_says_for_how_long_it_keeps_its_records(broker: str, topic: MakeTopic, wait_for: WaitFor) -> None:
    hour, day = topic(retention_ms=3_600_000), topic(retention_ms=86_400_000)
    with opened(broker, hour, day) as source:
        assert known(source, wait_for) == {hour: 3_600_000, day: 86_400_000}


def test_a_topic_that_removes_nothing_for_its_age_says_so(broker: str, topic: MakeTopic, wait_for: WaitFor) -> None:
    endless, compacted = topic(retention_ms=-1), topic(retention_ms=1000, cleanup_policy="compact")
    with opened(broker, endless, compacted) as source:
        assert known(source, wait_for) == {endless: None, compacted: None}


def test_a_source_that_is_stopped_at_once_leaves_no_question_behind(broker: str, topic: MakeTopic) -> None:
    """An unclosed connection would be a warning, and a warning is an error here."""
    with opened(broker, topic()) as source:
        source.partitions()
