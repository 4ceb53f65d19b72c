"""A trainer that several tests share, one after the other: a start costs more than most of them."""

from types import TracebackType
from typing import Self

from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.topics import Topic


class SharedTrainer:
    """A topic, and a process that learns from it; started when first asked for, and anew where a test has ended it.

    A context manager: what is left of it at the end is killed.
    """

    def __init__(self, project: Project, topic: Topic) -> None:
        self.project, self.topic = project, topic
        self._run: Run | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._run is not None:
            self._run.kill()

    @property
    def run(self) -> Run:
        """The process."""
        assert self._run is not None
        return self._run

    def make_ready(self) -> None:
        """Make sure that it runs and takes commands."""
        if self._run is None or not self._run.alive:
            self._run = Run(self.project)
        self._run.wait_for(self._run.ready, "it was ready")
