"""The figures of what an MLflow server is told. Pure; runs anywhere."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import Moment, PartFigures, counter


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowFigures(PartFigures):
    """What the server at mlflow.tracking_uri is told; left out where it is not set."""

    name: ClassVar = "mlflow"
    within: ClassVar = ""
    section: ClassVar = "Process"

    tracking_uri: str
    """Where the server is."""
    run: str | None = None
    """The id of the run there; left out before it is known."""
    sent: Annotated[int, counter("mlflow_logs", "Bad: it stands still for many times mlflow.interval.")] = 0
    """How often the server has taken scores and versions."""
    failed: Annotated[int, counter("mlflow_logs_failed", "Bad: it grows; /status says why.")] = 0
    """How often it has not; the scores of that time are missing there, and versions are registered later."""
    versions: Annotated[int, counter("mlflow_versions", "Bad: it stands still while versions are exported.")] = 0
    """Versions that this process has registered there."""
    sent_at: Moment | None = None
    """When the server took something last."""
    error: str | None = None
    """Why it did not take the newest; left out where it did."""
