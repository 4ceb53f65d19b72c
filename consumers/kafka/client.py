"""The door to aiokafka's consumer: our partitions in, its records out, and its errors as ours.

Owns the connections. Everything runs on the consumer's loop, and nothing here waits longer than a request may take.
Two clients, so that trouble in the group (strangers, a coordinator that moves) cannot touch the fetching:
`KafkaClient` reads without a group, `GroupCommits` holds the group's commits and never fetches.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    CorruptRecordException,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest

from consumers.errors import ConfigError, SourceError, TopicMissingError, UnreachableError
from consumers.kafka.chunking import FetchedRecord
from consumers.kafka.client_buffers import buffered_bytes
from consumers.kafka.options import KafkaOptions
from consumers.records import Partition

_RETRY_S = 0.25
_SPARE_MS = 1000
_LOGIN_ERRORS = (AuthenticationFailedError, AuthenticationMethodNotSupported, UnsupportedSaslMechanismError)
_MISSING, _UNAUTHORIZED = 3, 29
"""Kafka's error codes for a topic in a metadata response."""
_A_TOPIC, _KEPT = 2, ("cleanup.policy", "retention.ms")
"""Kafka's code for a topic among what has settings, and those settings of it that say how long it keeps records."""


class OffsetGoneError(Exception):
    """Kafka has no such offset in the partition, before its first or past its last."""

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__(f"{partition} has no offset {offset}")
        self.partition = partition
        self.offset = offset


class PollError(Exception):
    """A poll failed in a way that may pass. What it had begun to read is lost: seek again before the next poll."""


class KafkaClient:
    """Reads the partitions of the topics, at positions that are always given, never Kafka's own choice."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._consumer = AIOKafkaConsumer(
            **options.client_settings(),
            group_id=None,
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level=options.isolation_level,
            fetch_max_wait_ms=options.fetch_wait_ms,
            fetch_max_bytes=options.fetch_total_bytes,
            max_partition_fetch_bytes=options.fetch_bytes,
        )
        self._client: AIOKafkaClient = self._consumer._client  # noqa: SLF001 - metadata has no public way
        self._consumer._request_timeout_ms += _SPARE_MS  # noqa: SLF001 - see _answers
        self._doubt = _Doubt(self._client)
        self.cluster_id: str | None = None

    async def connect(self, deadline_s: float) -> None:
        """Connect, and see that the topics are there and the leaders of their partitions answer."""
        step = "the bootstrap servers"
        try:
            async with asyncio.timeout(deadline_s):
                await self._bootstrap()
                step = "the brokers that the bootstrap servers name (their advertised.listeners)"
                await self._look_at_topics()
                await self.ends(self.partitions())
        except TimeoutError:
            raise UnreachableError(
                f"{step} did not answer within {deadline_s:g} s: is the broker at {self._options.servers} up, and "
                "reachable from here? Check kafka.bootstrap_servers and kafka.security_protocol"
            ) from None

    async def close(self) -> None:
        """Close all connections."""
        await _stop(self._consumer)

    @property
    def buffered_bytes(self) -> int:
        """What it has fetched and nobody has taken yet. Any thread."""
        return buffered_bytes(self._consumer)

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics that Kafka last told us of."""
        numbers = {topic: self._client.cluster.partitions_for_topic(topic) or () for topic in self._options.topics}
        return tuple(sorted(Partition(topic, number) for topic in numbers for number in numbers[topic]))

    def led(self) -> frozenset[Partition]:
        """Those of them that have a leader, so that they can be read."""
        leader = self._client.cluster.leader_for_partition
        return frozenset(p for p in self.partitions() if leader(TopicPartition(*p)) not in {None, -1})

    @property
    def doubted(self) -> bool:
        """Whether since `take_doubt` an answer did not fit, or a connection broke: a topic may be another by now."""
        return self._doubt.raised

    def take_doubt(self) -> bool:
        """Whether it is doubted; from now on it is not."""
        doubted, self._doubt.raised = self._doubt.raised, False
        return doubted

    async def beginnings(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset that each partition still has."""
        async with _answers(self._options):
            found = await self._consumer.beginning_offsets(_theirs(partitions))
        return _ours(found)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Where each partition ends: for read_committed before the first open transaction."""
        async with _answers(self._options):
            found = await self._consumer.end_offsets(_theirs(partitions))
        return _ours(found)

    async def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int | None]:
        """The first offset of each partition at or after a time, None where there is none."""
        async with _answers(self._options):
            found = await self._consumer.offsets_for_times(dict.fromkeys(_theirs(partitions), timestamp_ms))
        return {Partition(*theirs): None if place is None else place.offset for theirs, place in found.items()}

    async def retention_ms(self) -> dict[str, int | None]:
        """For how long Kafka keeps each topic's records; None where it removes none for their age.

        Topics whose settings we may not see are left out.
        """
        wanted = [(_A_TOPIC, topic, list(_KEPT)) for topic in self._options.topics]
        request = DescribeConfigsRequest(resources=wanted, include_synonyms=False)
        async with _answers(self._options):
            answer = await self._client.send(self._client.get_random_node(), request)
        found = [(topic, entries) for _, _, _, topic, entries in answer.resources if len(entries) == len(_KEPT)]
        return {topic: _kept_ms({name: value for name, value, *_ in entries}) for topic, entries in found}

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions from these positions; what was fetched for an earlier assignment is dropped."""
        with self._doubt.withheld():
            self._consumer.assign(_theirs(positions))
            self._client.set_topics(self._options.topics)  # the assignment has left only its own
        for partition, position in positions.items():
            self.seek(partition, position)

    def seek(self, partition: Partition, position: int) -> None:
        """Go on from there."""
        self._consumer.seek(TopicPartition(*partition), position)

    async def position(self, partition: Partition) -> int:
        """The next offset to be fetched; past records by as many control records as follow them."""
        return int(await self._consumer.position(TopicPartition(*partition)))

    async def poll(
        self, partitions: Iterable[Partition], timeout_ms: int
    ) -> Mapping[Partition, Sequence[FetchedRecord]]:
        """Records of these partitions, as soon as there are any."""
        try:
            found = await self._consumer.getmany(
                *_theirs(partitions), timeout_ms=timeout_ms, max_records=self._options.chunk_records
            )
        except OffsetOutOfRangeError as error:
            (theirs, offset), *_ = error.args[0].items()
            raise OffsetGoneError(Partition(*theirs), offset) from None
        except (TopicAuthorizationFailedError, RecordTooLargeError) as error:
            raise SourceError(_fatal_text(error)) from error
        except KafkaError as error:
            if error.retriable or isinstance(error, CorruptRecordException):
                raise PollError(str(error)) from error
            raise SourceError(f"fetching from Kafka failed: {error}; see the broker's log") from error
        return {Partition(*theirs): records for theirs, records in found.items()}

    async def _bootstrap(self) -> None:
        while True:
            try:
                await self._consumer.start()
            except KafkaConnectionError:
                await self._refuse_login_errors()
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _refuse_login_errors(self) -> None:
        """The client library only logs why it could not connect: ask once more, and end at once if it is the login."""
        settings = self._options.client_settings()
        del settings["bootstrap_servers"], settings["metadata_max_age_ms"], settings["retry_backoff_ms"]
        for host, port, _ in collect_hosts(list(self._options.bootstrap_servers)):
            try:
                connection = await create_conn(host, port, **settings)
            except _LOGIN_ERRORS as error:
                raise ConfigError(
                    f"{host}:{port} refuses the login ({type(error).__name__}): check kafka.sasl_mechanism, "
                    "kafka.sasl_username and the password"
                ) from None
            except (OSError, KafkaError):
                continue
            connection.close()

    async def _look_at_topics(self) -> None:
        topics = self._options.topics
        request = MetadataRequest(list(topics), allow_auto_topic_creation=False)
        while True:
            try:
                answer = await self._client.send(self._client.get_random_node(), request)
                break
            except KafkaError:
                await asyncio.sleep(_RETRY_S)
        self.cluster_id = getattr(answer, "cluster_id", None)
        for code, topic, *_ in answer.topics:
            if code == _MISSING:
                raise TopicMissingError(missing_topic(topic, self._options.servers))
            if code == _UNAUTHORIZED:
                raise SourceError(f"Kafka does not let us see topic {topic}: grant Describe and Read to the user")
        while not all(self._client.cluster.partitions_for_topic(topic) for topic in topics):
            await self._client.set_topics(topics)


class _Doubt:
    """Notices when the client asks for metadata out of turn, which is all that it shows of some answers.

    It does so when a broker does not know a partition, does not lead it, or breaks a connection, and before it asks any
    of them again: so what is fetched of a topic that was created again is fetched after the doubt was raised.
    """

    def __init__(self, client: AIOKafkaClient) -> None:
        self.raised = False
        self._ask = client.force_metadata_update
        client.force_metadata_update = self._noticed

    def _noticed(self) -> Any:
        self.raised = True
        return self._ask()

    @contextlib.contextmanager
    def withheld(self) -> Iterator[None]:
        """What is asked for in here is ours."""
        raised = self.raised
        yield
        self.raised = raised


class GroupCommits:
    """The commits of the group id. Its consumer is never polled: assigned, sought and paused, it only commits."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        settings = options.client_settings()
        # As in `_answers`: the request ends first, and there is time for another.
        settings["request_timeout_ms"] = min(options.request_timeout_ms, options.commit_timeout_ms // 2)
        self._consumer = AIOKafkaConsumer(
            **settings, group_id=options.group_id, auto_offset_reset="none", enable_auto_commit=False
        )
        self._lock = asyncio.Lock()

    async def connect(self) -> None:
        """Connect; the group's coordinator is looked for later, with the first commit."""
        try:
            await self._consumer.start()
        except KafkaError as error:
            raise UnreachableError(f"the broker at {self._options.servers} went away: {error}") from error

    async def close(self) -> None:
        """Close all connections."""
        await _stop(self._consumer)

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """What stands committed, None where nothing does."""
        found: dict[Partition, int | None] = {}
        async with _answers(self._options):
            for partition in partitions:
                found[partition] = await self._consumer.committed(TopicPartition(*partition))
        return found

    async def commit(self, positions: Mapping[Partition, int]) -> str | None:
        """Commit, in the order of the calls. None when Kafka took it, else the name of what it refused it with."""
        offsets = {TopicPartition(*partition): offset for partition, offset in positions.items()}
        async with self._lock:
            try:
                async with asyncio.timeout(self._options.commit_timeout_ms / 1000):
                    self._cover(offsets)
                    await self._consumer.commit(offsets)
            except Exception as error:  # noqa: BLE001 - a commit that fails, however, stops nothing
                return type(error).__name__
        return None

    def keep(self, led: Iterable[Partition]) -> None:
        """Hold none but these: the client asks without a pause for the leader of one that has none.

        While a commit is under way, all stay: nobody who calls this every second waits for one that is not answered.
        """
        assigned = self._consumer.assignment()
        if not self._lock.locked() and not assigned <= (kept := set(_theirs(led))):
            self._hold(assigned & kept, {})

    def _cover(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Only what is assigned can be committed; paused at a position of ours, it is not fetched."""
        assigned = self._consumer.assignment()
        if assigned.issuperset(offsets):
            return
        self._hold(assigned.union(offsets), offsets)

    def _hold(self, partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign(sorted(partitions))
        for theirs in self._consumer.assignment():
            self._consumer.seek(theirs, offsets.get(theirs, 0))
            self._consumer.pause(theirs)


def missing_topic(topic: str, servers: str) -> str:
    """What to say when a topic is not there."""
    return (
        f"topic {topic} is not at {servers}; create it: "
        f"kafka-topics.sh --bootstrap-server {servers} --create --topic {topic} --partitions 4"
    )


async def _stop(consumer: AIOKafkaConsumer) -> None:
    """Stop it, and close its connections in any case.

    While it waits before it asks a broker again that is away, its stopping ends with the cancellation of its own task,
    and leaves the rest undone.
    """
    ending: BaseException | None = (await asyncio.gather(consumer.stop(), return_exceptions=True))[0]
    if ending is None:
        return
    await consumer._client.close()  # noqa: SLF001 - nothing public is left to do it
    if not isinstance(ending, KafkaError | asyncio.CancelledError):
        raise ending


def _theirs(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]


def _ours(found: Mapping[TopicPartition, int]) -> dict[Partition, int]:
    return {Partition(*theirs): offset for theirs, offset in found.items()}


def _kept_ms(settings: Mapping[str, str]) -> int | None:
    removes = "delete" in settings["cleanup.policy"].split(",")
    kept = int(settings["retention.ms"])
    return kept if removes and kept >= 0 else None


def _fatal_text(error: KafkaError) -> str:
    if isinstance(error, RecordTooLargeError):
        return "a record is larger than one fetch may be: raise kafka's fetch size above the topic's max.message.bytes"
    return f"Kafka does not let us read ({error}): grant Read on the topic to the user"


@contextlib.asynccontextmanager
async def _answers(options: KafkaOptions) -> AsyncIterator[None]:
    """Bound a question to Kafka, and say in our words that it was not answered.

    The request has to end by itself before the question does: only then is its connection given up. Cancelled, it would
    leave one that is open at our end alone, and the next question would go the same way.
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
    except KafkaError as error:
        text = f"Kafka refuses: {error}"
        raise (UnreachableError(text) if error.retriable else SourceError(text)) from error
