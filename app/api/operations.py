"""Long-running operations: commands for the trainer, with their outcome, for clients that ask later.

Owns a bounded list of them, on the HTTP side's loop. If too many are running, the next is refused; finished ones make
room, the oldest first. The list ends with the process: the effect of a command is in the checkpoints.
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

from millrace.app.api.problem_documents import ProblemError, as_problem
from millrace.app.monitoring.models import OperationView
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.commands import Command, Commands, Profiled

log = logging.getLogger(__name__)
MAX_KEPT = 100
MAX_RUNNING = 16
CHECK_TIMEOUT_S = 5.0
"""How long a client waits for the check of its command, before it gets an operation to ask for."""


def new_id() -> str:
    """Return an id that no other command has, in any process."""
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
    _waits: set[asyncio.Event] = field(default_factory=set, repr=False)

    @property
    def done(self) -> bool:
        """Whether waiting is over: the answer is there, or the trainer is gone and will give none."""
        return self.answer.done() or not self.trainer_alive()

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the answer; return whether it is there.

        The future itself is not awaited: a request that is cancelled must not cancel what the trainer will answer.
        """
        if not self.done and seconds > 0:
            loop, over = asyncio.get_running_loop(), asyncio.Event()

            def tell(_answer: "Future[Any]") -> None:  # on the trainer's thread; the loop may have ended
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(over.set)

            self.answer.add_done_callback(tell)
            self._waits.add(over)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await over.wait()
            finally:
                self._waits.discard(over)  # also if the client has left
        return self.done

    def end_waits(self) -> None:
        """End all waits, as if their seconds were over."""
        for over in self._waits:
            over.set()

    def result(self) -> Any:
        """Return the result. Raises ProblemError if the command failed, or if the trainer is gone."""
        if not self.answer.done():
            raise _gone()
        try:
            return self.answer.result()
        except Exception as error:
            raise as_problem(error) from error

    def view(self) -> OperationView:
        """Return the state of the operation for a client."""
        view = partial(OperationView, id=self.id, kind=self.kind, began_at=self.began_at)
        if not self.done:
            return view(state="running")
        view = partial(view, ended_at=self.ended_at or time.time())
        try:
            result = self.result()
        except ProblemError as problem:
            return view(state="failed", complaint=problem.detail)
        return view(
            state="succeeded",
            checkpoint=result.number if isinstance(result, Manifest) else None,
            profile=str(result.folder) if isinstance(result, Profiled) else None,
        )


class Operations:
    """The operations of this process."""

    def __init__(self, commands: Commands, trainer_alive: Callable[[], bool]) -> None:
        self._commands, self._trainer_alive = commands, trainer_alive
        self._kept: OrderedDict[str, Operation] = OrderedDict()

    def begin(self, command: Command, operation_id: str | None = None) -> Operation:
        """Send the command to the trainer, and keep it in the list. Raises ProblemError (429) if too many run."""
        operation = self._keep(type(command).__name__.lower(), command.answer, operation_id)
        self._commands.send(command)
        return operation

    async def begin_checked(self, kind: str, answer: "Future[Any]", check: Coroutine[Any, Any, Command]) -> Operation:
        """Send the command that `check` returns; the trainer will set `answer`.

        If the check fails soon, this raises its error. If it takes longer than CHECK_TIMEOUT_S, this returns, and an
        error becomes the outcome of the operation.
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

        def send_or_fail(checked: "asyncio.Task[Command]") -> None:
            if checked.cancelled():
                answer.set_exception(_gone())
            elif isinstance(error := checked.exception(), Exception):
                problem = as_problem(error)
                if problem.status == 500:
                    log.error("a command could not be checked", exc_info=error)
                answer.set_exception(problem)
            else:
                self._commands.send(checked.result())

        checking.add_done_callback(send_or_fail)
        return operation

    def end_waits(self) -> None:
        """Let no client wait any longer: the server ends, and would cut off what is not answered within seconds."""
        for operation in self._kept.values():
            operation.end_waits()

    def _keep(self, kind: str, answer: "Future[Any]", operation_id: str | None = None) -> Operation:
        if sum(not operation.done for operation in self._kept.values()) >= MAX_RUNNING:
            raise ProblemError(
                429,
                "Too Many Requests",
                f"{MAX_RUNNING} commands wait for the trainer already.",
                fix="Wait until some of them are done: GET /operations/{id} shows when.",
                headers={"retry-after": "5"},
            )
        while len(self._kept) >= MAX_KEPT:
            oldest = next(key for key, operation in self._kept.items() if operation.done)
            del self._kept[oldest]
        operation = Operation(
            id=operation_id or new_id(),
            kind=kind,
            answer=answer,
            began_at=time.time(),
            trainer_alive=self._trainer_alive,
        )
        self._kept[operation.id] = operation
        answer.add_done_callback(lambda _answer: setattr(operation, "ended_at", time.time()))
        return operation

    def get(self, operation_id: str) -> Operation:
        """Return the operation of this id. Raises ProblemError (404) if it is not kept."""
        operation = self._kept.get(operation_id)
        if operation is None:
            raise ProblemError(
                404,
                "Not Found",
                f"There is no such operation; the newest {MAX_KEPT} of this process are kept.",
                fix="GET /checkpoints shows the outcome of older ones.",
            )
        return operation


def _gone() -> ProblemError:
    return ProblemError(
        503,
        "Trainer Gone",
        "The trainer ended before it carried the command out.",
        fix="Start it again: it resumes from the newest checkpoint.",
    )
