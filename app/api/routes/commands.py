"""The commands: POST routes. Each becomes a command that the trainer carries out between two calls.

They run on the HTTP side's loop. A client waits at most as long as it asks to; then it gets an operation to ask for.
"""

import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from millrace.app.api import audit
from millrace.app.api.checkpoint_reads import CheckpointReader, just_published
from millrace.app.api.middleware import ORDERED_BY
from millrace.app.api.offload import run_on_thread
from millrace.app.api.operations import Operation, Operations, new_id
from millrace.app.api.problem_documents import ProblemError
from millrace.app.api.routes.reads import Number
from millrace.app.monitoring.checkpoint_models import CheckpointAnswer, PinsAnswer
from millrace.app.monitoring.command_models import (
    ProfileAnswer,
    ProfileBody,
    RestoreBody,
    ResumeBody,
    RewindBody,
    RewindPlanAnswer,
    SaveBody,
    StateAnswer,
    UnpinBody,
)
from millrace.app.monitoring.lineage_view import plan_fields
from millrace.app.monitoring.models import OperationAnswer, ProblemDocument
from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.shapes import stamp
from millrace.app.monitoring.snapshot import OVER, Snapshot
from millrace.consumers.records import Partition
from millrace.consumers.units import parse_duration
from millrace.pipelines.gates.gate import HeldBy
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.commands import Command, Pause, Profile, Profiled, Resume, Rewind, Save
from millrace.training.history.rewind import Present, RewindPlan
from millrace.training.history.rewind_request import RewindRequest, parse_destination, parse_skips
from millrace.training.telemetry.phases import Phase

Beginnings = Callable[[], Mapping[Partition, int] | None]
"""Asks Kafka for the first offset that it still has of each partition. May take long, so it runs on a thread."""
KAFKA_TIMEOUT_S = 4.0
_MAX_ASKING_KAFKA = 8
MAX_WAIT_S = 600.0
_SOON_S = 5.0
"""How long an answer waits for a pause or a resume by default: the trainer polls several times a second."""
_PROFILED_S = 30.0
"""How long an answer waits for a profile by default."""
Wait = Annotated[str | None, Query(max_length=20, description="How long to wait for the end, as in 30s; at most 10m.")]
_RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {"model": OperationAnswer},
    **{code: {"model": ProblemDocument} for code in (401, 403, 408, 409, 413, 429, 503)},
}
_PUBLISHED: dict[int | str, dict[str, Any]] = {**_RESPONSES, 201: {"model": CheckpointAnswer}}
_OF_ONE: dict[int | str, dict[str, Any]] = {
    **_PUBLISHED,
    404: {"model": ProblemDocument},
    200: {"model": RewindPlanAnswer},
}
_PINNED: dict[int | str, dict[str, Any]] = {
    code: {"model": ProblemDocument} for code in (401, 403, 404, 408, 409, 413, 429)
}


class CommandRoutes:
    """The routes that change something."""

    def __init__(
        self, observer: Observer, reader: CheckpointReader, operations: Operations, beginnings: Beginnings
    ) -> None:
        self._observer, self._reader, self._operations = observer, reader, operations
        self._planner = RewindPlanner(reader, beginnings)

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter()
        add = partial(router.add_api_route, methods=["POST"], response_model_exclude_none=True)
        back = CheckpointAnswer | RewindPlanAnswer | OperationAnswer
        published = partial(add, tags=["Checkpoints"], status_code=201, response_model=back)
        trainer = partial(add, tags=["The trainer"])
        obeyed = {**_RESPONSES, 200: {"model": StateAnswer}}
        state = partial(trainer, response_model=StateAnswer | OperationAnswer, responses=obeyed)
        add(
            "/checkpoints",
            self.save,
            tags=["Checkpoints"],
            status_code=201,
            response_model=CheckpointAnswer | OperationAnswer,
            responses=_PUBLISHED,
        )
        published("/checkpoints/{number}/restore", self.restore, responses=_OF_ONE)
        pinned = partial(add, tags=["Checkpoints"], response_model=PinsAnswer, responses=_PINNED)
        pinned("/checkpoints/{number}/pin", self.pin)
        pinned("/checkpoints/{number}/unpin", self.unpin)
        published("/rewind", self.rewind, responses=_OF_ONE)
        state("/pause", self.pause)
        state("/resume", self.resume)
        profiled = {**_RESPONSES, 200: {"model": ProfileAnswer}}
        trainer("/profile", self.profile, response_model=ProfileAnswer | OperationAnswer, responses=profiled)
        return router

    async def save(
        self, request: Request, response: Response, body: SaveBody | None = None, wait: Wait = None
    ) -> CheckpointAnswer | OperationAnswer:
        """Make a checkpoint now."""
        seconds = _seconds(wait, 0.0)
        operation = self._begin(Save(by=_who(request), note=body.note if body else None), request)
        return await self._published(operation, seconds, response)

    async def restore(
        self, number: Number, request: Request, response: Response, body: RestoreBody | None = None, wait: Wait = None
    ) -> CheckpointAnswer | RewindPlanAnswer | OperationAnswer:
        """Go back to this checkpoint, and train on from there."""
        given = body or RestoreBody()
        return await self.rewind(RewindBody(to=number, **dict(given)), request, response, wait)

    async def rewind(
        self, body: RewindBody, request: Request, response: Response, wait: Wait = None
    ) -> CheckpointAnswer | RewindPlanAnswer | OperationAnswer:
        """Go back to a checkpoint, and train on from there without the ranges to skip."""
        seconds = _seconds(wait, 0.0)
        skips = parse_skips(body.skip, body.reason)
        snapshot = self._leading()
        to = parse_destination(str(body.to), now_s=snapshot.at)
        rewind = RewindRequest(to=to, skips=skips, unskip=body.unskip, by=_who(request), note=body.reason)
        if body.dry_run:
            plan = await self._planner.plan(rewind, snapshot)
            response.status_code = 200
            per_s = max(snapshot.meter.records_per_s.values(), default=0.0)
            policy = snapshot.settings.kafka.out_of_range
            return RewindPlanAnswer(**stamp(snapshot), **plan_fields(plan, policy=policy, per_s=per_s))
        operation = await self._operations.begin_checked(
            "rewind", rewind.answer, self._planner.command(rewind, snapshot)
        )
        return await self._published(_written_down(operation, request), seconds, response)

    async def pin(self, number: Number, request: Request) -> PinsAnswer:
        """Keep this checkpoint, whatever `checkpoints.keep` says, until it is unpinned."""
        snapshot = self._chief()
        return PinsAnswer(**stamp(snapshot), number=number, pins=await self._reader.pin(number, _who(request)))

    async def unpin(self, number: Number, body: UnpinBody | None = None) -> PinsAnswer:
        """Lift the pins of this checkpoint, or those of one holder; `checkpoints.keep` applies to it again."""
        snapshot = self._chief()
        left = await self._reader.unpin(number, None if body is None else body.by)
        return PinsAnswer(**stamp(snapshot), number=number, pins=left)

    async def pause(self, request: Request, response: Response, wait: Wait = None) -> StateAnswer | OperationAnswer:
        """Stop learning until a resume."""
        seconds = _seconds(wait, _SOON_S)
        operation = self._begin(Pause(reason=f"asked to by {_who(request)}"), request)
        return await self._obeyed(operation, seconds, response)

    async def resume(
        self, request: Request, response: Response, body: ResumeBody | None = None, wait: Wait = None
    ) -> StateAnswer | OperationAnswer:
        """Go on learning."""
        seconds, assume_absent = _seconds(wait, _SOON_S), body is not None and body.assume_absent
        held = self._observer.look().snapshot.held
        if held is not None and held.by is HeldBy.LABELS and not assume_absent:
            raise ProblemError(
                409,
                "Labels Silent",
                f"The learning is paused, as {held.why}; it goes on by itself when one comes.",
                fix="If there are truly none, `millrace resume --assume-absent` learns what waits without them.",
            )
        operation = self._begin(Resume(reason=f"asked to by {_who(request)}", assume_absent=assume_absent), request)
        return await self._obeyed(operation, seconds, response)

    async def profile(
        self, request: Request, response: Response, body: ProfileBody | None = None, wait: Wait = None
    ) -> ProfileAnswer | OperationAnswer:
        """Trace the next calls for TensorBoard."""
        seconds, operation_id = _seconds(wait, _PROFILED_S), new_id()
        taken_at = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        folder = self._reader.profiles / f"{taken_at}-{operation_id}"
        operation = self._begin(Profile(calls=(body or ProfileBody()).calls, folder=folder), request, operation_id)
        if not await operation.wait(seconds):
            return self._under_way(operation, response)
        written: Profiled = operation.result()
        return ProfileAnswer(
            **stamp(self._observer.look().snapshot),
            folder=str(written.folder),
            calls=written.calls,
            open=f"pip install tensorboard xprof; tensorboard --logdir {shlex.quote(str(written.folder))}",
        )

    def _begin(self, command: Command, request: Request, operation_id: str | None = None) -> Operation:
        self._at_work() if isinstance(command, Profile) else self._leading()
        return _written_down(self._operations.begin(command, operation_id), request)

    def _leading(self) -> Snapshot:
        """Return a snapshot of a trainer that takes commands, for its group if it is in one."""
        self._chief()
        return self._at_work()

    def _chief(self) -> Snapshot:
        """Return a snapshot of a trainer that owns its checkpoints. Raises ProblemError on a worker of a group."""
        snapshot = self._observer.look().snapshot
        group = snapshot.follows
        if group is not None:
            raise ProblemError(
                409,
                "Not The Chief",
                f"This is worker {group.index} of a group; the chief alone takes commands, for all of them.",
                fix=f"Send it to the HTTP side of the chief, on the host {group.chief_host}.",
            )
        return snapshot

    def _at_work(self) -> Snapshot:
        """Return a snapshot of a trainer that takes commands. Raises ProblemError if it is ending or starting."""
        snapshot = self._observer.look().snapshot
        phase = snapshot.phase.phase
        if phase in OVER or not snapshot.alive:
            raise ProblemError(
                409,
                "Trainer Ending",
                f"The trainer is {phase} and takes no more commands.",
                fix="Start it again: it resumes from the newest checkpoint.",
            )
        if snapshot.posting is None:
            waits = phase is Phase.WAITING
            raise ProblemError(
                503,
                "Starting",
                f"The trainer is {phase}: it has no restored state yet to command.",
                fix="Ask again when all workers are there: /status names those that are missing."
                if waits
                else "Ask again when /readyz answers 200.",
                headers={"retry-after": "5"},
            )
        return snapshot

    async def _published(
        self, operation: Operation, seconds: float, response: Response
    ) -> CheckpointAnswer | OperationAnswer:
        if not await operation.wait(seconds):
            return self._under_way(operation, response)
        manifest: Manifest = operation.result()
        response.status_code = 201
        response.headers["location"] = f"/checkpoints/{manifest.number}"
        return CheckpointAnswer(**stamp(self._observer.look().snapshot), checkpoint=just_published(manifest))

    async def _obeyed(self, operation: Operation, seconds: float, response: Response) -> StateAnswer | OperationAnswer:
        if not await operation.wait(seconds):
            return self._under_way(operation, response)
        operation.result()
        snapshot = self._observer.look().snapshot
        return StateAnswer(**stamp(snapshot), state=snapshot.phase.phase, reason=snapshot.phase.reason)

    def _under_way(self, operation: Operation, response: Response) -> OperationAnswer:
        response.status_code = 202
        response.headers["location"] = f"/operations/{operation.id}"
        return OperationAnswer(**stamp(self._observer.look().snapshot), operation=operation.view())


def _who(request: Request) -> str:
    """Return who sent the command, as the authorizer found out."""
    return str(request.scope["state"][ORDERED_BY])


def _written_down(operation: Operation, request: Request) -> Operation:
    audit.taken(request.scope, _who(request), operation.id)
    return operation


def _seconds(wait: str | None, usual: float) -> float:
    if wait is None:
        return usual
    try:
        seconds = parse_duration(wait)
    except ValueError as error:
        raise _bad_wait(str(error)) from None
    if seconds > MAX_WAIT_S:
        raise _bad_wait(f"{wait!r} is too long")
    return seconds


def _bad_wait(detail: str) -> ProblemError:
    return ProblemError(
        422,
        "Unprocessable Content",
        f"query.wait: {detail}",
        fix=f"Write for instance ?wait=30s; at most {MAX_WAIT_S:g}s.",
    )


class RewindPlanner:
    """Plans a rewind before the trainer gets the command: what it would do, and whether it must be refused.

    Threads read the disk and ask Kafka. Planning takes as long as the disk takes to read the checkpoint; it waits for
    Kafka a few seconds at most.
    """

    def __init__(self, reader: CheckpointReader, beginnings: Beginnings) -> None:
        self._reader, self._beginnings = reader, beginnings
        self._asking = anyio.CapacityLimiter(_MAX_ASKING_KAFKA)

    async def plan(self, request: RewindRequest, snapshot: Snapshot) -> RewindPlan:
        """Return what a rewind would do. Raises MillraceError if it cannot be carried out."""
        # The chief of a group accounts for a portion of the partitions: of the others it knows what was saved.
        last = None if snapshot.posting is None else snapshot.posting.last_save
        positions = {} if last is None else {Partition.parse(name): at for name, at in last.manifest.positions.items()}
        positions |= {partition: facts.position for partition, facts in snapshot.ledger.partitions.items()}
        present = Present(positions=positions, orders=snapshot.ledger.orders)
        plan = await self._reader.plan(request, present)
        # The first offset that Kafka still has of each partition; unknown if Kafka is away, or takes too long.
        earliest = None
        if snapshot.source.connected:
            with anyio.move_on_after(KAFKA_TIMEOUT_S):
                earliest = await run_on_thread(self._beginnings, self._asking)
        return plan.with_earliest(earliest)

    async def command(self, request: RewindRequest, snapshot: Snapshot) -> Rewind:
        """Return the command for the trainer. Raises MillraceError if the rewind must be refused."""
        plan = await self.plan(request, snapshot)
        plan.refuse_loss(snapshot.settings.kafka.out_of_range)
        return plan.prepared.command
