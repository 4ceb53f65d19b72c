"""Read ahead: it draws the next element on its own thread while the caller is busy with the one before.

To draw an element takes Python's lock, and it wakes the threads that feed the dataset, which take the lock too. Drawn
between two calls, the trainer would wait for the lock several times, in total about 5 of 220 ms on 2 cores. Drawn
during a call, it does not wait.

Owns the thread `draw`. It draws one element ahead at most; with no element to draw the thread waits, and `take` waits
too. It ends with `close`, once the source of the elements has ended. The thread is a daemon, unlike the threads of an
executor: a dataset that hangs must not keep the process from ending.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Generic, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class Ahead(Generic[T]):
    """Keeps one element ahead of its caller. All methods are for one thread."""

    def __init__(self, draw: Callable[[], T], *, patience_s: float = 10.0) -> None:
        self._draw, self._patience_s = draw, patience_s
        self._requests: SimpleQueue[Future[T] | None] = SimpleQueue()
        self._drawn: Future[T] | None = None
        self._thread = threading.Thread(target=self._run, name="draw", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Begin to draw the next element; does nothing if one is drawn already."""
        if self._drawn is None:
            self._drawn = Future()
            self._requests.put(self._drawn)

    @property
    def ready(self) -> bool:
        """Whether the next element is drawn, so that `take` returns at once."""
        return self._drawn is not None and self._drawn.done()

    def wait(self, timeout_s: float) -> None:
        """Wait until the next element is drawn, for so long at most; returns at once where none is being drawn."""
        if self._drawn is not None:
            wait([self._drawn], timeout_s)

    def take(self) -> T:
        """Return the next element, drawn ahead or now. Raise the error that drawing it has raised."""
        if self._drawn is None:
            return self._draw()
        drawn, self._drawn = self._drawn, None
        return drawn.result()

    def close(self) -> None:
        """Drop the element drawn ahead, and wait until the thread has ended, for `patience_s` at most.

        A function of the user cannot be interrupted: if it takes longer, the thread is left behind, and the element
        that it returns at last is dropped.
        """
        self._requests.put(None)
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            log.warning(
                "preprocess still runs %g s after it was asked to end; its thread is left behind", self._patience_s
            )
        self._drawn = None

    def _run(self) -> None:
        while self._answer(self._requests.get()):
            pass

    def _answer(self, request: Future[T] | None) -> bool:
        """Draw one element for a request; return False for the request to end.

        This is a function of its own, so that the thread keeps no reference to an element while it waits.
        """
        if request is None:
            return False
        try:
            request.set_result(self._draw())
        except BaseException as error:  # noqa: BLE001 - for any error at all: `take` must not wait forever
            request.set_exception(error)
        return True
