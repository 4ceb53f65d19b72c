"""The figures of slices, and the worst of them. Pure; runs anywhere, without TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import PartFigures, Reported, gauge

NAME = "slices"
WORST = "worst_slice"
_FEWEST = 100
"""A slice of fewer records in the window is not the worst of an export's condition: chance alone may make it so."""
HIGHER_IS_BETTER = {"auc": True, "accuracy": True, "log_loss": False, "mae": False, "rmse": False}
"""The scores that have a better and a worse; `bias` has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFigures(PartFigures):
    """With `records.slices`: each slice, as `country=DE`, the worst first.

    A score's interval has a probability of 95 %. The worst is the slice whose interval ends worst at its better end, so
    that few records by themselves put none in front.
    """

    name: ClassVar = NAME
    within: ClassVar = "training"
    section: ClassVar = "Live metrics"
    per: ClassVar = "slice"

    records: Annotated[int, gauge("slice_records", "Bad: 0 where records should come from.")]
    """Records of the slice in the window of the live metrics."""
    values: Annotated[Mapping[str, float], gauge("slice_value", "Bad: far worse than that of `all`.", "metric")]
    """The scores of the slice over the window; none of what its records do not tell."""
    lowest: Annotated[
        Mapping[str, float],
        gauge("slice_value_lowest", "Bad: above the value of `all`, where lower is better.", "metric"),
    ]
    """Where the interval of each score begins; none for a score without one."""
    highest: Annotated[
        Mapping[str, float],
        gauge("slice_value_highest", "Bad: below the value of `all`, where higher is better.", "metric"),
    ]
    """Where the interval of each score ends; none for a score without one."""
    cumulative: Annotated[
        Mapping[str, float],
        gauge("slice_cumulative_value", "Bad: better than millrace_slice_value for long.", "metric"),
    ]
    """The scores since checkpoint number 0; a rewind goes back."""
    cumulative_records: Annotated[int, gauge("slice_cumulative_records", "Bad: it stands still.")]
    """Records of the slice since checkpoint number 0; a rewind goes back."""


def worst_scores(figures: Reported | None) -> dict[str, float]:
    """Return the worst score of all slices with enough records, by name as a condition of exports has it."""
    found: dict[str, float] = {}
    for one in figures.values() if isinstance(figures, Mapping) else ():
        if isinstance(one, SliceFigures) and one.records >= _FEWEST:
            for name, value in one.values.items():
                if name in HIGHER_IS_BETTER:
                    worse = min if HIGHER_IS_BETTER[name] else max
                    place = f"{WORST}.{name}"
                    found[place] = worse(value, found.get(place, value))
    return found
