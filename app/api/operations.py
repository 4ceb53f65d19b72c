"""Operations: what was asked of the trainer, until somebody has seen what came of it.

Owns a bounded list of them, on the HTTP side's loop. Full of what is still running, it refuses the next one; finished
ones make room, the oldest first. It ends with the process: what an order did is in the checkpoints.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from app.api.problem_documents import ProblemError, as_problem
from app.monitoring.models import OperationView, moment
from training.checkpoints.manifest import Manifest
from training.commands import Command, Commands, Profiled

log = logging.getLogger(__name__)
MAX_KEPT = 100
MAX_RUNNING = 16
CHECK_TIMEOUT_S = 5.0
"""How long whoever orders waits to hear whether anything speaks against it."""


def new_id() -> str:
    """An id that no other order has, in any process."""
    return secrets.token_hex(6)


@dataclass(slots=True, kw_only=True)
class Operation:
    """One command and its answer."""

    id: str
    kind: str
    answer: "Future[Any]"
    began_at: float
    ended_at: float | None = None
    trainer_alive: Callable[[], bool] = field(repr=False)

    @property
    def done(self) -> bool:
        """Whether there is anything to wait for. A trainer that is gone answers nobody."""
        return self.answer.done() or not self.trainer_alive()

    async def wait(self, seconds: float) -> bool:
        """Wait so long for the answer. Whether it has come.

        The future itself is not awaited: a request that is cancelled must not cancel what the trainer will answer.
        """
        if not self.done and seconds > 0:
            loop, told = asyncio.get_running_loop(), asyncio.Event()
            self.answer.add_done_callback(lambda _answer: _tell(loop, told))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await told.wait()
        return self.done

    def result(self) -> Any:
        """What came of it; ProblemError where nothing did."""
        if not self.answer.done():
            raise _gone()
        try:
            return self.answer.result()
        except Exception as error:
            raise as_problem(error) from error

    def view(self) -> OperationView:
        """How it stands."""
        began = moment(self.began_at)
        if not self.done:
            return OperationView(id=self.id, kind=self.kind, state="running", began_at=began)
        ended = moment(self.ended_at or time.time())
        try:
            result = self.result()
        except ProblemError as problem:
            return OperationView(
                id=self.id, kind=self.kind, state="failed", began_at=began, ended_at=ended, complaint=problem.detail
            )
        return OperationView(
            id=self.id,
            kind=self.kind,
            state="succeeded",
            began_at=began,
            ended_at=ended,
            checkpoint=result.number if isinstance(result, Manifest) else None,
            profile=str(result.folder) if isinstance(result, Profiled) else None,
        )


class Operations:
    """The list."""

    def __init__(self, commands: Commands, trainer_alive: Callable[[], bool]) -> None:
        self._commands, self._trainer_alive = commands, trainer_alive
        self._kept: OrderedDict[str, Operation] = OrderedDict()

    def begin(self, command: Command, operation_id: str | None = None) -> Operation:
        """Send the command, and keep it in view."""
        operation = self._keep(type(command).__name__.lower(), command.answer, operation_id)
        self._commands.send(command)
        return operation

    async def begin_checked(self, kind: str, answer: "Future[Any]", check: Coroutine[Any, Any, Command]) -> Operation:
        """Send the command that the check comes to, which is to be answered by `answer`.

        What speaks against it is raised, where that is known soon; later it is what became of the operation.
        """
        checking = asyncio.create_task(check)
        await asyncio.wait({checking}, timeout=CHECK_TIMEOUT_S)
        if checking.done():
            return self.begin(checking.result())
        try:
            operation = self._keep(kind, answer)
        except ProblemError:
            checking.cancel()
            raise
        checking.add_done_callback(partial(self._send_or_fail, answer))
        return operation

    def _send_or_fail(self, answer: "Future[Any]", checked: "asyncio.Task[Command]") -> None:
        if checked.cancelled():
            answer.set_exception(_gone())
        elif isinstance(error := checked.exception(), Exception):
            problem = as_problem(error)
            if problem.status == 500:
                log.error("an order could not be checked", exc_info=error)
            answer.set_exception(problem)
        else:
            self._commands.send(checked.result())

    def _keep(self, kind: str, answer: "Future[Any]", operation_id: str | None = None) -> Operation:
        self._make_room()
        operation = Operation(
            id=operation_id or new_id(),
            kind=kind,
            answer=answer,
            began_at=time.time(),
            trainer_alive=self._trainer_alive,
        )
        self._kept[operation.id] = operation
        answer.add_done_callback(lambda _answer: _ended(operation))
        return operation

    def get(self, operation_id: str) -> Operation:
        """The operation of that id."""
        operation = self._kept.get(operation_id)
        if operation is None:
            raise ProblemError(
                404,
                "Not Found",
                f"There is no such operation; the newest {MAX_KEPT} of this process are kept.",
                fix="GET /checkpoints shows what came of older ones.",
            )
        return operation

    def _make_room(self) -> None:
        if sum(not operation.done for operation in self._kept.values()) >= MAX_RUNNING:
            raise ProblemError(
                429,
                "Too Many Requests",
                f"{MAX_RUNNING} orders wait for the trainer already.",
                fix="Wait until it has obeyed some: GET /operations/{id} says when.",
                headers={"retry-after": "5"},
            )
        while len(self._kept) >= MAX_KEPT:
            oldest = next(key for key, operation in self._kept.items() if operation.done)
            del self._kept[oldest]


def _ended(operation: Operation) -> None:
    operation.ended_at = time.time()


def _tell(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    """From the trainer's thread to the loop, unless that has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(told.set)


def _gone() -> ProblemError:
    return ProblemError(
        503,
        "Trainer Gone",
        "The trainer ended before it obeyed.",
        fix="Start it again: it goes on from the newest checkpoint.",
    )
