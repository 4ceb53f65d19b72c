"""Errors of libraries, and long ones of ours, as people read them."""

import socket

import pytest
from aiokafka.errors import CoordinatorNotAvailableError, KafkaConnectionError

from millrace.consumers.errors import first_clause, text_of


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            KafkaConnectionError(
                f"Unable to bootstrap from {[('localhost', 9092, socket.AF_INET), ('b', 1, socket.AF_INET6)]}"
            ),
            "KafkaConnectionError: Unable to bootstrap from [localhost:9092, b:1]",
        ),
        (KafkaConnectionError(), "KafkaConnectionError"),
        (CoordinatorNotAvailableError(), "[Error 15] GroupCoordinatorNotAvailableError"),
        (OSError("refused\nby the host"), "OSError: refused by the host"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_error_of_a_library_has_its_type_once_and_addresses_in_plain_words(error: Exception, text: str) -> None:
    assert text_of(error) == text


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        (
            "topic clicks is not at localhost:9092; create it: kafka-topics.sh --create --topic clicks",
            "topic clicks is not at localhost:9092",
        ),
        ("a step raised ValueError: bad. Skip it: millrace rewind --to 3", "a step raised ValueError: bad"),
        ("disk full.", "disk full"),
        ("nothing to cut", "nothing to cut"),
    ],
)
def test_the_first_clause_is_what_is_wrong_without_what_to_do(text: str, clause: str) -> None:
    assert first_clause(text) == clause
