"""The figures of the inputs. Pure; runs anywhere, without TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import PartFigures, counter, gauge

NAME = "inputs"
CHANGED = "inputs.changed"
"""What a condition of exports may ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFigures(PartFigures):
    """Whether the fields of the records are as they were; `GET /data` says more."""

    name: ClassVar = NAME
    within: ClassVar = None
    section: ClassVar = "Live metrics"

    marks: Annotated[int, counter("input_marks", "Bad: it grows; /events says which field, and how.")]
    """Changes of the records that were marked since the start of the process; fields that change together are one."""
    changed: Annotated[int, gauge("input_changed_fields", "Bad: above 0; /data says which.")]
    """Fields that have changed within the last hour, and are not as before again."""
    distance: Annotated[
        Mapping[str, float], gauge("input_distance", "Bad: far above what it usually is for the field.", "field")
    ]
    """How far the newest window of a field lies from those before, as a difference of shares, from 0 to 1."""
    missing: Annotated[Mapping[str, float], gauge("input_missing", "Bad: it rises.", "field")]
    """The share of records of the newest window that lack the field, or hold what stands for a missing one."""
