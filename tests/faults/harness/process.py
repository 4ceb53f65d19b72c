"""A real `millrace run` in a process of its own: started, asked, killed by its id."""

from app.tools.prove.trainer_process import ROOT
from app.tools.prove.trainer_process import Run as AnyRun
from tests.faults.harness.project import Project

__all__ = ["ROOT", "Run"]


class Run(AnyRun):
    """A process of a project's trainer."""

    def __init__(self, project: Project, *arguments: str, failpoints: str = "") -> None:
        super().__init__(project, *arguments, failpoints=failpoints)
        self.project = project
