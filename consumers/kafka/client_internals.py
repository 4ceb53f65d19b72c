"""What is used of aiokafka's private parts, because it has no public way to do the same; `fetch_door` is the rest.

Owns nothing. Runs on the consumer's loop; `buffered_bytes` may be called from any thread.
`tests/consumers/kafka/test_client_internals.py` fails when a new aiokafka changes what this module relies on.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any

from aiokafka import AIOKafkaConsumer, client, conn, partitioner
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer import fetcher
from aiokafka.errors import KafkaError

# Keras makes the seeds of the first weights of Python's shared generator, and the consumer's thread draws meanwhile.
for _module in (client, conn, fetcher, partitioner):
    _module.random = random.Random()  # noqa: S311 - which broker is asked, in which order


class MetadataDoubt:
    """Records whether the client has asked for new metadata before it was due.

    The client does so when a broker does not know a partition, is not its leader, or breaks a connection. It reports
    none of these to us in another way, so its `force_metadata_update` is wrapped. It asks before it sends the next
    fetch; therefore whatever it fetches from a topic that was created again arrives after the doubt was raised.
    """

    def __init__(self, client: AIOKafkaClient) -> None:
        self.raised = False
        self._update_metadata = client.force_metadata_update
        client.force_metadata_update = self._raise_and_update

    def _raise_and_update(self) -> Any:
        self.raised = True
        return self._update_metadata()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Raise no doubt for the updates that our own calls cause in this block."""
        raised = self.raised
        yield
        self.raised = raised


def metadata_client(consumer: AIOKafkaConsumer) -> AIOKafkaClient:
    """Return the consumer's client, which knows the cluster's metadata and sends any request."""
    client: AIOKafkaClient = consumer._client  # noqa: SLF001 - no public API
    return client


def lengthen_lookups(consumer: AIOKafkaConsumer, *, by_ms: int) -> None:
    """Make the consumer wait `by_ms` longer for offsets than each of its requests may take.

    aiokafka has one setting for both, and would give up the lookup before the request times out.
    """
    consumer._request_timeout_ms += by_ms  # noqa: SLF001 - no public API


def take_commit_errors(consumer: AIOKafkaConsumer) -> None:
    """Take the error of every commit request of a started consumer, also where the commit no longer waits for it.

    aiokafka shields the request from a commit that is cancelled or times out. If the request fails afterwards, asyncio
    logs a traceback of a task whose exception was never retrieved. The caller of the commit knows of the failure
    already.
    """
    coordinator = consumer._coordinator  # noqa: SLF001 - no public API
    send = coordinator._do_commit_offsets  # noqa: SLF001 - no public API

    def send_and_take(assignment: Any, offsets: Any) -> "asyncio.Task[None]":
        request: asyncio.Task[None] = asyncio.ensure_future(send(assignment, offsets))
        request.add_done_callback(_take_error)
        return request

    coordinator._do_commit_offsets = send_and_take  # noqa: SLF001 - no public API


def _take_error(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()


async def stop_and_close(consumer: AIOKafkaConsumer) -> None:
    """Stop the consumer, and close its connections in any case.

    When a broker is away and the consumer waits before its next attempt, `stop` raises the CancelledError of the
    consumer's own task and does not close the connections.
    """
    # `gather` tells that CancelledError from a cancellation of the task that waits here, which must go through.
    error: BaseException | None = (await asyncio.gather(consumer.stop(), return_exceptions=True))[0]
    if error is None:
        return
    await metadata_client(consumer).close()
    if not isinstance(error, KafkaError | asyncio.CancelledError):
        raise error


def buffered_bytes(consumer: Any) -> int:
    """Return the buffered bytes, as they came over the wire. A result counts whole until its last record is taken."""
    # A copy, because the loop changes the mapping meanwhile.
    results = tuple(consumer._fetcher._records.values())  # noqa: SLF001 - no public API
    return sum(map(_bytes_of, results))


def _bytes_of(result: Any) -> int:
    # A result may also be an error that waits to be raised, or one that was just used up: both hold nothing.
    records = getattr(getattr(result, "_partition_records", None), "_records", None)
    return 0 if records is None else int(records.size_in_bytes())
