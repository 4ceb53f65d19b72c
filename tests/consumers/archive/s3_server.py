"""A server of S3 on loopback, for tests: moto, in a process of its own, which can be away for a while.

    python -m tests.consumers.archive.s3_server

prints its port, and then obeys a line at a time: `away`, `back`. It ends with its standard input.
"""

import json
import logging
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

_ROOT = Path(__file__).parents[3]
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
FEW_ATTEMPTS = {"AWS_MAX_ATTEMPTS": "1"}


class S3Server:
    """The process, seen from a test."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=_ROOT,  # a test may have gone elsewhere before it asks for this
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find it."""
        return {**KEYS, **FEW_ATTEMPTS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def go_away(self) -> None:
        """Answer nobody from now on."""
        self._ask("away")

    def come_back(self) -> None:
        """Answer again, at the same port, with what was there."""
        self._ask("back")

    def _ask(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        assert self._answer() == self.port

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(json.loads(self._process.stdout.readline()))


def main() -> None:
    """Serve."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    print(port, flush=True)  # noqa: T201 - its answer
    away = False
    for line in sys.stdin:
        was_away, away = away, line.strip() == "away"
        if away and not was_away:
            server.stop()
        elif was_away and not away:
            server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
            server.start()
        print(port, flush=True)  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
