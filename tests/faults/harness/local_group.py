"""A group that `millrace local group` runs: one command, whose workers are known by what it prints."""

import json
import subprocess
from pathlib import Path
from typing import Any, Self

from millrace.app.tools.child_process import millrace_command, python_environment
from tests.faults.harness.group import WhatAGroupLearns
from tests.faults.harness.project import Project
from tests.faults.harness.topics import Topic

_WITHIN_S = 90.0
_TAIL_BYTES = 8000


class LocalGroup(WhatAGroupLearns):
    """The command, started. A context manager: if it still runs at the end, it is killed, and its workers with it."""

    def __init__(self, path: Path, topic: Topic, *arguments: str, **sections: Any) -> None:
        self.project = Project(path / "project", topic, **sections)
        super().__init__(topic, self.project.folder)
        self._output, self.log = path / "group.out", path / "group.log"
        command = millrace_command(["local", "group", "-c", str(self.project.config), "--json", *arguments])
        with self._output.open("wb") as output, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=path, env=python_environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=log
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.process.kill()
        self.process.wait(_WITHIN_S)

    def started(self) -> list[dict[str, Any]]:
        """Return each start of a worker so far."""
        return [json.loads(line) for line in self._output.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def tails(self) -> str:
        """Return the end of the command's log, which has those of all workers in it."""
        return self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
