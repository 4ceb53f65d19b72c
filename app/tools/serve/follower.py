"""The follower: looks for versions, loads a new one beside the old one, and has it answer from then on.

Owns the thread `follower`, the versions in memory, and the order which of them answers. It publishes a frozen
`ServingBoard`, which the HTTP side's loop reads at each request: a swap is one assignment. A request finishes on the
version with which it began; a version that was replaced is dropped after its last one. What cannot be loaded is tried
again after a minute, and meanwhile the one before goes on answering. Bounded: `serve.loaded` versions, one more while
it swaps, and those that still answer; of what became of others, the last few are remembered. `end` ends the thread
after the load that is under way.
"""

import gc
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, Queue
from typing import Literal

from millrace.app.tools.serve.loaded_version import LoadedVersion, UnloadableError, load_version
from millrace.app.tools.serve.record_inputs import RecordReaders
from millrace.app.tools.serve.serving_meter import ServingMeter
from millrace.app.tools.serve.version_order import OrderFile, VersionOrder, Wanted
from millrace.app.tools.serve.version_sources import VersionSource
from millrace.consumers.errors import MillraceError
from millrace.training.errors import CorruptError, MissingExportError

log = logging.getLogger(__name__)
_RETRY_S = 60.0
_DROP_S = 0.1
_REMEMBERED = 10
_MOST_ORDERS = 16
State = Literal["LOADING", "AVAILABLE", "UNLOADING", "END"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionState:
    """What became of a version, in TF Serving's words."""

    state: State
    error_code: str = "OK"
    error_message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingBoard:
    """What the follower knows; replaced as a whole."""

    served: LoadedVersion | None = None
    """The version that answers requests that name none."""
    loaded: Mapping[int, LoadedVersion] = field(default_factory=dict)
    states: Mapping[int, VersionState] = field(default_factory=dict)
    order: VersionOrder | None = None
    wanted: Wanted = "latest"
    newest: int | None = None
    """Of the versions that there are."""
    problem: str | None = None
    """Why the wanted version does not answer, or why versions cannot be looked for."""
    looked_at: float = 0.0
    """When versions were last looked for and found or not, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class _GivenOrder:
    version: Wanted
    by: str
    done: Future[ServingBoard]


class ExportFollower:
    """Keeps the wanted version loaded."""

    def __init__(
        self,
        source: VersionSource,
        orders: OrderFile,
        loaded: int,
        poll_s: float,
        meter: ServingMeter,
        readers: RecordReaders,
    ) -> None:
        self._readers = readers
        self._source, self._orders, self._most, self._poll_s, self._meter = source, orders, loaded, poll_s, meter
        self.board = ServingBoard(wanted=orders.wanted(), order=orders.read())
        self._given: Queue[_GivenOrder] = Queue(_MOST_ORDERS)
        self._wake, self._ended = threading.Event(), threading.Event()
        self._retired: list[LoadedVersion] = []
        self._failed: dict[int, tuple[float, str]] = {}
        """By number, when a version could not be loaded, and why; only of versions that there are."""
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def end(self, within_s: float) -> None:
        """End the thread, and wait for it for so long."""
        self._ended.set()
        self._wake.set()
        self._thread.join(within_s)

    def order(self, version: Wanted, by: str) -> Future[ServingBoard]:
        """Have this version answer from now on, also after a restart. Any thread; raises queue.Full with too many.

        The future raises what is wrong, and then nothing has changed: MissingExportError, CorruptError, ConfigError.
        """
        given = _GivenOrder(version, by, Future())
        self._given.put_nowait(given)
        self._wake.set()
        return given.done

    def _follow(self) -> None:
        next_look = 0.0
        while not self._ended.is_set():
            self._wake.clear()
            self._guarded(self._obey)
            if time.monotonic() >= next_look:
                self._guarded(self._look)
                next_look = time.monotonic() + self._poll_s
            self._guarded(self._drop_unused)
            left = max(0.0, next_look - time.monotonic())
            self._wake.wait(min(left, _DROP_S) if self._retired else left)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Take a step; a defect in it is logged, and what is loaded goes on answering."""
        try:
            step()
        except Exception as error:
            log.exception("following the exports failed; it is tried again")
            self._publish(problem=f"{type(error).__name__}: {error}")

    def _obey(self) -> None:
        while True:
            try:
                given = self._given.get_nowait()
            except Empty:
                return
            try:
                if given.version != "latest":
                    self._load(given.version)
                self._orders.give(given.version, given.by)
                self._look()
            except MillraceError as error:
                given.done.set_exception(error)
            except BaseException as error:
                given.done.set_exception(error)
                raise
            else:
                log.info("version %s was ordered by %s", given.version, given.by)
                given.done.set_result(self.board)

    def _look(self) -> None:
        """Find out which versions there are, load what is wanted, and have it answer."""
        problem = None
        try:
            numbers = self._source.numbers()
        except MillraceError as error:
            numbers, problem = self._source.at_hand(), str(error)
        order, wanted = self._orders.read(), self._orders.wanted()
        self._failed = {each: known for each, known in self._failed.items() if each in {*numbers, wanted}}
        served, complaint = self._chosen(numbers, wanted)
        problem = problem or complaint  # where the source is away, nothing else is the cause
        if problem is not None and problem != self.board.problem:
            log.warning("%s", problem)
        self._swap(served, numbers)
        self._publish(
            order=order,
            wanted=wanted,
            newest=max(numbers, default=None),
            problem=problem,
            looked_at=time.monotonic(),
        )
        self._source.keep(self.board.loaded.keys())

    def _chosen(self, numbers: list[int], wanted: Wanted) -> tuple[LoadedVersion | None, str | None]:
        """Return the version that should answer: of the newest, the first that can be loaded. And why it is another."""
        complaint = None
        for number in reversed(numbers) if wanted == "latest" else [wanted]:
            try:
                return self._load(number, again=False), complaint
            except MillraceError as error:
                complaint = complaint or str(error)
        if complaint is None and self.board.served is None:
            complaint = "there is no export yet"
        return self.board.served, complaint

    def _load(self, number: int, *, again: bool = True) -> LoadedVersion:
        """Return a version, loaded now or before. Raises MillraceError; without `again`, the same for a minute."""
        loaded = self.board.loaded.get(number)
        if loaded is not None:
            return loaded
        failed_at, why = self._failed.get(number, (-_RETRY_S, ""))
        if not again and time.monotonic() - failed_at < _RETRY_S:
            raise UnloadableError(why)
        self._state(number, VersionState(state="LOADING"))
        began = time.monotonic()
        try:
            self._source.keep({*self.board.loaded, number})
            loaded = load_version(number, *self._source.place(number), self._readers)
        except MillraceError as error:
            code = "NOT_FOUND" if isinstance(error, MissingExportError) else "DATA_LOSS"
            code = code if isinstance(error, MissingExportError | CorruptError) else "UNAVAILABLE"
            self._failed[number] = time.monotonic(), str(error)
            self._meter.failed_to_load()
            self._state(number, VersionState(state="END", error_code=code, error_message=str(error)))
            raise
        self._failed.pop(number, None)
        log.info("version %d is loaded", number, extra={"seconds": round(time.monotonic() - began, 3)})
        self._publish(loaded={**self.board.loaded, number: loaded})
        self._state(number, VersionState(state="AVAILABLE"))
        return loaded

    def _swap(self, served: LoadedVersion | None, numbers: list[int]) -> None:
        """Have this version answer, and take leave of those that are loaded and no longer wanted."""
        if served is None:
            return
        others = [number for number in reversed(numbers) if number != served.number][: self._most - 1]
        for number in others:
            try:
                self._load(number, again=False)
            except MillraceError as error:
                log.debug("version %d is not loaded beside the one that answers: %s", number, error)
        before, stays = self.board.served, {served.number, *others}
        gone = [version for number, version in self.board.loaded.items() if number not in stays]
        self._publish(served=served, loaded={n: one for n, one in self.board.loaded.items() if n in stays})
        if before is not served:
            if before is not None:
                self._meter.swapped()
            log.info("version %d answers now", served.number, extra={"before": before and before.number})
        for version in gone:
            self._state(version.number, VersionState(state="UNLOADING"))
        self._retired += gone

    def _drop_unused(self) -> None:
        """Forget versions that were replaced and whose last request has been answered."""
        closed = [version for version in self._retired if version.close()]
        if not closed:
            return
        self._retired = [version for version in self._retired if version not in closed]
        for version in closed:
            if version.number not in self.board.loaded:
                self._state(version.number, VersionState(state="END"))
        del closed, version
        gc.collect()  # a graph refers to itself

    def _state(self, number: int, state: VersionState) -> None:
        states = {**self.board.states, number: state}
        over = [each for each in sorted(states) if states[each].state == "END"][:-_REMEMBERED]
        self._publish(states={each: found for each, found in states.items() if each not in over})

    def _publish(self, **changes: object) -> None:
        self.board = replace(self.board, **changes)  # type: ignore[arg-type] # each is a field of it
