"""The stamp: what every answer contains."""

import time
from typing import TYPE_CHECKING, TypedDict

from millrace.app.version import version
from millrace.consumers.metric import moment

if TYPE_CHECKING:
    from millrace.app.monitoring.snapshot import Snapshot  # which loads TensorFlow, and not all who use errors need it


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
