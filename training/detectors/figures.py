"""The figures of the detectors. Pure; runs anywhere, without TensorFlow."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import PartFigures, counter


@dataclass(frozen=True, slots=True)
class DetectorFigures(PartFigures):
    """With `training.detectors`: what each has marked."""

    name: ClassVar = "detectors"
    within: ClassVar = None
    per: ClassVar = "detector"

    marks: Annotated[int, counter("detector_marks", "Bad: it grows; the stream changes, /events says how.")]
    """Changes that a detector has marked since the start of the process."""
