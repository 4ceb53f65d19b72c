"""What Kafka's authorizer permits us, and the errors that name the command which grants it. Runs on a client's loop.

Nothing is tried out: a broker tells which operations it permits on a topic or group when it is asked to describe it.
A broker without an authorizer permits all; what an old one does not tell counts as permitted.
"""

from typing import ClassVar

from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import (
    NoError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.admin import DescribeGroupsRequest_v2, DescribeGroupsRequest_v3, DescribeGroupsResponse_v3
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

from millrace.consumers.errors import SourceError
from millrace.consumers.kafka.options import KafkaOptions


def grant(servers: str, user: str | None, operation: str, resource: str, name: str) -> str:
    """Return the command that permits a user an operation on a `topic`, `group` or `transactional-id`."""
    return (
        f"kafka-acls.sh --bootstrap-server {servers} --add --allow-principal {_principal(user)} "
        f"--operation {operation} --{resource} {name}"
    )


def refused_group(options: KafkaOptions) -> SourceError:
    """Return the error of a user who may not use the group."""
    return _refused(options, "Read", "group", options.group_id, "read and commit the offsets of")


def refused_topic(options: KafkaOptions, operation: str, topic: str) -> SourceError:
    """Return the error of a user who may not read from a topic, or write to it."""
    return _refused(options, operation, "topic", topic, {"Read": "read from", "Write": "write to"}[operation])


def refused_transactions(options: KafkaOptions, transactional_id: str) -> SourceError:
    """Return the error of a user who may not write in transactions of this id."""
    return _refused(options, "Write", "transactional-id", transactional_id, "write with")


def _refused(options: KafkaOptions, operation: str, resource: str, name: str, verb: str) -> SourceError:
    return SourceError(
        f"Kafka does not permit {_principal(options.user)} to {verb} {resource} {name}. Permit {operation}: "
        f"{grant(options.servers, options.user, operation, resource, name)}"
    )


def _principal(user: str | None) -> str:
    """Return the user as the authorizer names it, or a word in its place where only the broker knows the name."""
    return f"User:{user or 'NAME'}"


_READ, _WRITE = 3, 4
"""Kafka's codes of operations: the bits of what it permits."""
_UNKNOWN_TOPIC = 3
_CREATE_NONE = False


async def may_commit(client: AIOKafkaClient, group: str) -> bool:
    """Return whether we may commit offsets of the group, and commit none.

    Raises aiokafka's errors, GroupAuthorizationFailedError where we may not even read them.
    """
    coordinator = await client.coordinator_lookup(CoordinationType.GROUP, group)
    answer = await client.send(coordinator, _DescribeGroup(group))
    ((code, _, _, _, _, _, *operations),) = answer.groups
    if (error := for_code(code)) is not NoError:
        raise error
    return all(_permits(bits, _READ) for bits in operations)


async def topic_is_missing(client: AIOKafkaClient, options: KafkaOptions, topic: str) -> bool:
    """Return whether a broker says that there is no such topic. Raises SourceError where we may not write to it."""
    # A plain request for metadata would create the topic on a broker that creates topics by itself.
    answer = await client.send(client.get_random_node(), _DescribeTopic(topic))
    ((code, _, _, _, *operations),) = answer.topics
    if code == _UNKNOWN_TOPIC:
        return True
    if for_code(code) is TopicAuthorizationFailedError or not all(_permits(bits, _WRITE) for bits in operations):
        raise refused_topic(options, "Write", topic)
    return False


def _permits(operations: int, operation: int) -> bool:
    """Return whether an operation is among the permitted ones, which are bits; a negative number tells nothing."""
    return operations < 0 or bool(operations >> operation & 1)


class _DescribeGroupV3(DescribeGroupsRequest_v3):  # type: ignore[misc] # aiokafka has no types
    RESPONSE_TYPE = DescribeGroupsResponse_v3  # aiokafka reads the answer as one of version 2


class _DescribeGroup(Request[DescribeGroupsRequest_v2 | _DescribeGroupV3]):  # type: ignore[misc] # as above
    """Asks for a group, and which operations on it are permitted."""

    API_KEY: ClassVar[int] = 15

    def __init__(self, group: str) -> None:
        self._group = group

    def build(
        self, request_struct_class: type[DescribeGroupsRequest_v2 | _DescribeGroupV3]
    ) -> DescribeGroupsRequest_v2 | _DescribeGroupV3:
        authorized = (True,) if request_struct_class is _DescribeGroupV3 else ()
        return request_struct_class([self._group], *authorized)


class _TopicDescribed(Response):  # type: ignore[misc] # as above
    API_KEY: ClassVar[int] = 3
    API_VERSION: ClassVar[int] = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", Array(("id", Int32), ("host", String("utf-8")), ("port", Int32), ("rack", String("utf-8")))),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _DescribeTopicV8(RequestStruct):  # type: ignore[misc] # as above
    API_KEY: ClassVar[int] = 3
    API_VERSION: ClassVar[int] = 8
    RESPONSE_TYPE = _TopicDescribed
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _DescribeTopic(Request[MetadataRequest_v5 | _DescribeTopicV8]):  # type: ignore[misc] # as above
    """Asks for a topic's metadata, and which operations on it are permitted; aiokafka asks for the metadata only."""

    API_KEY: ClassVar[int] = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(
        self, request_struct_class: type[MetadataRequest_v5 | _DescribeTopicV8]
    ) -> MetadataRequest_v5 | _DescribeTopicV8:
        authorized = (False, True) if request_struct_class is _DescribeTopicV8 else ()
        return request_struct_class([self._topic], _CREATE_NONE, *authorized)
