"""Dead letters to a topic that Kafka's access control lists do not let us write to, on a real broker that has them."""

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

from millrace.app.tools.local_broker import LocalBroker
from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.dead_letters.producer import DeadLetterOptions, KafkaDeadLetters
from millrace.consumers.dead_letters.reader import newest_letters
from millrace.consumers.errors import SourceError
from millrace.consumers.kafka.options import KafkaOptions
from tests.conftest import WaitFor
from tests.integration.test_dead_letters import letter

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(120)]

WITH_ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
_TOPIC, _LITERAL, _DENY = 2, 3, 2
OPERATIONS = {"write": 4, "describe": 8}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of a broker that refuses what a list denies."""
    with LocalBroker(tmp_path_factory.mktemp("acls"), settings=WITH_ACLS) as broker:
        yield broker.bootstrap_servers


async def _change(servers: str, request: type[CreateAclsRequest | DeleteAclsRequest], topic: str, what: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        denied = request(_TOPIC, topic, _LITERAL, "User:ANONYMOUS", "*", what, _DENY)
        await admin._client.send(admin._client.get_random_node(), denied)
    finally:
        await admin.close()


def _options(servers: str, topic: str) -> KafkaOptions:
    return KafkaOptions(bootstrap_servers=(servers,), topics=(topic,), group_id="g", request_timeout_ms=2000)


def _refused(servers: str, topic: str) -> bool:
    """Return whether a start is refused, with the right that is missing and the command that grants it."""
    sink = KafkaDeadLetters(_options(servers, topic), DeadLetterOptions(topic=topic))
    try:
        sink.start(30)
    except SourceError as error:
        return f"Permit Write: kafka-acls.sh --bootstrap-server {servers}" in str(error)
    assert sink.stop(10) == 0
    return False


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_start_is_refused_where_letters_may_not_be_written(servers: str, operation: str, wait_for: WaitFor) -> None:
    topic, code = f"denied-{operation}", OPERATIONS[operation]
    create_topic(servers, topic)
    asyncio.run(_change(servers, CreateAclsRequest, topic, code))
    wait_for(lambda: _refused(servers, topic), 30)


def test_letters_whose_right_is_taken_away_wait_and_are_sent_once_it_is_back(servers: str, wait_for: WaitFor) -> None:
    topic, code = "denied-later", OPERATIONS["write"]
    create_topic(servers, topic)
    sink = KafkaDeadLetters(_options(servers, topic), DeadLetterOptions(topic=topic))
    sink.start(30)
    try:
        asyncio.run(_change(servers, CreateAclsRequest, topic, code))
        wait_for(lambda: _refused(servers, topic), 30)  # so the list is in force
        sink.put([letter(7)])
        wait_for(lambda: "TopicAuthorizationFailedError" in (sink.statistics().last_error or ""), 30)
        wait_for(lambda: sink.stalled_s > 2, 30)
        assert (sink.statistics().waiting, sink.statistics().acknowledged) == (1, 0)
        asyncio.run(_change(servers, DeleteAclsRequest, topic, code))
        assert sink.wait_acknowledged(1, 30)
    finally:
        assert sink.stop(10) == 0
    (found,) = newest_letters(_options(servers, topic), 10).newest
    assert found.ours["offset"] == "7"
