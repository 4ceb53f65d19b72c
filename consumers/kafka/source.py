"""The source: Kafka's records as chunks in a hand-off, from positions that are given, in incarnations.

Owns the thread `consumer` with its event loop, the connections (`kafka_client`), and the task that fetches
(`fetching`). Its methods may be called from any thread but its own, one at a time; statistics from any number. When
the hand-off is full nobody polls. A broker that is away is waited for, for ever. It ends by `stop`, which cancels the
fetching, closes the connections and joins the thread.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Mapping
from concurrent.futures import Future

from consumers.errors import MillraceError
from consumers.fingerprints import Fingerprint
from consumers.handoff import SendEnd
from consumers.kafka.client import GroupCommits, KafkaClient
from consumers.kafka.commits import Committing
from consumers.kafka.fetching import Fetching, Incarnation
from consumers.kafka.offset_lookup import resolve_start, resolve_until
from consumers.kafka.options import KafkaOptions
from consumers.kafka.positions import Start, Until
from consumers.kafka.statistics import SourceMeter, SourceStatistics
from consumers.log_limit import limit_loggers
from consumers.loop_thread import LoopThread
from consumers.records import Partition

__all__ = ["KafkaOptions", "KafkaSource", "SourceStatistics"]

log = logging.getLogger(__name__)

_WATCH_EVERY_S = 1.0
_SILENT_S = 5.0
"""A question without an answer for so long means that Kafka is away, as far as anybody should know."""
_RETENTION_EVERY_S, _RETENTION_RETRY_S = 600.0, 60.0
_SPARE_S = 5.0
"""What a call from another thread waits beyond the time that its question to Kafka may take."""


class KafkaSource:
    """All partitions of some topics, fetched by this process alone."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._meter = SourceMeter()
        self._loop = LoopThread("consumer")
        self._parts: _OnTheLoop | None = None

    def start(self, deadline_s: float) -> None:
        """Connect. Raises UnreachableError or TopicMissingError, and ConfigError for a login that is refused."""
        limit_loggers("aiokafka", self._options.log_lines_per_minute)
        self._loop.start()
        try:
            self._parts = self._loop.run(_connect(self._options, self._meter, deadline_s), deadline_s + _SPARE_S)
        except BaseException:
            self._loop.stop(_SPARE_S)
            raise

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics that is known now."""
        return self._connected.client.partitions()

    def cluster_id(self) -> str | None:
        """The cluster's own id."""
        return self._connected.client.cluster_id

    def resolve_start(self, start: Start) -> dict[Partition, int]:
        """The offset of every partition that `start` comes to, as of now."""
        parts = self._connected
        return self._loop.run(resolve_start(start, parts.client, parts.commits, now_s=time.time()), self._patience_s)

    def resolve_until(self, until: Until) -> dict[Partition, int]:
        """The offset of every partition that `until` comes to, as of now."""
        return self._loop.run(resolve_until(until, self._connected.client), self._patience_s)

    def begin(
        self,
        incarnation: int,
        positions: Mapping[Partition, int],
        handoff: SendEnd,
        until: Mapping[Partition, int] | None = None,
        fingerprints: Mapping[Partition, Fingerprint | None] | None = None,
    ) -> None:
        """End the fetching under way, seek, fetch into `handoff`: nothing of the old positions arrives there.

        Partitions of which something was settled before are in `fingerprints`, and read only once they are recognised.
        With `until`, each partition stops before that offset, and the hand-off ends when all have stopped.
        """
        wanted = Incarnation(
            number=incarnation,
            positions=dict(positions),
            fingerprints=dict(fingerprints or {}),
            until=until,
            handoff=handoff,
        )
        parts = self._connected
        handoff.on_room(lambda: self._loop.call(parts.room.set))
        self._loop.run(parts.begin(wanted), self._patience_s)

    def pause(self) -> None:
        """End the fetching under way, and begin none. Its hand-off is left as it is."""
        self._loop.run(self._connected.end_fetching(), self._patience_s)

    def commit(self, positions: Mapping[Partition, int]) -> Future[bool]:
        """Commit under the group id. Never raises: a refusal is False, counted and shown."""
        try:
            return self._loop.submit(self._connected.commit(dict(positions)))
        except RuntimeError:
            return _refused()

    def statistics(self) -> SourceStatistics:
        """What it has done, and how far behind it is."""
        parts = self._parts
        return self._meter.snapshot(self._loop.lag_p99_s(), 0 if parts is None else parts.client.buffered_bytes)

    def stop(self, deadline_s: float) -> None:
        """End the fetching, close the connections, join the thread."""
        parts, self._parts = self._parts, None
        if parts is None:
            return
        ends_at = time.monotonic() + deadline_s
        try:
            self._loop.run(parts.close(), deadline_s * 0.8)
        except TimeoutError:
            log.warning("Kafka's connections did not close within %.1f s and are abandoned", deadline_s * 0.8)
        if not self._loop.stop(max(0.1, ends_at - time.monotonic())):
            log.warning("The consumer's thread did not end within %.1f s and is abandoned", deadline_s)

    @property
    def _connected(self) -> "_OnTheLoop":
        if self._parts is None:
            raise RuntimeError("the source is not started, or was stopped")
        return self._parts

    @property
    def _patience_s(self) -> float:
        """Every question to Kafka is bounded by the request timeout; resolving asks up to two."""
        return 2 * self._options.request_timeout_ms / 1000 + _SPARE_S


class _OnTheLoop:
    """What lives on the loop. Every coroutine here runs there."""

    def __init__(self, options: KafkaOptions, meter: SourceMeter) -> None:
        self._options = options
        self._meter = meter
        self.client = KafkaClient(options)
        self.commits = GroupCommits(options)
        self._committing = Committing(
            self.commits, meter, options.group_id, lines_per_minute=options.log_lines_per_minute
        )
        self.room = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None
        self._watching: list[asyncio.Task[None]] = []

    async def connect(self, deadline_s: float) -> None:
        try:
            await self.client.connect(deadline_s)
            await self.commits.connect()
        except BaseException:
            await self.close()
            raise
        self._watching = [
            asyncio.create_task(self._watch(), name="watch-ends"),
            asyncio.create_task(self._watch_retention(), name="watch-retention"),
            asyncio.create_task(self._committing.keep_trying(), name="commit-again"),
        ]

    async def begin(self, incarnation: Incarnation) -> None:
        await self.end_fetching()
        self.room.clear()
        fetching = Fetching(incarnation, client=self.client, options=self._options, meter=self._meter, room=self.room)
        self._fetching = asyncio.create_task(fetching.run(), name=f"fetch-{incarnation.number}")

    async def end_fetching(self) -> None:
        """A poll in flight could return records of the old positions: it is ended before anything seeks."""
        task, self._fetching = self._fetching, None
        await _cancel(task)

    async def commit(self, positions: Mapping[Partition, int]) -> bool:
        try:
            known = set(self.client.partitions())
            return await self._committing.commit({p: at for p, at in positions.items() if p in known})
        except asyncio.CancelledError:  # the source is being stopped, and this task ends here
            return False

    async def close(self) -> None:
        await self.end_fetching()
        watching, self._watching = self._watching, []
        for task in watching:
            await _cancel(task)
        await self.commits.close()
        await self.client.close()

    async def _watch(self) -> None:
        """Know where the partitions end even while nobody polls them, and soon that nobody answers.

        The question itself may take as long as a request may: only then is its connection given up.
        """
        loop = asyncio.get_running_loop()
        while True:
            late = loop.call_later(_SILENT_S, self._meter.unanswered, f"no answer for {_SILENT_S:g} s")
            try:
                self.commits.keep(self.client.led())
                self._meter.ends(await self.client.ends(self.client.led()))
            except MillraceError as error:
                self._meter.unanswered(str(error))
            finally:
                late.cancel()
            await asyncio.sleep(_WATCH_EVERY_S)

    async def _watch_retention(self) -> None:
        """Know for how long Kafka keeps what is not learnt yet. Many may not ask; nothing depends on the answer."""
        while True:
            kept_ms: Mapping[str, int | None] = {}
            try:
                kept_ms = await self.client.retention_ms()
            except MillraceError as error:
                log.debug("Kafka did not say for how long it keeps records: %s", error)
            self._meter.retention(kept_ms)
            await asyncio.sleep(_RETENTION_EVERY_S if kept_ms else _RETENTION_RETRY_S)


async def _connect(options: KafkaOptions, meter: SourceMeter, deadline_s: float) -> _OnTheLoop:
    parts = _OnTheLoop(options, meter)
    await parts.connect(deadline_s)
    return parts


async def _cancel(task: Awaitable[None] | None) -> None:
    if isinstance(task, asyncio.Task):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _refused() -> Future[bool]:
    future: Future[bool] = Future()
    future.set_result(False)
    return future
