"""What all answers are made of: the stamp, times, rounded numbers, and the shapes' base. Pure."""

import time
from typing import TYPE_CHECKING, Annotated, TypedDict

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from millrace.app.version import version
from millrace.consumers.metric import moment

if TYPE_CHECKING:
    from millrace.app.monitoring.snapshot import Snapshot  # which loads TensorFlow, and not all who use errors need it


def event_moment(time_ms: int) -> str:
    """Return an event time as ISO 8601, or as a number where a record claims one that no calendar has."""
    try:
        return moment(time_ms / 1000)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms since 1970"


Moment = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else moment(value))]
"""A time in an answer: seconds since 1970 become ISO 8601, and text, as in an answer that is read back, stays."""
Tenths = Annotated[float, AfterValidator(lambda value: round(value, 1))]
"""A number that is rounded to one decimal."""
Thousandths = Annotated[float, AfterValidator(lambda value: round(value, 3))]
"""A number that is rounded to three decimals, such as seconds to milliseconds."""


class Shape(BaseModel):
    """A part of an answer.

    Where a field holds a shape, it also takes any object with the attributes of that shape, so frozen dataclasses
    become parts of answers without being copied field by field. The text below a field is its description in the
    OpenAPI document.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True, use_attribute_docstrings=True)


class Answer(Shape):
    """What every answer carries."""

    as_of: str
    """When this was read: ISO 8601, UTC."""
    name: str
    """The config's name."""
    version: str
    """millrace's version."""


class Stamp(TypedDict):
    """The time, the config's name and the version."""

    as_of: str
    name: str
    version: str


def stamp(snapshot: "Snapshot") -> Stamp:
    """Return the stamp of an answer out of this snapshot."""
    return Stamp(as_of=moment(snapshot.at), name=snapshot.name, version=snapshot.version)


def stamp_now(name: str) -> Stamp:
    """Return the stamp of an answer without a snapshot, such as an error document."""
    return Stamp(as_of=moment(time.time()), name=name, version=version())
