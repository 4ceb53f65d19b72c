"""Disturbances: what goes wrong around a trainer for a while, and is mended again. The trainer has to live with it.

Each is a class with a name, and counts its hits. One that has hit nothing shows nothing: such a run is invalid.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Disturbance(Protocol):
    """Something that goes wrong, and is mended."""

    @property
    def hits(self) -> int:
        """How often it has struck, as seen by whoever strikes."""
        ...

    def begin(self) -> None:
        """Let it go wrong; returns when it has."""
        ...

    def heal(self) -> None:
        """Mend it; returns when it is mended."""
        ...


D = TypeVar("D", bound=Disturbance)


@contextmanager
def disturbed(disturbance: D) -> Iterator[D]:
    """Keep something wrong inside the block, and mend it after; AssertionError where it has hit nothing."""
    print(disturbance)  # noqa: T201 - with its seed, where it has one: by it a failed run is repeated
    disturbance.begin()
    try:
        yield disturbance
    finally:
        disturbance.heal()
    assert disturbance.hits, f"{disturbance} has hit nothing, so this run shows nothing"
