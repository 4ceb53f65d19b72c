"""The stamp: what every answer carries."""

import time
from typing import TYPE_CHECKING, TypedDict

from app.monitoring.models import moment
from app.version import version

if TYPE_CHECKING:
    from app.monitoring.snapshot import Snapshot  # which loads TensorFlow, and not all who use errors need it


class Stamp(TypedDict):
    """As of when, of whom, by which version."""

    as_of: str
    name: str
    version: str


def stamp(snapshot: "Snapshot") -> Stamp:
    """The stamp of what a snapshot says."""
    return Stamp(as_of=moment(snapshot.at), name=snapshot.name, version=snapshot.version)


def stamp_now(name: str) -> Stamp:
    """The stamp of an answer that reads nothing: where a snapshot cannot be taken, this still can be given."""
    return Stamp(as_of=moment(time.time()), name=name, version=version())
