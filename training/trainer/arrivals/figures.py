"""The figures of the score on arrival. Pure; runs anywhere, without TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import NoMetric, PartFigures, counter, gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalFigures(PartFigures):
    """With `labels.score_on_arrival`: how well records were predicted when they came, before their labels."""

    name: ClassVar = "on_arrival"
    within: ClassVar = "training"
    section: ClassVar = "Live metrics"

    share: Annotated[float, NoMetric("is a setting")]
    """The share of the records that is predicted when it comes."""
    values: Annotated[
        Mapping[str, float],
        gauge("arrival_value", "Bad: far worse than millrace_live_value, as what is served knows less.", "metric"),
    ]
    """The score over the window of what was predicted when records came, by compiled metric; none before the first."""
    records: Annotated[int, gauge("arrival_records", "Bad: few; the values then say little.")]
    """Records scored so in the window."""
    scored: Annotated[int, counter("arrival_scored", "Bad: it stands still while records are learnt.")]
    """Records scored so since checkpoint number 0; a rewind goes back."""
    missed: Annotated[int, counter("arrival_missed", "Bad: it grows while the trainer runs; the log says why.")]
    """Records of the sample that were learnt without a prediction, as they came while the trainer was away."""
    expected: Annotated[
        Mapping[str, float],
        gauge("arrival_expected", "Bad: far worse than millrace_arrival_value: what comes now is harder.", "metric"),
    ]
    """An estimate: what the predictions that wait for labels will have scored, by how often such answers came true in
    the window; `accuracy`, and `log_loss` of an event. None of numbers, and before a hundred labels."""
    waiting: Annotated[int, gauge("arrival_waiting", "Bad: it grows for ever.")]
    """Predictions that wait for the label of their record."""
