"""`mlflow`: the server that is told how the model learns."""

from typing import Annotated

from pydantic import AfterValidator, Field

from millrace.app.settings.sections.http_url import url_of
from millrace.consumers.section import Section
from millrace.consumers.units import Duration

_url = url_of("server", "http://mlflow:5000", "set MLFLOW_TRACKING_USERNAME and _PASSWORD instead")


class MlflowSettings(Section):
    """An MLflow server."""

    tracking_uri: Annotated[str, AfterValidator(_url)] | None = Field(
        None,
        description="The MLflow server that gets the live scores by time, and each version in export.path as a version "
        "of a registered model. It needs the extra `mlflow` (docs/install.md); the login is in MLflow's own variables, "
        "as MLFLOW_TRACKING_TOKEN. Null: nothing is sent, and MLflow is not loaded.",
        examples=["http://mlflow:5000"],
    )
    experiment: str = Field(
        "millrace", min_length=1, max_length=500, description="The experiment of the run; it is made if it is missing."
    )
    interval: Duration = Field(60.0, ge=1, description="How often scores are sent, and versions looked for.")
