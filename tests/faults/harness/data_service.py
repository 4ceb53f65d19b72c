"""A tf.data service of real processes: a dispatcher and workers, each of which can be killed and started again."""

import os
import re
import time
from pathlib import Path

from millrace.app.tools.local_broker.broker import free_port
from tests.faults.harness.fork_server import fork_trainer

_START_S = 120.0


class Server:
    """A dispatcher or a worker; its lines go to a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log, self._arguments = log, arguments
        self.start()

    def start(self) -> None:
        """Start it, behind what the file holds already."""
        self._began = self.log.stat().st_size if self.log.exists() else 0
        self.process = fork_trainer(["data-service", *self._arguments], Path.cwd(), os.environ, self.log)

    def said(self) -> str:
        """Return what it has written since it was started."""
        return self.log.read_bytes()[self._began :].decode(errors="replace")

    def wait_for(self, pattern: str) -> "re.Match[str]":
        """Wait until it has written something."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if (found := re.search(pattern, self.said())) is not None:
                return found
            assert self.process.alive, self.said()
            time.sleep(0.02)
        raise TimeoutError(f"no {pattern!r} in: {self.said()}")

    def kill(self) -> None:
        """End it as a power cut does."""
        self.process.kill()


class DataService:
    """A dispatcher and some workers."""

    def __init__(self, folder: Path, workers: int) -> None:
        folder.mkdir()
        self.dispatcher = Server(
            folder / "dispatcher", "dispatcher", "--port", str(free_port()), "--work-dir", str(folder / "jobs")
        )
        self.address = str(self.dispatcher.wait_for(r"serves on (grpc://\S+)\b")[1])
        self.workers = [
            Server(folder / f"worker-{number}", "worker", "--dispatcher", self.address, "--port", str(free_port()))
            for number in range(workers)
        ]
        for worker in self.workers:
            worker.wait_for(r"serves on localhost:\d+")

    def close(self) -> None:
        """End all."""
        for server in (self.dispatcher, *self.workers):
            server.kill()
