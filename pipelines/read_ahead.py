"""Draws the next element on a thread of its own while the caller is busy with the one before.

Drawing takes Python's lock, and wakes all that feeds the dataset, which takes it too. Between two calls the trainer
would wait for it several times, some 5 of 220 ms on 2 cores; during a call it waits for nothing.

Owns the thread `draw`. One element at most is drawn ahead; with nothing to draw the thread waits, and so does whoever
takes. It ends by `close`, once what it draws from has ended. The thread is a daemon, which an executor's is not: a
dataset that hangs must not keep the process from ending.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class Ahead(Generic[T]):
    """One element ahead of its caller. All but the drawing is for one thread."""

    def __init__(self, draw: Callable[[], T], *, patience_s: float = 10.0) -> None:
        self._draw, self._patience_s = draw, patience_s
        self._orders: SimpleQueue[Future[T] | None] = SimpleQueue()
        self._drawn: Future[T] | None = None
        self._thread = threading.Thread(target=self._run, name="draw", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Draw the next one from now on."""
        if self._drawn is None:
            self._drawn = Future()
            self._orders.put(self._drawn)

    def take(self) -> T:
        """Give the next one, drawn ahead or now. Raises what drawing it has raised."""
        if self._drawn is None:
            return self._draw()
        drawn, self._drawn = self._drawn, None
        return drawn.result()

    def close(self) -> None:
        """Drop what was drawn; returns when nothing is drawn any more, or leaves behind what takes too long.

        A function of the user's cannot be cut short. What it comes to is dropped, whenever that is.
        """
        self._orders.put(None)
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            log.warning("preprocess is left behind: it took more than %g s after it was asked to end", self._patience_s)
        self._drawn = None

    def _run(self) -> None:
        while self._carried_out(self._orders.get()):
            pass

    def _carried_out(self, order: Future[T] | None) -> bool:
        """Apart from the loop, so that the thread holds on to no element while it waits."""
        if order is None:
            return False
        try:
            order.set_result(self._draw())
        except BaseException as error:  # noqa: BLE001 - whatever it is, whoever takes must not wait for ever
            order.set_exception(error)
        return True
