"""The schemas of a registry by their numbers, each asked for once: a number never means another schema.

Owns the thread `registry`, which asks, and the schemas in memory and in a folder. `get` never asks by itself: what is
neither in memory nor in the folder is noted for the thread, and NotYetError says so. While the registry is away the
thread tries again, with longer and longer pauses of at most `_LONGEST_S`. A number that the registry does not have is
asked for twice before that is believed, since a registry of several nodes may lag, and again after `_FORGET_S`, since
it may be registered later. Any thread may call `get`.
"""

import logging
import random
import threading
import time
from collections.abc import Callable

from millrace.consumers.errors import NotYetError
from millrace.pipelines.registry.kept_schemas import KeptSchemas
from millrace.pipelines.registry.registry_client import RegistryAwayError, RegistryClient, RegistryOptions
from millrace.pipelines.schema import RegisteredSchema

log = logging.getLogger(__name__)
_SPREAD = random.Random()  # noqa: S311 - spreads what many clients ask
"""A generator of its own: Keras draws the seeds of the first weights from Python's shared one."""
_SHORTEST_S, _LONGEST_S = 0.2, 10.0
_CONFIRM_S = 1.0
_FORGET_S = 30.0


class RegistrySchemas:
    """Gives schemas by their numbers."""

    def __init__(
        self, options: RegistryOptions, *, wait_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take how long `get` waits for a schema that is not known yet. A live stream does not wait here."""
        self._options, self._wait_s, self._clock = options, wait_s, clock
        self._client, self._kept = RegistryClient(options), KeptSchemas(options.cache)
        self._changed = threading.Condition()
        self._known: dict[int, RegisteredSchema] = {}
        self._missing: dict[int, float] = {}
        """When the registry last said that it does not have a schema."""
        self._wanted: dict[int, float] = {}
        """When to ask for a schema, by the clock."""
        self._doubted: set[int] = set()
        """What the registry has said once that it does not have."""
        self._away: str | None = None
        """Why the registry was away when it was last asked."""
        self._thread: threading.Thread | None = None

    def get(self, number: int) -> RegisteredSchema | None:
        """Return a schema; None where the registry says that there is none. Raise NotYetError while it is not known."""
        with self._changed:
            gives_up_at = self._clock() + self._wait_s
            while True:
                if number in self._known:
                    return self._known[number]
                since = self._missing.get(number)
                if since is not None and self._clock() - since < _FORGET_S:
                    return None
                if number not in self._wanted and (kept := self._kept.schema(number)) is not None:
                    # Read here, so that a registry that is away keeps nobody from what the folder has.
                    self._known[number] = kept
                    return kept
                self._want(number)
                if (left := gives_up_at - self._clock()) <= 0:
                    raise NotYetError(self._complaint(number))
                self._changed.wait(left)

    def _complaint(self, number: int) -> str:
        if self._away is None:
            return f"schema {number} is asked for at {', '.join(self._options.urls)}"
        return f"the schema registry does not give schema {number}: {self._away}"

    def _want(self, number: int) -> None:
        if number not in self._wanted:
            self._wanted[number] = self._clock()
            self._changed.notify_all()
        if self._thread is None:
            # A daemon: a request that hangs holds no shutdown up.
            self._thread = threading.Thread(target=self._run, name="registry", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause = _SHORTEST_S
        while True:
            number = self._next()
            try:
                found = self._client.schema(number)
            except Exception as error:  # noqa: BLE001 - nothing may end the thread: all records would wait for ever
                self._note_away(number, str(error) if isinstance(error, RegistryAwayError) else type(error).__name__)
                time.sleep(pause * _SPREAD.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_S)
                continue
            pause = _SHORTEST_S
            if found is not None:
                self._kept.keep_schema(number, found)
            self._settle(number, found)

    def _next(self) -> int:
        """Wait until a schema is due, and return its number."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._wanted)
                number = min(self._wanted, key=self._wanted.__getitem__)
                if (left := self._wanted[number] - self._clock()) <= 0:
                    return number
                self._changed.wait(left)

    def _settle(self, number: int, found: RegisteredSchema | None) -> None:
        with self._changed:
            if self._away is not None:
                log.warning("the schema registry answers again")
            self._away = None
            if found is None and number not in self._doubted:
                self._doubted.add(number)
                self._wanted[number] = self._clock() + _CONFIRM_S
                return
            del self._wanted[number]
            self._doubted.discard(number)
            if found is None:
                self._forget()
                self._missing[number] = self._clock()
            else:
                self._known[number] = found
            self._changed.notify_all()
        if found is None:
            log.warning("the schema registry has no schema %d: records of that number are set aside", number)
        else:
            log.info("schema %d is known", number, extra={"schema": number, "kind": found.kind})

    def _forget(self) -> None:
        """Drop what was missing long ago, so that records with random numbers take no memory."""
        now = self._clock()
        self._missing = {number: at for number, at in self._missing.items() if now - at < _FORGET_S}

    def _note_away(self, number: int, why: str) -> None:
        with self._changed:
            if self._away is None:
                log.warning("the schema registry is away, records wait for it: %s", why)
            self._away = why
            # Behind the others: it may be this one alone that the registry fails at.
            self._wanted[number] = self._clock()
