"""The only module that uses aiokafka's consumer: it translates our partitions, its records and its errors.

Owns the connections. Everything runs on the consumer's loop, and nothing here waits longer than a request may take.
There are two clients, so that trouble in the group (other members, a coordinator that moves) cannot disturb fetching:
`KafkaClient` reads without a group, `GroupCommits` commits for the group and never fetches.
"""

import asyncio
import contextlib
import difflib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    CorruptRecordException,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from millrace.consumers.errors import SourceError, TopicMissingError, UnreachableError, text_of
from millrace.consumers.kafka.aiokafka_internals import (
    MetadataDoubt,
    buffered_bytes,
    lengthen_lookups,
    metadata_client,
    open_door,
    stop_and_close,
    take_commit_errors,
)
from millrace.consumers.kafka.chunking import FetchedRecord
from millrace.consumers.kafka.logins import refuse_wrong_login
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.rights import may_commit, refused_group, refused_topic, topic_is_missing
from millrace.consumers.records import Partition

T = TypeVar("T")
_RETRY_S = 0.25
_SPARE_MS = 1000
"""How much later than a request the call that waits for it times out; see `_translated_errors`."""
_MISSING, _UNAUTHORIZED = 3, 29
"""Kafka's error codes for a topic in a metadata response."""
_RESOURCE_TYPE_TOPIC = 2
"""Kafka's code for a topic in a request for settings."""
_MOST_SIMILAR = 3
_RETENTION_SETTINGS = ("cleanup.policy", "retention.ms")


class OffsetGoneError(Exception):
    """The offset to read lies before the first offset of the partition, or past its end."""

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__(f"{partition} has no offset {offset}")
        self.partition = partition
        self.offset = offset


class PollError(Exception):
    """A poll failed and may be repeated. It may have dropped records, so seek again before the next poll."""


class KafkaClient:
    """Reads the partitions of the topics from positions that the caller gives. Kafka never chooses a position."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._consumer = AIOKafkaConsumer(
            **options.client_settings(),
            group_id=None,
            # `earliest` or `latest` would jump past offsets that are gone, with one line in the log; `none` raises.
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level=options.isolation_level,
            fetch_min_bytes=options.fetch_least_bytes,
            fetch_max_wait_ms=options.fetch_wait_ms,
            fetch_max_bytes=options.fetch_total_bytes,
            max_partition_fetch_bytes=options.fetch_bytes,
        )
        lengthen_lookups(self._consumer, by_ms=_SPARE_MS)
        self._client = metadata_client(self._consumer)
        self._doubt = MetadataDoubt(self._client)
        self.cluster_id: str | None = None

    async def connect(self, deadline_s: float) -> None:
        """Connect, and check that the topics exist and the leaders of their partitions answer.

        Raises UnreachableError, TopicMissingError, SourceError where reading is not permitted, and ConfigError for a
        login, certificate or protocol that is refused.
        """
        step = "the bootstrap servers"
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    try:
                        await self._consumer.start()
                        break
                    except KafkaConnectionError:
                        await refuse_wrong_login(self._options)
                        await asyncio.sleep(_RETRY_S)
                open_door(self._consumer)
                step = "the brokers that the bootstrap servers name (their advertised.listeners)"
                await self._look_at_topics()
                # Any broker answers for the topics. Only this request goes to the leaders, from which records come.
                await self.ends(self.partitions())
        except TimeoutError:
            if self._options.token_fault is not None:
                raise self._options.token_fault from None
            start_one = ". Without a Kafka, start one: millrace local broker" if self._options.on_this_machine else ""
            raise UnreachableError(
                f"{step} did not answer within {deadline_s:g} s: is the broker at {self._options.servers} up, and "
                f"reachable from here? Check kafka.bootstrap_servers and kafka.security_protocol{start_one}"
            ) from None

    async def close(self) -> None:
        await stop_and_close(self._consumer)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fetched and not yet returned by a poll. Any thread."""
        return buffered_bytes(self._consumer)

    def partitions(self) -> tuple[Partition, ...]:
        """Return every partition of the topics, as of the last metadata from Kafka."""
        numbers = {topic: self._client.cluster.partitions_for_topic(topic) or () for topic in self._options.topics}
        return tuple(sorted(Partition(topic, number) for topic in numbers for number in numbers[topic]))

    def led(self) -> frozenset[Partition]:
        """Return the partitions that have a leader, so that they can be read."""
        leader = self._client.cluster.leader_for_partition
        return frozenset(p for p in self.partitions() if leader(TopicPartition(*p)) not in {None, -1})

    async def look_for_leaders(self) -> None:
        """Ask any broker for the partitions and their leaders. Raises UnreachableError where none answers."""
        async with _translated_errors(self._options):
            with self._doubt.suspended():
                answered = self._client.force_metadata_update()
            if not await answered:
                raise UnreachableError(f"no broker answers at {self._options.servers}: is one up?")

    @property
    def doubted(self) -> bool:
        """Whether, since `take_doubt`, a connection broke or a broker did not know a partition.

        A topic may have been deleted and created again since then.
        """
        return self._doubt.raised

    def take_doubt(self) -> bool:
        """Return whether there is a doubt, and clear it."""
        doubted, self._doubt.raised = self._doubt.raised, False
        return doubted

    async def beginnings(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first offset that each partition still has."""
        async with _translated_errors(self._options):
            return _from_aiokafka(await self._consumer.beginning_offsets(_to_aiokafka(partitions)))

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return one past the last readable offset of each partition.

        With read_committed, a partition ends before its first open transaction.
        """
        async with _translated_errors(self._options):
            return _from_aiokafka(await self._consumer.end_offsets(_to_aiokafka(partitions)))

    async def high_watermarks(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return one past the last offset of each partition, whether it may be read or not."""
        async with _translated_errors(self._options):
            return await high_watermarks(self._client, partitions)

    async def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int | None]:
        """Return the first offset of each partition at or after a time, None where there is none."""
        async with _translated_errors(self._options):
            offsets = await self._consumer.offsets_for_times(dict.fromkeys(_to_aiokafka(partitions), timestamp_ms))
        return {Partition(*key): None if entry is None else entry.offset for key, entry in offsets.items()}

    async def retention_ms(self) -> dict[str, int | None]:
        """Return for how long Kafka keeps each topic's records; None where it removes none because of their age.

        Topics whose settings we are not permitted to read are left out.
        """
        resources = [(_RESOURCE_TYPE_TOPIC, topic, list(_RETENTION_SETTINGS)) for topic in self._options.topics]
        request = DescribeConfigsRequest(resources=resources, include_synonyms=False)
        async with _translated_errors(self._options):
            answer = await self._client.send(self._client.get_random_node(), request)
        retention_ms = dict[str, int | None]()
        for _, _, _, topic, entries in answer.resources:
            if len(entries) == len(_RETENTION_SETTINGS):
                settings = {name: value for name, value, *_ in entries}
                deletes, kept_ms = "delete" in settings["cleanup.policy"].split(","), int(settings["retention.ms"])
                retention_ms[topic] = kept_ms if deletes and kept_ms >= 0 else None  # -1 means without limit
        return retention_ms

    async def may_commit(self) -> bool:
        """Return whether we may commit offsets of the group. It commits none."""
        async with _translated_errors(self._options):
            while True:
                try:
                    return await may_commit(self._client, self._options.group_id)
                except KafkaError as error:
                    if not error.retriable:  # a cluster's first group waits until there is a coordinator
                        raise
                    await asyncio.sleep(_RETRY_S)

    async def check_write(self, topic: str) -> None:
        """Raise SourceError where we may not write to a topic."""
        async with _translated_errors(self._options):
            await topic_is_missing(self._client, self._options, topic)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions from these positions. What was fetched for an earlier assignment is dropped."""
        with self._doubt.suspended():
            self._consumer.assign(_to_aiokafka(positions))
            # The assignment has limited the metadata to its own topics; new partitions of the others are of interest.
            self._client.set_topics(self._options.topics)
        for partition, position in positions.items():
            self.seek(partition, position)

    def seek(self, partition: Partition, position: int) -> None:
        """Read on from this position."""
        self._consumer.seek(TopicPartition(*partition), position)

    async def position(self, partition: Partition) -> int:
        """Return the next offset to fetch. It is past the control records that follow the last record returned."""
        return int(await self._consumer.position(TopicPartition(*partition)))

    async def poll(
        self, partitions: Iterable[Partition], timeout_ms: int
    ) -> Mapping[Partition, Sequence[FetchedRecord]]:
        """Return records of these partitions as soon as there are any, or nothing after `timeout_ms`.

        They come as `FetchedColumns`, unless aiokafka has changed inside.

        Raises OffsetGoneError, PollError for a failure that may pass, and SourceError for one that does not.
        """
        try:
            # Not `async for`: it logs a RecordTooLargeError and goes on behind the record.
            polled = await self._consumer.getmany(
                *_to_aiokafka(partitions), timeout_ms=timeout_ms, max_records=self._options.chunk_records
            )
        except OffsetOutOfRangeError as error:
            (topic_partition, offset), *_ = error.args[0].items()
            raise OffsetGoneError(Partition(*topic_partition), offset) from None
        except TopicAuthorizationFailedError as error:
            raise refused_topic(self._options, "Read", str(error.args[0])) from error
        except RecordTooLargeError as error:
            raise SourceError(
                "a record is larger than one fetch may be: raise kafka's fetch size above the topic's max.message.bytes"
            ) from error
        except KafkaError as error:
            # A wrong checksum is not retriable for aiokafka. But damage on the wire passes when the record is fetched
            # again, and for damage on the broker's disk the caller gives up after a number of polls.
            if error.retriable or isinstance(error, CorruptRecordException):
                raise PollError(text_of(error)) from error
            raise SourceError(f"fetching from Kafka failed: {text_of(error)}; see the broker's log") from error
        return _from_aiokafka(polled)

    async def _look_at_topics(self) -> None:
        topics = self._options.topics
        # The client's own request would create a missing topic on a broker that creates topics by itself.
        request = MetadataRequest(list(topics), allow_auto_topic_creation=False)
        while True:
            try:
                answer = await self._client.send(self._client.get_random_node(), request)
                break
            except KafkaError:
                # By the names that brokers give themselves, a certificate may be wrong that was right before.
                await refuse_wrong_login(self._options, [(b.host, b.port) for b in self._client.cluster.brokers()])
                await asyncio.sleep(_RETRY_S)
        self.cluster_id = getattr(answer, "cluster_id", None)
        for code, topic, *_ in answer.topics:
            if code == _MISSING:
                names = await self._topics_there()
                local = self._options.on_this_machine and not self._options.security.get("sasl_mechanism")
                raise TopicMissingError(missing_topic(topic, self._options.servers, names, local=local))
            if code == _UNAUTHORIZED:
                raise refused_topic(self._options, "Read", topic)
        # The answer to a request of ours does not reach the client's metadata; only a request of its own does.
        while not all(self._client.cluster.partitions_for_topic(topic) for topic in topics):
            await self._client.set_topics(topics)

    async def _topics_there(self) -> list[str]:
        """Return the names of the topics that this user can see; none where the broker does not tell."""
        try:
            answer = await self._client.send(self._client.get_random_node(), MetadataRequest(None))
        except KafkaError:
            return []
        return [name for _, name, internal, *_ in answer.topics if not internal]


class GroupCommits:
    """The commits of the group id. Its consumer is never polled: its partitions are paused, and it only commits."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        settings = options.client_settings()
        # As in `_translated_errors`: the request times out first, and there is time for a second one.
        settings["request_timeout_ms"] = min(options.request_timeout_ms, options.commit_timeout_ms // 2)
        self._consumer = AIOKafkaConsumer(
            **settings, group_id=options.group_id, auto_offset_reset="none", enable_auto_commit=False
        )
        self._lock = asyncio.Lock()

    async def connect(self) -> None:
        """Connect to a broker. The group's coordinator is looked up later, by the first commit."""
        try:
            await self._consumer.start()
        except KafkaError as error:
            raise UnreachableError(f"the broker at {self._options.servers} went away: {text_of(error)}") from error
        take_commit_errors(self._consumer)

    async def close(self) -> None:
        await stop_and_close(self._consumer)

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """Return the committed offset of each partition, None where there is none."""
        async with _translated_errors(self._options):
            return {partition: await self._consumer.committed(TopicPartition(*partition)) for partition in partitions}

    async def commit(self, positions: Mapping[Partition, int]) -> str | None:
        """Commit, in the order of the calls. Return None when Kafka accepted it, else the name of the error."""
        offsets = {TopicPartition(*partition): offset for partition, offset in positions.items()}
        async with self._lock:
            try:
                async with asyncio.timeout(self._options.commit_timeout_ms / 1000):
                    # Only assigned partitions can be committed.
                    assigned = self._consumer.assignment()
                    if not assigned.issuperset(offsets):
                        self._assign(assigned.union(offsets), offsets)
                    await self._consumer.commit(offsets)
            except Exception as error:  # noqa: BLE001 - a failed commit, whatever the reason, must not end fetching
                return type(error).__name__
        return None

    def keep(self, led: Iterable[Partition]) -> None:
        """Unassign the partitions that are not in `led`: the client would ask for their leaders without a pause.

        While a commit is under way it changes nothing; the caller calls it again every second.
        """
        assigned = self._consumer.assignment()
        if not self._lock.locked() and not assigned <= (kept := set(_to_aiokafka(led))):
            self._assign(assigned & kept, {})

    def _assign(self, partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
        """Assign the partitions without fetching them: paused, at a position, so that none is asked of Kafka."""
        self._consumer.assign(sorted(partitions))
        for partition in self._consumer.assignment():
            self._consumer.seek(partition, offsets.get(partition, 0))
            self._consumer.pause(partition)


def _to_aiokafka(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]


def _from_aiokafka(values: Mapping[TopicPartition, T]) -> dict[Partition, T]:
    return {Partition(*key): value for key, value in values.items()}


@contextlib.asynccontextmanager
async def _translated_errors(options: KafkaOptions) -> AsyncIterator[None]:
    """Limit how long the block may wait for Kafka, and raise aiokafka's errors as ours.

    The limit is longer than the request's own timeout, because aiokafka closes a connection only when a request on it
    times out. If we cancelled the request first, a connection that is open at our end only would stay in use, and the
    next request would wait on it as well.
    """
    try:
        async with asyncio.timeout((options.request_timeout_ms + 2 * _SPARE_MS) / 1000):
            yield
    except (TimeoutError, KafkaTimeoutError, KafkaConnectionError) as error:
        raise UnreachableError(
            f"the broker at {options.servers} does not answer ({type(error).__name__}): is it up?"
        ) from error
    except UnknownTopicOrPartitionError as error:
        raise TopicMissingError(f"{error} at {options.servers}: was the topic deleted?") from error
    except GroupAuthorizationFailedError:
        raise refused_group(options) from None
    except KafkaError as error:
        text = f"Kafka refuses: {text_of(error)}"
        raise (UnreachableError(text) if error.retriable else SourceError(text)) from error


_CONSUMER, _LATEST, _READ_UNCOMMITTED = -1, -1, 0
"""Kafka's codes: the asker is no replica, it asks for ends, and those of open transactions too."""


async def high_watermarks(client: AIOKafkaClient, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the high watermark of each partition; those for which no leader answers are left out.

    A high watermark is one past the last offset, whether that may be read or not. aiokafka looks up the ends
    of partitions with the isolation level of its fetches, which stops before the first open transaction, so
    this sends a request of its own.
    """
    by_leader: dict[int, dict[str, list[tuple[int, int]]]] = {}
    for partition in partitions:
        leader = client.cluster.leader_for_partition(TopicPartition(*partition))
        if leader not in {None, -1}:
            by_leader.setdefault(leader, {}).setdefault(partition.topic, []).append((partition.number, _LATEST))
    requests = {
        leader: OffsetRequest(_CONSUMER, _READ_UNCOMMITTED, list(topics.items()))
        for leader, topics in by_leader.items()
    }
    answers = await asyncio.gather(*(client.send(leader, request) for leader, request in requests.items()))
    return {
        Partition(topic, number): offset
        for answer in answers
        for topic, found in answer.topics
        for number, code, _, offset in found
        if code == 0
    }


def missing_topic(topic: str, servers: str, there: Iterable[str] = (), *, local: bool = False) -> str:
    """Return the error text; `there` are the names of the topics that exist.

    With a `local` Kafka it also names the command of those who have none of Kafka's own tools.
    """
    similar = similar_topics(topic, there)
    meant = f"; did you mean {' or '.join(similar)}? If not," if similar else ";"
    ours = f"millrace local produce --bootstrap-servers {servers} --topic {topic} --create --partitions 4 FILE"
    return (
        f"topic {topic} is not at {servers}{meant} create it: "
        f"kafka-topics.sh --bootstrap-server {servers} --create --topic {topic} --partitions 4"
        f"{f', or without it: {ours}' if local else ''}"
    )


def similar_topics(topic: str, there: Iterable[str]) -> list[str]:
    """Return the names that are most like a topic's, the most similar first."""
    by_lower_case = {name.lower(): name for name in sorted(there, reverse=True)}
    near = difflib.get_close_matches(topic.lower(), by_lower_case, n=_MOST_SIMILAR)
    return [by_lower_case[name] for name in near]
