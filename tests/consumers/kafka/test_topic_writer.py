"""Brokers that accept connections and answer nothing: an error that says so, in bounded time, and nothing left open."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.consumers.errors import UnreachableError
from millrace.consumers.kafka import topic_writer
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.topic_writer import TopicWriter

WITHIN_S, SPARE_S = 1.0, 0.3


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Give a server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


@pytest.fixture
def writer(silent: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Iterator[TopicWriter]:
    monkeypatch.setattr(topic_writer, "_SPARE_S", SPARE_S)
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    options = KafkaOptions(bootstrap_servers=(address,), topics=("clicks",), group_id="g")
    writer = TopicWriter(options, "clicks", setting="serve.log", thread="writer")
    writer.start()
    yield writer
    writer.stop()


def test_silent_brokers_are_named_and_the_connection_to_them_is_closed(
    writer: TopicWriter, silent: socket.socket
) -> None:
    with pytest.raises(UnreachableError, match=r"^serve.log: 127.0.0.1:\d+ has acknowledged nothing within 1 s; is"):
        writer.write_all([(b"k", b"v")], WITHIN_S)
    connection, _ = silent.accept()
    with connection:
        connection.settimeout(10)
        while connection.recv(4096):
            pass


def test_a_write_whose_end_hangs_too_is_the_same_error(writer: TopicWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(TopicWriter, "_work", never)
    with pytest.raises(UnreachableError, match=r"has acknowledged nothing within 0\.1 s"):
        writer.check(0.1)
