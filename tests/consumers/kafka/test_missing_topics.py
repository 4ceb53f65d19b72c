"""What is said of a topic that does not exist."""

import pytest

from millrace.consumers.kafka.client import missing_topic, similar_topics

CREATE = "create it: kafka-topics.sh --bootstrap-server b:1 --create --topic clcks --partitions 4"


def test_a_misspelt_topic_is_answered_with_the_one_that_was_meant() -> None:
    text = missing_topic("clcks", "b:1", ["views", "clicks", "payments"])
    assert text == f"topic clcks is not at b:1; did you mean clicks? If not, {CREATE}"


def test_without_a_similar_topic_only_the_way_to_create_it_is_shown() -> None:
    assert missing_topic("clcks", "b:1", ["views"]) == f"topic clcks is not at b:1; {CREATE}"


def test_on_this_machine_the_way_without_kafkas_tools_is_shown_too() -> None:
    text = missing_topic("clcks", "b:1", local=True)
    ours = "millrace local produce --bootstrap-servers b:1 --topic clcks --create --partitions 4 FILE"
    assert text == f"topic clcks is not at b:1; {CREATE}, or without it: {ours}"


@pytest.mark.parametrize(
    ("topic", "similar"),
    [
        ("Clicks", ["clicks", "clicks-2"]),
        ("CLICKS_2", ["clicks-2", "clicks"]),
        ("clicks", ["clicks", "clicks-2"]),
        ("orders", []),
    ],
)
def test_similarity_ignores_case_and_the_nearest_comes_first(topic: str, similar: list[str]) -> None:
    assert similar_topics(topic, ["clicks", "clicks-2", "views"]) == similar
