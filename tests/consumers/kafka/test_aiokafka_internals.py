"""What we rely on inside aiokafka is still there: a new version that changes it fails here, not in production."""

import asyncio
import gc
import inspect
import itertools
import random
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import aiokafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, client, conn
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.consumer.fetcher import Fetcher, FetchError, FetchResult, PartitionRecords
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaConnectionError
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.producer.sender import Sender
from aiokafka.record.default_records import DefaultRecordBatchBuilder, _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords

from millrace.consumers.kafka import aiokafka_internals
from millrace.consumers.kafka.aiokafka_internals import buffered_bytes, take_commit_errors
from millrace.consumers.kafka.client import KafkaClient
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.records import Partition
from tests.private_parts import gone, private_names

USED = {
    AIOKafkaConsumer: ("_client", "_request_timeout_ms", "_coordinator", "_fetcher"),
    GroupCoordinator: ("_do_commit_offsets",),
    AIOKafkaConnection: ("_protocol", "_do_sasl_handshake", "_handle_frame", "_requests"),
    AIOKafkaProducer: ("_sender", "_message_accumulator"),
    MessageAccumulator: ("_batches", "_pending_batches"),
    Fetcher: ("_records",),
    FetchResult: ("_partition_records", "_topic_partition", "_update_position"),
    PartitionRecords: (
        "_records",
        "_records_iterator",
        "_check_crcs",
        "_tp",
        "_isolation_level",
        "_aborted_producers",
        "_consume_aborted_up_to",
        "_contains_abort_marker",
    ),
    _DefaultRecordBatchPy: ("_maybe_uncompress", "_buffer"),
}
"""Of each class the private parts that are used of it."""
HERE = TopicPartition("clicks", 0)
NOT_LEADER, UNKNOWN_PARTITION, NO_ERROR = 6, 3, 0


def test_what_is_used_inside_aiokafka_is_there_in_this_version() -> None:
    assert gone("aiokafka", USED, by=aiokafka_internals) == []


def test_all_that_is_used_inside_aiokafka_is_looked_for() -> None:
    assert private_names(aiokafka_internals) == set(itertools.chain(*USED.values()))


def test_a_private_part_of_aiokafka_that_is_gone_is_named_with_the_version() -> None:
    (sentence,) = gone("aiokafka", {Fetcher: ("_records", "_gone")}, by=aiokafka_internals)
    assert (
        sentence
        == f"aiokafka {aiokafka.__version__} has no Fetcher._gone any more, which {aiokafka_internals.__name__} uses"
    )


def options() -> KafkaOptions:
    return KafkaOptions(bootstrap_servers=("localhost:1",), topics=("clicks",), group_id="g", request_timeout_ms=4_000)


def on_a_loop(work: Callable[[KafkaClient], Awaitable[None]]) -> None:
    """Run the work with a client that has no connection, assigned to one partition."""

    async def run() -> None:
        client = KafkaClient(options())
        consumer = client._consumer
        consumer._fetcher = Fetcher(client._client, consumer._subscription, auto_offset_reset="none")
        try:
            client.assign({Partition("clicks", 0): 7})
            assert not client.doubted, "our own calls raise no doubt"
            await work(client)
        finally:
            await client.close()

    asyncio.run(run())


def test_force_metadata_update_takes_no_argument_and_gives_an_awaitable() -> None:
    assert list(inspect.signature(AIOKafkaClient.force_metadata_update).parameters) == ["self"]

    async def work(client: KafkaClient) -> None:
        assert inspect.isawaitable(client._client.force_metadata_update())
        assert client.take_doubt()
        assert not client.doubted

    on_a_loop(work)


@pytest.mark.parametrize("reason", [CloseReason.CONNECTION_BROKEN, CloseReason.CONNECTION_TIMEOUT])
def test_a_broken_connection_raises_a_doubt(reason: CloseReason) -> None:
    async def work(client: KafkaClient) -> None:
        client._client._on_connection_closed(None, reason)
        assert client.doubted

    on_a_loop(work)


@pytest.mark.parametrize(("code", "doubted"), [(UNKNOWN_PARTITION, True), (NOT_LEADER, True), (NO_ERROR, False)])
def test_a_broker_that_does_not_know_or_lead_a_partition_raises_a_doubt(code: int, doubted: bool) -> None:
    async def work(client: KafkaClient) -> None:
        consumer = client._consumer
        answer = SimpleNamespace(API_VERSION=4, topics=[("clicks", [(0, code, 9, 9, None, b"")])])

        async def send(_node: int, _request: object) -> object:
            return answer  # without giving way to the fetcher's own task, which asks for metadata by itself

        client._client.send = send
        request = SimpleNamespace(topics=[("clicks", [(0, 7, 1000)])])
        await consumer._fetcher._proc_fetch_request(consumer._subscription.subscription.assignment, 0, request)
        assert client.doubted is doubted

    on_a_loop(work)


class _Lookups:
    """A fetcher that records the timeouts which the consumer passes to it."""

    def __init__(self) -> None:
        self.timeouts_ms: list[int] = []

    async def beginning_offsets(self, _partitions: Iterable[TopicPartition], timeout_ms: int) -> dict[Any, Any]:
        self.timeouts_ms.append(timeout_ms)
        return {}

    end_offsets = get_offsets_by_times = beginning_offsets


def test_offset_lookups_wait_a_second_longer_than_a_request() -> None:
    async def work(client: KafkaClient) -> None:
        lookups, fetcher = _Lookups(), client._consumer._fetcher
        client._consumer._fetcher = lookups
        partitions = [Partition("clicks", 0)]
        await client.beginnings(partitions)
        await client.ends(partitions)
        await client.at_time(partitions, 5)
        client._consumer._fetcher = fetcher
        assert lookups.timeouts_ms == [5_000] * 3
        assert client._client._request_timeout_ms == 4_000

    on_a_loop(work)


def _result(records: bytes) -> FetchResult:
    held = PartitionRecords(HERE, MemoryRecords(records), None, 0, None, None, check_crcs=True, isolation_level=0)
    return FetchResult(HERE, assignment=None, partition_records=held, backoff=0)


def test_buffered_bytes_are_those_of_fetched_results_and_nothing_else() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 10_000)
    builder.append(0, timestamp=0, key=None, value=b"x" * 100, headers=[])
    batch = bytes(builder.build())

    async def work(client: KafkaClient) -> None:
        fetcher = client._consumer._fetcher
        assert client.buffered_bytes == 0
        used_up = _result(batch)
        used_up._partition_records = None
        fetcher._records[HERE] = _result(batch)
        fetcher._records[TopicPartition("clicks", 1)] = used_up
        fetcher._records[TopicPartition("clicks", 2)] = FetchError(error=ValueError(), backoff=0)
        assert buffered_bytes(client._consumer) == len(batch) > 100

    on_a_loop(work)


def test_the_private_parts_that_we_close_have_a_coroutine_to_close_them() -> None:
    async def work(client: KafkaClient) -> None:
        assert isinstance(client._consumer, AIOKafkaConsumer)
        assert isinstance(client._consumer._client, AIOKafkaClient)
        producer = AIOKafkaProducer()
        assert isinstance(producer._sender, Sender)
        assert inspect.iscoroutinefunction(producer._sender.close)
        await producer.stop()

    on_a_loop(work)


def test_a_producer_closed_with_letters_that_it_cannot_send_leaves_no_task_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aiokafka_internals, "_SPARE_S", 0.01)

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers="localhost:1", linger_ms=60_000)
        await producer._sender.start()
        sent = await producer._message_accumulator.add_message(HERE, b"key", b"value", 60)
        await aiokafka_internals.close_producer(producer)
        assert not sent.done()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


@pytest.mark.parametrize("fails", [True, False])
def test_a_commit_request_that_fails_after_its_commit_timed_out_logs_no_traceback(fails: bool) -> None:
    unhandled: list[Mapping[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
        consumer = AIOKafkaConsumer(group_id="g", bootstrap_servers="localhost:1", enable_auto_commit=False)
        consumer._coordinator = GroupCoordinator(consumer._client, consumer._subscription, group_id="g")
        answer = asyncio.get_running_loop().create_future()

        async def known() -> None:
            pass

        async def send(_request: object) -> object:
            return await answer

        consumer._coordinator.ensure_coordinator_known, consumer._coordinator._send_req = known, send
        consumer.assign([HERE])
        take_commit_errors(consumer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await consumer.commit({HERE: 5})
        if fails:
            answer.set_exception(KafkaConnectionError("the broker went away"))
        else:
            answer.set_result(SimpleNamespace(topics=[("clicks", [(0, NO_ERROR)])]))
        for _ in range(5):
            await asyncio.sleep(0)
        await consumer._coordinator.close()
        consumer._coordinator = None
        await consumer.stop()

    asyncio.run(run())
    gc.collect()
    assert unhandled == []


def test_the_client_draws_no_number_of_pythons_shared_generator() -> None:
    """Keras seeds the first weights by it, on another thread."""
    modules = [(name, module) for name, module in [*sys.modules.items()] if name.startswith("aiokafka.")]
    assert [name for name, module in modules if getattr(module, "random", None) is random] == []
    before = random.getstate()
    client.random.shuffle([1, 2, 3])
    assert random.getstate() == before


def test_a_connection_takes_in_a_whole_response_without_stopping_its_socket() -> None:
    """It stops once it holds twice the limit."""
    limits = list[int]()

    def reader(*, limit: int, loop: asyncio.AbstractEventLoop) -> asyncio.StreamReader:
        limits.append(limit)
        return asyncio.StreamReader(limit=limit, loop=loop)

    async def connect() -> None:
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            _, port = server.sockets[0].getsockname()
            seen = mock.Mock(wraps=asyncio, StreamReader=reader)
            with mock.patch.object(conn, "asyncio", seen), pytest.raises(KafkaConnectionError):
                await AIOKafkaConnection("127.0.0.1", port).connect()

    asyncio.run(connect())
    assert limits == [options().fetch_total_bytes]
