"""The figures of the calibration. Pure; runs anywhere, without TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import SHOWN, Float32, NoMetric, PartFigures, gauge


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Answers of about the same probability."""

    __pydantic_config__ = SHOWN

    records: int
    """How many there are."""
    predicted: Float32
    """The mean of the probabilities."""
    observed: Float32
    """The share of them for which what was predicted came true."""


@dataclass(frozen=True, slots=True)
class WorstRecord:
    """A record whose answer was far from its label."""

    __pydantic_config__ = SHOWN

    partition: str
    offset: int
    loss: Float32
    """The log loss of the answer; of numbers, how far it was from the label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFigures(PartFigures):
    """Whether the answers over the window of the live metrics are true; only what fits the labels is there.

    Each record counts once, whatever its weight. Left out for a model of several outputs, or with metrics of its own.
    """

    name: ClassVar = "calibration"
    within: ClassVar = "training"
    section: ClassVar = "Live metrics"

    answers: Annotated[int, NoMetric("is millrace_live_records, for a model of one output")]
    """Answers in the window: one for each record, and for each column where the label has several."""
    error: Annotated[
        float | None, gauge("calibration_error", "Bad: above 0.05; the probabilities are not to be relied upon.")
    ] = None
    """The expected calibration error: how far the probabilities are from what is observed, as a mean over the bins. Of
    classes, those of the answered class are meant."""
    cumulative_error: Annotated[
        float | None, gauge("calibration_cumulative_error", "Bad: far below millrace_calibration_error.")
    ] = None
    """The same since checkpoint number 0; a rewind goes back."""
    bins: tuple[CalibrationBin, ...] | None = None
    """Ten of about as many answers each, by ascending probability."""
    predicted: Annotated[
        Mapping[str, float] | None,
        gauge("calibration_predicted", "Bad: far from millrace_calibration_observed.", "of"),
    ] = None
    """How the answers are distributed: the mean probability (`1`), the share of each class, or quantiles of numbers."""
    observed: Annotated[
        Mapping[str, float] | None, gauge("calibration_observed", "Bad: far from what it has been.", "of")
    ] = None
    """How the labels of the same records are distributed."""
    confusion: Mapping[str, Mapping[str, int]] | None = None
    """How many records of each class were answered with which; the most frequent classes, and `other`."""
    residuals: Annotated[
        Mapping[str, float] | None,
        gauge("calibration_residual", "Bad: p50 is far from 0: most answers are too high, or too low.", "of"),
    ] = None
    """Quantiles of the answer less the label, to within 2 % of their value."""
    worst: tuple[WorstRecord, ...] | None = None
    """The ten records whose answers were furthest from their labels, the worst first."""
