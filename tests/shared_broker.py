"""One broker for all lanes of xdist: the controller starts it when the first lane wants it, and ends it after the last.

Lanes and controller meet in a folder: a lane leaves the file `wanted` there and waits for `address`, or for `failed`
with what kept the broker from starting.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event, Thread

Start = Callable[[Path], AbstractContextManager[str]]
"""Starts a broker that keeps its files in this folder, gives its address, and ends it."""
_TICK_S = 0.05
_STARTED_WITHIN_S = 240.0
_ENDED_WITHIN_S = 60.0


class SharedBroker:
    """The controller's side. Owns the thread that starts and ends the broker, which would die with any shorter one."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.folder = folder
        self._start = start
        self._ending = Event()
        self._thread = Thread(target=self._serve, name="shared-broker", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the broker where it was started, and the thread."""
        self._ending.set()
        self._thread.join(_ENDED_WITHIN_S)

    def _serve(self) -> None:
        while not (self.folder / "wanted").exists():
            if self._ending.wait(_TICK_S):
                return
        try:
            with self._start(self.folder / "broker") as address:
                _write(self.folder / "address", address)
                self._ending.wait()
        except Exception as error:  # noqa: BLE001 - told to the lanes, whose tests fail by it
            _write(self.folder / "failed", f"{type(error).__name__}: {error}")


def address_of(folder: Path, within_s: float = _STARTED_WITHIN_S) -> str:
    """Ask for the shared broker, from a lane; return its address when it takes connections."""
    (folder / "wanted").touch()
    deadline = time.monotonic() + within_s
    while not (folder / "address").exists():
        if (folder / "failed").exists():
            raise RuntimeError(f"the shared broker did not start: {(folder / 'failed').read_text()}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the shared broker did not start within {within_s:g} s")
        time.sleep(_TICK_S)
    return (folder / "address").read_text()


def _write(path: Path, text: str) -> None:
    """Write the file as a whole: a reader that sees it sees all of it."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)
