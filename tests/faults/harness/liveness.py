"""A liveness probe, as a cluster would send it: what it is answered, all the while."""

import http.client
import threading
from collections import Counter
from types import TracebackType
from typing import Self

from tests.faults.harness.process import Run

_EVERY_S = 0.25
_WITHIN_S = 100.0
NO_ANSWER = 0


class LivenessProbe:
    """Asks /livez a few times a second. A context manager; owns the thread `livez`."""

    def __init__(self, run: Run) -> None:
        self.answers: Counter[int] = Counter()
        """By status; 0 where nobody answered."""
        self._run = run
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="livez")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_WITHIN_S)

    def _ask(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                self.answers[self._run.ask("GET", "/livez")[0]] += 1
            except (OSError, http.client.HTTPException):
                self.answers[NO_ANSWER] += 1
