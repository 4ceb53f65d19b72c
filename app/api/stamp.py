"""The stamp: what every answer carries."""

from typing import TypedDict

from app.api.models import moment
from app.api.snapshot import Snapshot


class Stamp(TypedDict):
    """As of when, of whom, by which version."""

    as_of: str
    name: str
    version: str


def stamp(snapshot: Snapshot) -> Stamp:
    """The stamp of what a snapshot says."""
    return Stamp(as_of=moment(snapshot.at), name=snapshot.name, version=snapshot.version)
