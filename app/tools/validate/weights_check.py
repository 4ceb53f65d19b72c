"""The check of the weights that a first start begins with: what is kept, new and dropped. Changes nothing."""

from collections.abc import Iterator

from millrace.app.service.first_weights import weight_table
from millrace.app.settings import Settings
from millrace.app.tools.validate.check import CheckResult, fail, ok, skip, warn
from millrace.consumers.errors import MillraceError
from millrace.training.model.learner import Learner

_NAME = "initial weights"


def weights_checks(settings: Settings, learner: Learner | None, resumes_from: int | None) -> Iterator[CheckResult]:
    """Compare the model with model.initial_weights, where that is set; a resume takes none of them."""
    source = settings.model.initial_weights
    if source is None:
        return
    if resumes_from is not None:
        yield ok(_NAME, f"{source} is ignored, as the next start resumes from checkpoint {resumes_from}")
        return
    if learner is None:
        yield skip(_NAME, "there is no model to compare them with")
        return
    try:
        table = weight_table(settings, source, learner)
    except MillraceError as error:
        yield fail(_NAME, error)
        return
    found = "; ".join([table.summary(), *table.lines()])
    yield warn(_NAME, found) if table.by_order else ok(_NAME, found)
