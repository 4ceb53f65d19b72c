"""How long each stage of reading files takes, in seconds of its threads, which work beside each other.

Any thread adds to it. Reading and decoding are measured always, a chunk of rows at a time, which costs nothing to speak
of; the order and `preprocess` only if a profile is taken, since the graph then has clocks.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeVar

Stage = Literal["reading", "decoding", "shuffling", "preprocess"]
T = TypeVar("T")


class StageTimes:
    """The seconds of each stage."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = Counter[Stage]()

    def add(self, stage: Stage, seconds: float) -> None:
        """Add to a stage."""
        with self._lock:
            self._seconds[stage] += seconds  # type: ignore[assignment]  # typeshed counts in integers

    @contextmanager
    def of(self, stage: Stage) -> Iterator[None]:
        """Add the time that is spent inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - began)

    def drawn(self, stage: Stage, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; add the time that each takes to come."""
        iterator = iter(items)
        while True:
            with self.of(stage):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def seconds(self) -> Mapping[Stage, float]:
        """Return the seconds of the stages that took any, so far."""
        with self._lock:
            return dict(self._seconds)
