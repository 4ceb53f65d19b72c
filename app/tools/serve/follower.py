"""The follower: looks for versions, loads a new one beside the old one, and has it answer from then on.

Owns the thread `follower` and the versions in memory. It publishes a frozen
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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from millrace.app.tools.serve.loaded_version import LoadedVersion, Readers, UnloadableError, load_version
from millrace.app.tools.serve.version_sources import VersionSource
from millrace.consumers.errors import MillraceError
from millrace.training.errors import CorruptError, MissingExportError

log = logging.getLogger(__name__)
_RETRY_S = 60.0
_DROP_S = 0.1
_REMEMBERED = 10
Wanted = int | Literal["latest"]
"""A version, or whatever is the newest."""
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
    wanted: Wanted = "latest"
    newest: int | None = None
    """Of the versions that there are."""
    problem: str | None = None
    """Why the wanted version does not answer, or why versions cannot be looked for."""
    swaps: int = 0
    """How often another version took over."""
    load_failures: int = 0
    """How often a version could not be fetched or loaded."""


class ExportFollower:
    """Keeps the wanted version loaded."""

    def __init__(self, source: VersionSource, wanted: Wanted, loaded: int, poll_s: float, readers: Readers) -> None:
        self._source, self._wanted, self._most, self._poll_s = source, wanted, loaded, poll_s
        self._readers = readers
        self.board = ServingBoard(wanted=wanted)
        self._ended = threading.Event()
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
        self._thread.join(within_s)

    def _follow(self) -> None:
        next_look = 0.0
        while not self._ended.is_set():
            try:
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + self._poll_s
                    self._look()
                self._drop_unused()
            except Exception as error:  # a defect: what is loaded goes on answering
                log.exception("following the exports failed; it is tried again")
                self._publish(problem=f"{type(error).__name__}: {error}")
            left = max(0.0, next_look - time.monotonic())
            self._ended.wait(min(left, _DROP_S) if self._retired else left)

    def _look(self) -> None:
        """Find out which versions there are, load what is wanted, and have it answer."""
        problem = None
        try:
            numbers = self._source.numbers()
        except MillraceError as error:
            numbers, problem = self._source.at_hand(), str(error)
        self._failed = {each: known for each, known in self._failed.items() if each in {*numbers, self._wanted}}
        served, complaint = self._chosen(numbers)
        problem = problem or complaint  # where the source is away, nothing else is the cause
        if problem is not None and problem != self.board.problem:
            log.warning("%s", problem)
        self._swap(served, numbers)
        self._publish(newest=max(numbers, default=None), problem=problem)
        self._source.mark(self.board.loaded.keys())
        # Not before: until another version answers, one that was fetched earlier may be the only one that can.
        if self.board.served is not None:
            self._source.remove_others(self.board.loaded.keys())

    def _chosen(self, numbers: list[int]) -> tuple[LoadedVersion | None, str | None]:
        """Return the version that should answer: of the newest, the first that can be loaded. And why it is another."""
        complaint = None
        for number in reversed(numbers) if self._wanted == "latest" else [self._wanted]:
            try:
                return self._load(number), complaint
            except MillraceError as error:
                complaint = complaint or str(error)
        if complaint is None and self.board.served is None:
            complaint = "there is no export yet"
        return self.board.served, complaint

    def _load(self, number: int) -> LoadedVersion:
        """Return a version, loaded now or before. Raises MillraceError, the same for a minute."""
        loaded = self.board.loaded.get(number)
        if loaded is not None:
            return loaded
        failed_at, why = self._failed.get(number, (-_RETRY_S, ""))
        if time.monotonic() - failed_at < _RETRY_S:
            raise UnloadableError(why)
        self._state(number, VersionState(state="LOADING"))
        began = time.monotonic()
        try:
            self._source.mark({*self.board.loaded, number})
            loaded = load_version(number, *self._source.place(number), self._readers)
        except MillraceError as error:
            code = "NOT_FOUND" if isinstance(error, MissingExportError) else "DATA_LOSS"
            code = code if isinstance(error, MissingExportError | CorruptError) else "UNAVAILABLE"
            self._failed[number] = time.monotonic(), str(error)
            self._publish(load_failures=self.board.load_failures + 1)
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
                self._load(number)
            except MillraceError as error:
                log.debug("version %d is not loaded beside the one that answers: %s", number, error)
        before, stays = self.board.served, {served.number, *others}
        gone = [version for number, version in self.board.loaded.items() if number not in stays]
        self._publish(served=served, loaded={n: one for n, one in self.board.loaded.items() if n in stays})
        if before is not served:
            if before is not None:
                self._publish(swaps=self.board.swaps + 1)
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
