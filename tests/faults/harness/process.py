"""A real `millrace run` in a process of its own: started, asked, killed by its id."""

from functools import partial

from millrace.app.tools.prove.trainer_process import ROOT, start_python
from millrace.app.tools.prove.trainer_process import Run as AnyRun
from tests.faults.harness.fork_server import fork_trainer
from tests.faults.harness.project import Project

__all__ = ["ROOT", "Run"]


class Run(AnyRun):
    """A process of a project's trainer: forked from a server that has imported it, or `cold`, as users start it.

    A worker of a group is replaced by another fork when it begins again, or with `cold_again` by a Python, as users'.
    """

    def __init__(
        self, project: Project, *arguments: str, failpoints: str = "", cold: bool = False, cold_again: bool = False
    ) -> None:
        launch = start_python if cold else partial(fork_trainer, cold_again=cold_again)
        super().__init__(project, *arguments, failpoints=failpoints, launch=launch)
        self.project = project
