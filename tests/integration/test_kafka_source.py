"""The source against a real broker: where it starts and stops, what it passes, and what it says when it cannot."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.records_to_delete import RecordsToDelete

from millrace.consumers.dead_letters.reader import newest_letters
from millrace.consumers.errors import HandoffBroken, HandoffEmpty, HandoffEnded, TopicMissingError, UnreachableError
from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka.positions import At, Committed, Earliest, Latest, Now, parse_start
from millrace.consumers.kafka.source import KafkaOptions, KafkaSource
from millrace.consumers.records import Chunk, Partition
from tests.consumers.kafka.foreign_names import FOREIGN, READ_AS, produce_foreign

pytestmark = pytest.mark.broker

Topic = Callable[..., str]
Produce = Callable[..., list[tuple[int, int]]]
WaitFor = Callable[..., Any]
Open = Callable[..., AbstractContextManager[KafkaSource]]


@pytest.fixture
def source(broker: str) -> Open:
    """Return a function that starts a source of one topic with the options it is given."""

    @contextmanager
    def opened(topic: str, **settings: Any) -> Iterator[KafkaSource]:
        options = KafkaOptions(
            bootstrap_servers=(broker,), topics=(topic,), group_id=f"g-{topic}", metadata_max_age_ms=200
        )
        opened = KafkaSource(replace(options, **settings))
        opened.start(30)
        try:
            yield opened
        finally:
            opened.stop(10)

    return opened


def new_handoff() -> Handoff:
    return Handoff(capacity_bytes=1 << 20)


def drain(handoff: Handoff) -> list[Chunk]:
    """Receive everything up to the end."""
    chunks: list[Chunk] = []
    while True:
        try:
            chunks.append(handoff.receive(20))
        except HandoffEnded:
            return chunks


def receive_until(handoff: Handoff, reached: Mapping[Partition, int]) -> list[Chunk]:
    """Receive everything up to these offsets."""
    chunks: list[Chunk] = []
    ends: dict[Partition, int] = {}
    while any(ends.get(partition, 0) < offset for partition, offset in reached.items()):
        chunks.append(handoff.receive(20))
        ends[chunks[-1].partition] = chunks[-1].end
    return chunks


def offsets_of(chunks: Sequence[Chunk], partition: Partition) -> list[int]:
    return [int(offset) for chunk in chunks if chunk.partition == partition for offset in chunk.offsets]


def assert_contiguous(chunks: Sequence[Chunk], positions: Mapping[Partition, int]) -> None:
    """Check that each chunk starts where the one before it ended."""
    ends = dict(positions)
    for chunk in chunks:
        assert chunk.start == ends[chunk.partition]
        assert all(chunk.start <= offset < chunk.end for offset in chunk.offsets)
        ends[chunk.partition] = chunk.end


def on_admin(broker: str, work: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, Any]]) -> None:
    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker)
        await admin.start()
        try:
            await work(admin)
        finally:
            await admin.close()

    asyncio.run(run())


def delete_before(broker: str, topic: str, offset: int) -> None:
    on_admin(
        broker, lambda admin: admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=offset)})
    )


async def produce_transactions(broker: str, topic: str, outcomes: Sequence[tuple[int, bool]]) -> None:
    """Write transactions with these numbers of records, committed or aborted."""
    async with AIOKafkaProducer(bootstrap_servers=broker, transactional_id=f"tx-{topic}") as producer:
        for count, commits in outcomes:
            await producer.begin_transaction()
            for _ in range(count):
                await producer.send(topic, b"kept" if commits else b"aborted")
            await (producer.commit_transaction() if commits else producer.abort_transaction())


def test_everything_from_earliest_to_now_arrives_once_in_order_and_lag_reaches_zero(
    topic: Topic, produce: Produce, source: Open, wait_for: WaitFor
) -> None:
    name = topic(partitions=3)
    produce(name, [(index % 3, b"v%d" % index) for index in range(9000)])
    with source(name, chunk_records=500) as opened:
        start, until = opened.resolve_start(Earliest()), opened.resolve_until(Now())
        handoff = new_handoff()
        opened.begin(4, start, handoff, until)
        chunks = drain(handoff)
        assert_contiguous(chunks, start)
        assert {chunk.incarnation for chunk in chunks} == {4}
        assert max(map(len, chunks)) <= 500
        for partition in opened.partitions():
            assert offsets_of(chunks, partition) == list(range(3000))
        assert Counter(value for chunk in chunks for value in chunk.values) == Counter(b"v%d" % i for i in range(9000))
        statistics = wait_for(lambda: (s := opened.statistics()).connected and s)
        assert (statistics.records, statistics.lag_records, statistics.lag_s) == (9000, 0, 0.0)
        assert (statistics.stale_records, statistics.fetching, statistics.incarnation) == (0, False, 4)
        assert opened.cluster_id()


def test_records_keep_keys_headers_timestamps_and_tombstones(broker: str, topic: Topic, source: Open) -> None:
    name = topic(retention_ms=-1)

    async def write() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker) as producer:
            await producer.send_and_wait(name, None, b"key", timestamp_ms=1234, headers=[("h", b"x")])

    asyncio.run(write())
    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(0, opened.resolve_start(Earliest()), handoff, opened.resolve_until(Now()))
        (chunk,) = drain(handoff)
    assert (list(chunk.keys), list(chunk.values), list(chunk.timestamps)) == ([b"key"], [None], [1234])
    assert list(chunk.headers[0]) == [("h", b"x")]


def test_records_with_names_of_headers_that_are_not_utf_8_are_read_as_others_are(
    broker: str, topic: Topic, source: Open
) -> None:
    name, foreign, readable = topic(), ((FOREIGN, b"38"), ("trace", b"1")), ((READ_AS, b"38"), ("trace", b"1"))
    records = [(None, b"v%d" % number, foreign if number % 3 == 1 else ()) for number in range(8)]
    for _ in range(2):
        asyncio.run(produce_foreign(broker, name, records))
    with source(name, chunk_records=5) as opened:
        handoff, start = new_handoff(), opened.resolve_start(Earliest())
        opened.begin(0, start, handoff, opened.resolve_until(Now()))
        chunks = drain(handoff)
    assert_contiguous(chunks, start)
    assert offsets_of(chunks, Partition(name, 0)) == list(range(16))
    assert [value for chunk in chunks for value in chunk.values] == [value for _, value, _ in records * 2]
    headers = [tuple(one) for chunk in chunks for one in chunk.headers]
    assert headers == [readable if number % 3 == 1 else () for number in range(8)] * 2
    letters = newest_letters(KafkaOptions(bootstrap_servers=(broker,), topics=(name,), group_id="g"), 16).newest
    assert Counter(letter.headers for letter in letters) == Counter(headers)


def test_each_start_comes_to_its_offset(topic: Topic, produce: Produce, source: Open) -> None:
    name = topic(retention_ms=-1)
    partition = Partition(name, 0)
    produce(name, [b"x"] * 10, timestamps=[1000 * offset for offset in range(10)])
    with source(name) as opened:
        assert opened.resolve_start(Earliest()) == {partition: 0}
        assert opened.resolve_start(Latest()) == {partition: 10}
        assert opened.resolve_start(At(4500)) == {partition: 5}
        assert opened.resolve_start(At(99_000)) == {partition: 10}
        assert opened.resolve_start(parse_start("-1h")) == {partition: 10}
        assert opened.resolve_start(parse_start({f"{name}:0": 7})) == {partition: 7}
        assert opened.commit({partition: 3}).result(20) is True
        assert opened.resolve_start(Committed()) == {partition: 3}
        assert opened.resolve_until(Now()) == {partition: 10}
        assert opened.statistics().commits_accepted == 1


def test_until_stops_before_its_offset_though_records_follow(topic: Topic, produce: Produce, source: Open) -> None:
    name = topic(partitions=2)
    zero, one = Partition(name, 0), Partition(name, 1)
    produce(name, [(index % 2, b"x") for index in range(200)])
    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(0, {zero: 5, one: 60}, handoff, {zero: 42, one: 60})
        chunks = drain(handoff)
    assert offsets_of(chunks, zero) == list(range(5, 42))
    assert offsets_of(chunks, one) == []
    assert max(chunk.end for chunk in chunks) == 42


def test_aborted_transactions_and_control_records_are_passed_and_lag_reaches_zero(
    broker: str, topic: Topic, source: Open, wait_for: WaitFor
) -> None:
    name = topic()
    partition = Partition(name, 0)
    asyncio.run(produce_transactions(broker, name, [(3, True), (4, False), (2, True), (5, False)]))
    with source(name) as opened:
        until = opened.resolve_until(Now())
        assert until == {partition: 3 + 1 + 4 + 1 + 2 + 1 + 5 + 1}
        handoff = new_handoff()
        opened.begin(0, {partition: 0}, handoff)
        chunks = receive_until(handoff, until)
        assert_contiguous(chunks, {partition: 0})
        assert [value for chunk in chunks for value in chunk.values] == [b"kept"] * 5
        wait_for(lambda: opened.statistics().connected and opened.statistics().lag_records == 0)
        second = new_handoff()
        opened.begin(1, {partition: 0}, second, until)
        assert drain(second)[-1].end == until[partition]


def test_offsets_that_compaction_removed_are_passed(
    topic: Topic, produce: Produce, source: Open, broker: str, wait_for: WaitFor
) -> None:
    name = topic(cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01, max_compaction_lag_ms=100)
    partition = Partition(name, 0)

    async def write(count: int) -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker) as producer:
            for number in range(count):
                await producer.send_and_wait(name, b"%d" % number, b"the key")

    async def second_offset_left() -> int:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker, auto_offset_reset="earliest", enable_auto_commit=False)
        async with consumer:
            consumer.assign([TopicPartition(name, 0)])
            found = [await asyncio.wait_for(consumer.getone(), 20) for _ in range(2)]
            return int(found[1].offset)

    asyncio.run(write(50))

    def compacted() -> bool:
        asyncio.run(write(1))  # a new record closes the segment that is then compacted
        return asyncio.run(second_offset_left()) > 1

    wait_for(compacted, timeout=60)
    with source(name) as opened:
        until = opened.resolve_until(Now())
        handoff = new_handoff()
        opened.begin(0, {partition: 0}, handoff, until)
        chunks = drain(handoff)
    assert_contiguous(chunks, {partition: 0})
    assert chunks[-1].end == until[partition]
    assert len(offsets_of(chunks, partition)) < until[partition]


def test_offsets_gone_by_retention_fail_with_the_way_out(
    broker: str, topic: Topic, produce: Produce, source: Open
) -> None:
    name = topic()
    produce(name, [b"x"] * 20)
    delete_before(broker, name, 12)
    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(0, {Partition(name, 0): 5}, handoff)
        with pytest.raises(HandoffBroken, match=rf"offsets 5\.\.11 of {name}:0 are gone by retention: set") as broken:
            handoff.receive(20)
    assert broken.value.exit_code == 4


def test_offsets_gone_by_retention_are_counted_as_lost_where_that_is_wanted(
    broker: str, topic: Topic, produce: Produce, source: Open
) -> None:
    name = topic()
    partition = Partition(name, 0)
    produce(name, [b"x"] * 20)
    delete_before(broker, name, 12)
    with source(name, out_of_range="earliest") as opened:
        handoff = new_handoff()
        opened.begin(0, {partition: 5}, handoff, {partition: 20})
        chunks = drain(handoff)
        assert opened.statistics().partitions[partition].lost == 7
        before = new_handoff()
        opened.begin(1, {partition: 5}, before, {partition: 8})
        (all_lost,) = drain(before)
    assert_contiguous(chunks, {partition: 5})
    assert sum(chunk.lost for chunk in chunks) == 7
    assert offsets_of(chunks, partition) == list(range(12, 20))
    assert (all_lost.start, all_lost.end, all_lost.lost) == (5, 8, 3)


def test_a_position_past_the_end_fails_whatever_the_policy(topic: Topic, produce: Produce, source: Open) -> None:
    name = topic()
    produce(name, [b"x"] * 5)
    with source(name, out_of_range="earliest") as opened:
        handoff = new_handoff()
        opened.begin(0, {Partition(name, 0): 50}, handoff)
        with pytest.raises(HandoffBroken, match=rf"{name}:0 ends at offset 5, yet 50 is the next"):
            handoff.receive(20)


def add_partitions(broker: str, topic: str, total: int) -> None:
    on_admin(broker, lambda admin: admin.create_partitions({topic: NewPartitions(total_count=total)}))


def test_a_new_partition_joins_at_its_first_offset_and_the_others_go_on(
    broker: str, topic: Topic, produce: Produce, source: Open
) -> None:
    name = topic()
    zero, one = Partition(name, 0), Partition(name, 1)
    produce(name, [b"x"] * 10)
    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(0, {zero: 0}, handoff)
        chunks = receive_until(handoff, {zero: 10})
        add_partitions(broker, name, 2)
        produce(name, [(1, b"y")] * 20 + [(0, b"x")] * 5)
        chunks += receive_until(handoff, {zero: 15, one: 20})
        assert handoff.statistics().partitions == 2
        assert opened.partitions() == (zero, one)
        assert opened.commit({zero: 15, one: 20}).result(20) is True
    assert_contiguous(chunks, {zero: 0, one: 0})
    assert (offsets_of(chunks, zero), offsets_of(chunks, one)) == (list(range(15)), list(range(20)))


def test_a_new_partition_only_waits_where_the_set_is_frozen(
    broker: str, topic: Topic, produce: Produce, source: Open, wait_for: WaitFor
) -> None:
    name = topic()
    zero, one = Partition(name, 0), Partition(name, 1)
    with source(name, freeze_partitions=True) as opened:
        handoff = new_handoff()
        opened.begin(0, {zero: 0}, handoff)
        add_partitions(broker, name, 2)
        wait_for(lambda: opened.statistics().waiting_partitions == (one,))
        produce(name, [(1, b"y"), (0, b"x")])
        assert {chunk.partition for chunk in receive_until(handoff, {zero: 1})} == {zero}
        second = new_handoff()
        opened.begin(1, {zero: 0, one: 0}, second)
        receive_until(second, {zero: 1, one: 1})
        wait_for(lambda: opened.statistics().waiting_partitions == ())


def test_nothing_of_the_old_positions_arrives_after_a_new_beginning(
    topic: Topic, produce: Produce, source: Open
) -> None:
    name = topic()
    partition = Partition(name, 0)
    produce(name, [b"x" * 100] * 30_000)
    with source(name, chunk_records=700) as opened:
        handoff = new_handoff()
        opened.begin(0, {partition: 0}, handoff)
        for incarnation in range(1, 30):
            reached = handoff.receive(20).end
            position = (reached * 7919) % 25_000
            fresh = new_handoff()
            opened.begin(incarnation, {partition: position}, fresh)
            handoff.close()
            handoff = fresh
            chunks = receive_until(handoff, {partition: position + 2000})
            assert_contiguous(chunks, {partition: position})
            assert {chunk.incarnation for chunk in chunks} == {incarnation}
            assert offsets_of(chunks, partition) == list(range(position, chunks[-1].end))
        assert opened.statistics().stale_records == 0


def test_a_pause_ends_the_fetching_and_a_begin_goes_on(topic: Topic, produce: Produce, source: Open) -> None:
    name = topic()
    partition = Partition(name, 0)
    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(0, {partition: 0}, handoff)
        opened.pause()
        assert not opened.statistics().fetching
        produce(name, [b"x"] * 3)
        with pytest.raises(HandoffEmpty):
            handoff.receive(0.3)
        opened.begin(1, {partition: 0}, new := new_handoff(), {partition: 3})
        assert offsets_of(drain(new), partition) == [0, 1, 2]


def test_a_full_handoff_stops_the_polling_and_nothing_is_lost(
    topic: Topic, produce: Produce, source: Open, wait_for: WaitFor
) -> None:
    name = topic(partitions=2)
    positions = {Partition(name, 0): 0, Partition(name, 1): 0}
    produce(name, [(index % 2, b"x" * 500) for index in range(8000)])
    with source(name, chunk_records=300) as opened:
        handoff = Handoff(capacity_bytes=600_000)
        opened.begin(0, positions, handoff, opened.resolve_until(Now()))
        wait_for(lambda: handoff.statistics().queued.nbytes > 300_000)
        lag = wait_for(lambda: (s := opened.statistics()).connected and s.lag_records)
        assert lag > 5000
        chunks = drain(handoff)
        statistics = handoff.statistics()
        assert statistics.offered == statistics.received
        assert statistics.received.records == opened.statistics().records == 8000
    assert_contiguous(chunks, positions)
    assert statistics.peak_bytes <= 600_000


@pytest.mark.row(9)
def test_a_stranger_in_the_group_refuses_commits_and_stops_nothing_else(
    broker: str, topic: Topic, produce: Produce, source: Open
) -> None:
    name = topic()
    partition = Partition(name, 0)
    produce(name, [b"x"] * 10)

    async def with_stranger(work: Callable[[], None]) -> None:
        stranger = AIOKafkaConsumer(name, bootstrap_servers=broker, group_id=f"g-{name}", enable_auto_commit=False)
        async with stranger:
            await asyncio.wait_for(asyncio.to_thread(work), 60)

    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(0, {partition: 0}, handoff)
        receive_until(handoff, {partition: 10})
        assert opened.commit({partition: 10}).result(20) is True

        def while_stranger_is_there() -> None:
            assert opened.commit({partition: 10}).result(20) is False
            produce(name, [b"x"] * 5)
            receive_until(handoff, {partition: 15})

        asyncio.run(with_stranger(while_stranger_is_there))
        statistics = opened.statistics()
        assert dict(statistics.commits_refused) == {"CommitFailedError": 1}
        assert statistics.last_error == "a commit was refused: CommitFailedError"
        assert opened.commit({partition: 15}).result(20) is True
        assert opened.resolve_start(Committed()) == {partition: 15}


def test_a_commit_after_the_stop_is_refused_without_raising(topic: Topic, source: Open) -> None:
    with source(name := topic()) as opened:
        pass
    assert opened.commit({Partition(name, 0): 0}).result(5) is False


def test_a_port_where_nobody_listens_is_said_to_be_unreachable() -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{unused.getsockname()[1]}"
        source = KafkaSource(KafkaOptions(bootstrap_servers=(server,), topics=("clicks",), group_id="g"))
        with pytest.raises(UnreachableError, match=rf"is the broker at {server} up.*: millrace local broker$"):
            source.start(1)


def test_a_port_that_never_answers_is_said_to_be_unreachable() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        source = KafkaSource(KafkaOptions(bootstrap_servers=(server,), topics=("clicks",), group_id="g"))
        with pytest.raises(UnreachableError, match="did not answer within 1 s"):
            source.start(1)


def test_a_missing_topic_is_told_with_the_command_that_creates_it(broker: str) -> None:
    source = KafkaSource(KafkaOptions(bootstrap_servers=(broker,), topics=("no-such-topic",), group_id="g"))
    with pytest.raises(TopicMissingError, match=r"topic no-such-topic is not at .*--create --topic no-such-topic"):
        source.start(20)


def test_what_the_client_holds_is_reported_while_the_hand_off_is_full(
    source: Open, topic: Topic, produce: Produce, wait_for: WaitFor
) -> None:
    name = topic()
    produce(name, [b"x" * 1000] * 3000)
    handoff = Handoff(capacity_bytes=100_000)
    with source(name, chunk_records=100) as reader:
        reader.begin(1, {Partition(name, 0): 0}, handoff, None)
        held = wait_for(lambda: reader.statistics().buffered_bytes)
        assert 500_000 < held < 2_000_000
        receive_until(handoff, {Partition(name, 0): 3000})
        wait_for(lambda: reader.statistics().buffered_bytes == 0)
