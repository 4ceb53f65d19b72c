"""A service whose trainer is a small thread that obeys by really publishing; everything that it is asked about is real.

Its stream is a real hand-off and a real feed, into which tests put records. Only Kafka and the model are missing.
"""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np

from millrace.app.api.authorization import Authorizer, LoopbackAuthorizer, ReadAuthorizer
from millrace.app.api.http_app import make_application
from millrace.app.api.server import ApiServer
from millrace.app.service.kafka_stream import StreamStatistics
from millrace.app.service.service import RunOptions, Service
from millrace.app.settings import load
from millrace.app.settings.sections.api import ApiSettings
from millrace.consumers.dead_letters.letter import CountedOnly
from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka.positions import Earliest, Start
from millrace.consumers.kafka.statistics import SourceMeter, SourceStatistics
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats.plain.raw import RawDecoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping.figures import ClassFigures, LabelFigures, ReservoirFigures, ScaledFigures
from millrace.pipelines.shaping.windows.figures import WindowFigures
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Block
from millrace.pipelines.stream.decode import DecodePool
from millrace.pipelines.stream.feed import Feed, FeedOptions
from millrace.training.checkpoints import (
    CheckpointStore,
    Folder,
    FolderLease,
    Manifest,
    PartState,
    SaveReason,
    SaveRequest,
)
from millrace.training.commands import Command, Pause, Profile, Profiled, Resume, Rewind, Save, Stop
from millrace.training.errors import LettersMissingError
from millrace.training.recovery.crash_guard import CrashGuard, CrashLoop
from millrace.training.telemetry.baseline import (
    BaselinePlan,
    GuessedScore,
    GuessKind,
    binary_accuracy,
    binary_crossentropy,
)
from millrace.training.telemetry.calibration.figures import CalibrationFigures
from millrace.training.telemetry.label_sums import Labels, LabelSums
from millrace.training.telemetry.live_metrics import LiveMetrics, Sums, Watched
from millrace.training.telemetry.no_change import RepeatedScore, mean_of, same
from millrace.training.telemetry.phases import Phase, PhaseLimits, Phases
from millrace.training.trainer.board import ModelFacts, Posting
from millrace.training.trainer.save_figures import LastSave
from millrace.training.trainer.served.figures import ServedFigures
from millrace.training.trainer.slices.figures import SliceFigures
from tests.app.checkpoint_history import MEASURED, rewind

P0, P1 = Partition("clicks", 0), Partition("clicks", 1)
ORIGIN = "http://127.0.0.1:8080"
CONFIG = """\
name: clicks
kafka:   {bootstrap_servers: [localhost:9092], topics: [clicks]}
records: {features: {id: int64, words: {dtype: int64, shape: [8], pad: 0}}, label: {clicked: float32}}
model:   {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
api: {listen: "127.0.0.1:0"}
"""
BAD = b"bad"
PLAN = BaselinePlan(
    labels=Labels.BINARY,
    scores=(
        GuessedScore("loss", binary_crossentropy, GuessKind.BASE_RATE),
        GuessedScore("accuracy", binary_accuracy, GuessKind.BASE_RATE),
    ),
    repeats=(RepeatedScore("accuracy", mean_of(same)),),
)


class Clock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@dataclass
class Source:
    """What is left of Kafka: the counters."""

    meter: SourceMeter
    first: dict[Partition, int] = field(default_factory=dict)
    """Where the partitions begin by now."""

    def resolve_start(self, start: Start) -> dict[Partition, int]:
        assert isinstance(start, Earliest)
        return {P0: 0, P1: 0, **self.first}

    def statistics(self) -> SourceStatistics:
        return self.meter.snapshot(0.001)


class Rig:
    """The service, and the hands that move it."""

    def __init__(self, folder: Path) -> None:
        config = folder / "clicks.yaml"
        config.write_text(CONFIG)
        self.clock = Clock()
        self.service = Service(load(config, {}), RunOptions())
        self.service.phases = Phases(PhaseLimits.usual(), self.clock)
        self.folder = Folder(self.service.settings.checkpoints.path / "clicks")
        self.writer = FolderLease.acquire(self.folder, "a test")
        self.store = CheckpointStore(self.folder, self.writer)
        self.source = Source(SourceMeter())
        schema = Schema(features=(Field(name="id", source="id", dtype="int64"),))
        self.handoff = Handoff(capacity_bytes=1 << 20, partitions=2)
        self.pool = DecodePool(RawDecoder(schema), threads=1, on_refused=lambda _chunk, refused: len(refused))
        options = AssembleOptions(batch_size=4, batches_per_call=2, max_wait_s=0.01)
        assembler = Assembler(schema, options, [P0, P1], incarnation=1, skips=())
        self.feed = Feed(self.handoff, self.pool, assembler, FeedOptions(max_bytes=1 << 20, tick_s=0.02))
        self.elements = iter(self.feed)
        self.running = SimpleNamespace(
            dead_letters=CountedOnly(),
            guard=CrashGuard(),
            provenance={"model_sha256": "9f2c", "cluster_id": "Xk3"},
            stream_statistics=lambda: StreamStatistics(feed=self.feed.statistics(), handoff=self.handoff.statistics()),
        )
        self.live = LiveMetrics(
            window_s=60.0,
            scored="before_update",
            results=lambda _states: {"accuracy": 0.75},
            plan=PLAN,
            clock=time.monotonic,
            watch=Watched("accuracy", higher_is_better=True),
        )
        self.calibration: CalibrationFigures | None = None
        self.slices: Mapping[str, SliceFigures] = {}
        self.served: Mapping[str, ServedFigures] = {}
        self.last: Manifest | None = None
        self.save_error: str | Exception | None = None
        self.learnt_to_ms: int | None = None
        self.obeying = threading.Event()
        self.obeying.set()
        self.refuse_with: Exception | None = None
        self.deaf = False

    def start(self) -> None:
        """Bring the trainer up to number 0."""
        service = self.service
        service.phases.enter(Phase.RESTORING)
        service.source, service.running = self.source, cast("Any", self.running)
        for partition in (P0, P1):
            service.ledger.join(partition, 0)
        service.ledger.begin_incarnation()
        self.source.meter.begin(1, {P0: 0, P1: 0})
        self.source.meter.ends({P0: 0, P1: 0})
        self.publish(SaveReason.START, None)
        service._thread = threading.Thread(target=self._train, name="trainer", daemon=True)
        service.phases.enter(Phase.IDLE)
        self.post()
        service._thread.start()

    def brake(self, loop: CrashLoop) -> None:
        """Pause the trainer for a crash loop, as a start does that finds one."""
        self.running.guard = CrashGuard(loop=loop)
        self.service.phases.enter(Phase.PAUSED, str(loop))

    def produce(self, partition: Partition, count: int, *, bad: int = 0, ahead_ms: int = 0) -> None:
        """So many records come in, the last ones malformed, from a producer whose clock is ahead."""
        start = self.source.meter.snapshot(0.0).partitions[partition].position
        offsets = np.arange(start, start + count)
        values = [int(o).to_bytes(8, "little") if i < count - bad else BAD for i, o in enumerate(offsets)]
        now_ms = round(time.time() * 1000) + ahead_ms
        chunk = Chunk(
            partition=partition,
            incarnation=1,
            start=start,
            end=start + count,
            offsets=offsets,
            timestamps=np.full(count, now_ms),
            keys=[None] * count,
            values=values,
            headers=[()] * count,
            nbytes=8 * count,
            fetched_at=time.monotonic(),
        )
        self.source.meter.fetched(chunk)
        ends = {p: s.position for p, s in self.source.meter.snapshot(0.0).partitions.items()}
        self.source.meter.ends(ends)
        assert self.handoff.offer(chunk)

    def draw(self) -> Block:
        """The next block, on its way to the trainer."""
        return next(element for element in self.elements if isinstance(element, Block))

    def learn(self, block: Block) -> None:
        """The trainer gets the block, and its call returns."""
        facts = self.feed.facts_of(block.facts.number)
        self.service.ledger.settle(facts)
        self.service.meter.called(0.1, facts.rows, facts.batches, 0.2)
        labels = LabelSums(facts.rows, facts.rows, np.array([facts.rows / 4]))
        stays = np.array([facts.rows, facts.rows, facts.rows / 2])
        self.live.add(Sums(facts.rows, 0.5 * facts.rows, facts.rows, [], labels, repeats=stays))
        self.learnt_to_ms = facts.newest_ms or self.learnt_to_ms

    def learn_all(self) -> None:
        """Until nothing is behind."""
        source = self.source.meter.snapshot(0.0)
        while self.service.ledger.positions() != {p: s.position for p, s in source.partitions.items()}:
            self.learn(self.draw())

    def publish(
        self,
        reason: SaveReason,
        parent: int | None,
        note: str | None = None,
        by: str | None = "test",
        *,
        accuracy: float | None = None,
    ) -> Manifest:
        """A checkpoint of what is now."""
        ledger = self.service.ledger
        parts = {
            "model": PartState(arrays={"w": np.full(8, 1.5, np.float32)}),
            ledger.name: ledger.snapshot(),
        }
        order = SaveRequest(
            reason=reason,
            parent=parent,
            step=7,
            incarnation=ledger.incarnation,
            positions=ledger.positions(),
            ordered_by=by,
            note=note,
            metrics={} if accuracy is None else {"accuracy": accuracy},
            measured=MEASURED,
        )
        self.last = self.store.publish(order, parts)
        return self.last

    def post(self) -> None:
        """Post how it stands."""
        last = None if self.last is None else LastSave(manifest=self.last, at=0.0, took_s=0.25, stall_s=0.003)
        posting = Posting(
            live=self.live.look(),
            learning_rate=0.001,
            step=7,
            model=ModelFacts(parameters=1000, replicas=1, devices=("CPU:0",)),
            last_save=last,
            saves=0,
            failed_saves=0,
            save_error=None if self.save_error is None else str(self.save_error),
            letters_missing=isinstance(self.save_error, LettersMissingError),
            learnt_to_ms=self.learnt_to_ms,
            figures={
                "classes": {"0": ClassFigures(0.9, 0.55, 0.5), "1": ClassFigures(0.1, 5.0, 0.5)},
                "labels": {"kind": LabelFigures(known=2, most=100, classes=("news", "mail"))},
                "windows": WindowFigures(keys=812, bytes=409_248, evicted={"full": 3}),
                "scaled": {"price": ScaledFigures(mean=1834.5, deviation=312.25)},
                "reservoir": ReservoirFigures(rows=1000, size=1000, seen=90_000, age=45_000),
                **({"slices": self.slices} if self.slices else {}),
                **({"served": self.served} if self.served else {}),
                **({} if self.calibration is None else {"calibration": self.calibration}),
            },
        )
        self.service.board.post(posting, 0.0)

    def kill_trainer(self) -> None:
        """The thread ends without a word."""
        self.service.commands.send(Stop())
        self.obeying.set()
        self.service._thread.join(10)
        assert not self.service.alive

    def close(self) -> None:
        """End what runs."""
        if self.service.alive:
            self.kill_trainer()
        self.feed.close()
        self.pool.close()
        self.writer.release()

    def _train(self) -> None:
        while True:
            self.obeying.wait(20)
            command = self.service.commands.next(0.01)
            if command is not None and self.obeying.wait(20):
                if isinstance(command, Stop):
                    return
                if not self.deaf:
                    self._obey(command)

    def _obey(self, command: Command) -> None:
        """Do it, post how it stands, and only then answer: whoever is answered may look at once."""
        if self.refuse_with is not None:
            command.answer.set_exception(self.refuse_with)
            return
        answer = self._done(command)
        self.post()
        command.answer.set_result(answer)

    def _done(self, command: Command) -> Any:
        match command:
            case Save():
                return self.publish(SaveReason.DEMAND, self._number, command.note, command.by)
            case Rewind():
                return self._rewind(command)
            case Profile():
                return Profiled(folder=command.folder, calls=command.calls)
            case Pause():
                self.running.guard.release()
                self.service.phases.enter(Phase.PAUSED, command.reason)
            case Resume():
                self.running.guard.release()
                self.service.phases.enter(Phase.IDLE)
        return None

    @property
    def _number(self) -> int:
        assert self.last is not None
        return self.last.number

    def _rewind(self, command: Rewind) -> Manifest:
        ledger = self.service.ledger
        self.last = rewind(self.store, command, incarnation=ledger.incarnation, orders=ledger.orders)
        ledger.restore(self.store.load(self.last.number)[ledger.name])
        return self.last


class Client:
    """Asks the application, without a socket, on a loop of its own."""

    def __init__(
        self,
        rig: Rig,
        *,
        authorizer: Authorizer | None = None,
        readers: ReadAuthorizer | None = None,
        service: Service | None = None,
    ) -> None:
        self.rig, self.service = rig, service or rig.service
        self.app = make_application(self.service, authorizer or LoopbackAuthorizer(), readers)
        self._runner = asyncio.Runner()
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=("127.0.0.1", 50000))
        self._client = httpx.AsyncClient(transport=transport, base_url=ORIGIN)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """One request."""
        return self._runner.run(self._client.request(method, path, **more))

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.ask("POST", path, **({} if body is None else {"json": body}), **more)

    def seen(self, path: str) -> Mapping[str, Any]:
        """The body of an answer that must be 200."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return cast("Mapping[str, Any]", answer.json())

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


def is_problem(answer: httpx.Response, status: int) -> Mapping[str, Any]:
    """Whether it is a whole problem document; its fields."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = cast("Mapping[str, Any]", answer.json())
    assert set(body) == {"type", "title", "status", "detail", "fix", "as_of", "name", "version"}
    assert body["status"] == status
    assert body["detail"]
    assert body["fix"]
    return body


@contextmanager
def running(folder: Path) -> Iterator[Rig]:
    """A rig whose trainer is at work."""
    rig = Rig(folder)
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


@contextmanager
def serving(rig: Rig, settings: ApiSettings | None = None) -> Iterator[ApiServer]:
    """A server on a real socket, which answers for the rig on a thread of its own."""
    server = ApiServer(rig.service, settings or ApiSettings(listen="127.0.0.1:0"))
    server.bind()
    thread = threading.Thread(target=server.serve, name="http")
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()
