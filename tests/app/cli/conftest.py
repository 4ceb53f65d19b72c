"""Commands as they are typed, in this process: arguments in, exit code and both streams out."""

import io
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pytest

from millrace.app.cli import main


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


class Typed(Protocol):
    def __call__(self, *arguments: str, given: bytes = b"") -> Done: ...


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Typed]:
    """Run a command as the console script does; `given` is its standard input."""

    def run(*arguments: str, given: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["millrace", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield run
    for number, handler in handlers.items():  # `millrace run` handles them from its first moment
        signal.signal(number, handler)
