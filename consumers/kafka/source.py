"""The source: puts Kafka's records as chunks into a hand-off, from given positions, one incarnation after the other.

Owns the thread `consumer` with its event loop, the connections (`client`), and the task that fetches (`fetching`). Its
methods may be called from any thread but its own, by one thread at a time; `statistics` by any number of threads. When
the hand-off is full, nothing is polled. When a broker is away, the source waits for it without limit. It ends by
`stop`, which cancels the fetching, closes the connections and joins the thread.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Iterable, Mapping
from concurrent.futures import Future

from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.handoff import SendEnd
from millrace.consumers.kafka.client import GroupCommits, KafkaClient
from millrace.consumers.kafka.commits import Committing
from millrace.consumers.kafka.fetching import Fetching, Incarnation
from millrace.consumers.kafka.logins import LoginDiagnosis
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.positions import Ago, At, Committed, Earliest, Latest, Now, Offsets, Start, Until
from millrace.consumers.kafka.replaying import NO_HISTORY, History, beginnings_with
from millrace.consumers.kafka.statistics import SourceMeter, SourceStatistics
from millrace.consumers.log_limit import limit_loggers, limit_repeats
from millrace.consumers.loop_thread import LoopThread
from millrace.consumers.records import Partition

log = logging.getLogger(__name__)


async def resolve_start(
    start: Start, client: KafkaClient, commits: GroupCommits, *, now_s: float
) -> dict[Partition, int]:
    """Return the offset to start from, for every partition. Raises ConfigError when `start` does not fit the topics."""
    partitions = client.partitions()
    match start:
        case Earliest():
            return await client.beginnings(partitions)
        case Latest():
            return await client.ends(partitions)
        case Ago(seconds):
            return await _at_time(client, max(0, round((now_s - seconds) * 1000)))
        case At(timestamp_ms):
            return await _at_time(client, timestamp_ms)
        case Committed():
            committed = await commits.committed(client.partitions())
            if all(offset is None for offset in committed.values()):
                raise ConfigError(
                    "the group has committed nothing for these topics: set kafka.start to earliest or latest"
                )
            # A group that has commits has never read a partition without one, so it starts there at the first offset.
            beginnings = await client.beginnings(committed)
            return {
                partition: beginnings[partition] if offset is None else offset
                for partition, offset in committed.items()
            }
        case Offsets(offsets):
            chosen = _complete(offsets, partitions, "start")
            ends = await client.ends(partitions)
            for partition, offset in chosen.items():
                if offset > ends[partition]:
                    raise ConfigError(f"start names offset {offset} of {partition}, which ends at {ends[partition]}")
            return chosen


async def resolve_until(until: Until, client: KafkaClient) -> dict[Partition, int]:
    """Return the offset to stop before, for every partition. Raises ConfigError when `until` names others."""
    match until:
        case Now():
            return await client.ends(client.partitions())
        case At(timestamp_ms):
            return await _at_time(client, timestamp_ms)
        case Offsets(offsets):
            return _complete(offsets, client.partitions(), "until")


async def _at_time(client: KafkaClient, timestamp_ms: int) -> dict[Partition, int]:
    # No record is as late as the time in a partition that Kafka reports without an offset: the next one will be.
    ends = await client.ends(client.partitions())
    offsets = await client.at_time(ends, timestamp_ms)
    return {partition: end if (offset := offsets[partition]) is None else offset for partition, end in ends.items()}


async def _both_ends(client: KafkaClient) -> tuple[dict[Partition, int], dict[Partition, int]]:
    readable = await client.ends(client.partitions())
    # Afterwards, so that what is open now is seen.
    return readable, await client.high_watermarks(readable)


def _complete(offsets: Mapping[Partition, int], partitions: Iterable[Partition], setting: str) -> dict[Partition, int]:
    known = set(partitions)
    if unknown := sorted(set(offsets) - known):
        raise ConfigError(f"{setting} names {unknown[0]}, which is not there: there are {_listed(known)}")
    if unnamed := sorted(known - set(offsets)):
        raise ConfigError(f"{setting} names no offset for {_listed(unnamed)}: name every partition")
    return dict(offsets)


def _listed(partitions: Iterable[Partition]) -> str:
    return ", ".join(map(str, sorted(partitions)))


__all__ = ["KafkaOptions", "KafkaSource", "SourceStatistics"]


_WATCH_EVERY_S = 1.0
_SILENT_S = 5.0
"""After this long without an answer, statistics report that Kafka does not answer."""
_RETENTION_EVERY_S, _RETENTION_RETRY_S = 600.0, 60.0
_SPARE_S = 5.0
"""How much longer a call from another thread waits than its requests to Kafka may take."""


class KafkaSource:
    """All partitions of some topics, fetched by this process alone."""

    def __init__(self, options: KafkaOptions, history: History = NO_HISTORY) -> None:
        self._options, self._history = options, history
        self._meter = SourceMeter(due_after_s=options.due_after_s)
        self._loop = LoopThread("consumer")
        self._parts: _LoopParts | None = None

    def start(self, deadline_s: float) -> None:
        """Connect. Raises UnreachableError, TopicMissingError, or ConfigError for a login that is refused."""
        limit_repeats("aiokafka")
        limit_loggers("aiokafka", self._options.log_lines_per_minute)
        self._loop.start()
        try:
            connecting = _connect(self._options, self._meter, self._history, deadline_s)
            self._parts = self._loop.run(connecting, deadline_s + _SPARE_S)
        except BaseException:
            self._loop.stop(_SPARE_S)
            raise

    def partitions(self) -> tuple[Partition, ...]:
        """Return every partition of the topics that is known now."""
        return self._connected.client.partitions()

    def cluster_id(self) -> str | None:
        """Return the id of the Kafka cluster, None where the broker does not report one."""
        return self._connected.client.cluster_id

    def resolve_start(self, start: Start) -> dict[Partition, int]:
        """Return the offset that `start` means for each partition, as of now.

        The earliest is the archive's, where there is one that begins before Kafka does.
        """
        parts = self._connected
        resolving = resolve_start(start, parts.client, parts.commits, now_s=time.time())
        found = self._loop.run(resolving, self._timeout_s)
        return beginnings_with(self._history, found.items()) if isinstance(start, Earliest) else found

    def resolve_until(self, until: Until) -> dict[Partition, int]:
        """Return the offset that `until` means for each partition, as of now."""
        return self._loop.run(resolve_until(until, self._connected.client), self._timeout_s)

    def ends(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Return one past the last offset of each partition, of those that may be read and of all, as of now.

        With read_committed they differ where a transaction is open.
        """
        return self._loop.run(_both_ends(self._connected.client), self._timeout_s)

    def committed(self) -> dict[Partition, int]:
        """Return the group's committed offsets, of the partitions that have one."""
        parts = self._connected
        found = self._loop.run(parts.commits.committed(parts.client.partitions()), self._timeout_s)
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def may_commit(self) -> bool:
        """Return whether we may commit offsets of the group. Raises SourceError where we may not even read them."""
        return self._loop.run(self._connected.client.may_commit(), self._timeout_s)

    def begin(
        self,
        incarnation: int,
        positions: Mapping[Partition, int],
        handoff: SendEnd,
        until: Mapping[Partition, int] | None = None,
        fingerprints: Mapping[Partition, Fingerprint | None] | None = None,
        *,
        counted: bool = True,
    ) -> None:
        """End the fetching under way, and fetch from `positions` into `handoff`. No older record arrives there.

        `fingerprints` has each partition of which something was settled before; it is read only once it is recognised.
        With `until`, each partition stops before that offset, and the hand-off ends when all have stopped. What is not
        `counted`, the statistics leave out: a look at some records before the first incarnation.
        """
        begun = Incarnation(
            number=incarnation,
            positions=dict(positions),
            fingerprints=dict(fingerprints or {}),
            until=until,
            handoff=handoff,
        )
        parts = self._connected
        handoff.on_room(lambda: self._loop.call(parts.room.set))
        self._loop.run(parts.begin(begun, self._meter if counted else SourceMeter()), self._timeout_s)

    def pause(self) -> None:
        """End the fetching under way without starting another. Its hand-off stays as it is."""
        self._loop.run(self._connected.end_fetching(), self._timeout_s)

    def commit(self, positions: Mapping[Partition, int]) -> Future[bool]:
        """Commit under the group id. Never raises: when Kafka refuses, the result is False, and statistics count it."""
        try:
            return self._loop.submit(self._connected.commit(dict(positions)))
        except RuntimeError:
            refused: Future[bool] = Future()
            refused.set_result(False)
            return refused

    def statistics(self) -> SourceStatistics:
        """Return what the source has done, and how far behind it is."""
        parts = self._parts
        return self._meter.snapshot(self._loop.lag_p99_s(), 0 if parts is None else parts.client.buffered_bytes)

    def stop(self, deadline_s: float) -> None:
        """End the fetching, close the connections, and join the thread, within `deadline_s`."""
        parts, self._parts = self._parts, None
        if parts is None:
            return
        ends_at = time.monotonic() + deadline_s
        try:
            # The rest of the time is for the thread to end.
            self._loop.run(parts.close(), deadline_s * 0.8)
        except TimeoutError:
            log.warning("Kafka's connections did not close within %.1f s and are abandoned", deadline_s * 0.8)
        if not self._loop.stop(max(0.1, ends_at - time.monotonic())):
            log.warning("The consumer's thread did not end within %.1f s and is abandoned", deadline_s)

    @property
    def _connected(self) -> "_LoopParts":
        if self._parts is None:
            raise RuntimeError("the source is not started, or was stopped")
        return self._parts

    @property
    def _timeout_s(self) -> float:
        """How long a call may take: up to two requests to Kafka, each of which has its own timeout."""
        return 2 * self._options.request_timeout_ms / 1000 + _SPARE_S


class _LoopParts:
    """The clients and tasks that belong to the loop. Everything here runs on it."""

    def __init__(self, options: KafkaOptions, meter: SourceMeter, history: History) -> None:
        self._options, self._history = options, history
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

    async def begin(self, incarnation: Incarnation, meter: SourceMeter) -> None:
        await self.end_fetching()
        self.room.clear()
        fetching = Fetching(
            incarnation,
            client=self.client,
            options=self._options,
            meter=meter,
            room=self.room,
            history=self._history,
        )
        self._fetching = asyncio.create_task(fetching.run(), name=f"fetch-{incarnation.number}")

    async def end_fetching(self) -> None:
        # A poll in flight could return records of the old positions, so it ends before anything seeks.
        task, self._fetching = self._fetching, None
        await _cancel(task)

    async def commit(self, positions: Mapping[Partition, int]) -> bool:
        try:
            # One partition that is gone would make the whole commit count as refused, again and again.
            known = set(self.client.partitions())
            return await self._committing.commit({p: position for p, position in positions.items() if p in known})
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
        """Look up the partitions' ends every second, even while nothing is polled, and notice early a silent Kafka.

        The lookup itself is not cancelled when Kafka is silent: only a request that times out closes its connection.
        """
        loop, diagnosis = asyncio.get_running_loop(), LoginDiagnosis(self._options)
        while True:
            late = loop.call_later(_SILENT_S, self._meter.unanswered, f"no answer for {_SILENT_S:g} s")
            try:
                led = self.client.led()
                self.commits.keep(led)
                if not led:  # a broker that stops says so of all its partitions, and below nobody would be asked
                    await self.client.look_for_leaders()
                asked, readable = time.time(), await self.client.ends(led)
                # Afterwards, so that no partition seems to end before the last record that may be read.
                ends = await self.client.high_watermarks(led)
                self._meter.ends(ends, readable, await self._due(ends), asked=asked)
                diagnosis.answered()
            except MillraceError as error:
                # aiokafka only logs that a login is refused. A password may have been changed, and changed back.
                self._meter.unanswered(await diagnosis.text_of(error))
            finally:
                late.cancel()
            await asyncio.sleep(_WATCH_EVERY_S)

    async def _due(self, ends: Mapping[Partition, int]) -> Mapping[Partition, int] | None:
        """Return one past the last offset of each partition that is due; None where records need not wait."""
        if not self._options.due_after_s:
            return None
        now_ms = round((time.time() - self._options.due_after_s) * 1000)
        later = await self.client.at_time(ends, max(0, now_ms))
        return {
            partition: end if (first := later.get(partition)) is None else min(first, end)
            for partition, end in ends.items()
        }

    async def _watch_retention(self) -> None:
        """Look up for how long Kafka keeps records. Many users are not permitted to; only statistics need it."""
        while True:
            retention_ms: Mapping[str, int | None] = {}
            try:
                retention_ms = await self.client.retention_ms()
            except MillraceError as error:
                log.debug("Kafka did not report for how long it keeps records: %s", error)
            self._meter.retention(retention_ms)
            await asyncio.sleep(_RETENTION_EVERY_S if retention_ms else _RETENTION_RETRY_S)


async def _connect(options: KafkaOptions, meter: SourceMeter, history: History, deadline_s: float) -> _LoopParts:
    parts = _LoopParts(options, meter, history)  # aiokafka binds its objects to the running loop
    await parts.connect(deadline_s)
    return parts


async def _cancel(task: Awaitable[None] | None) -> None:
    if isinstance(task, asyncio.Task):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
