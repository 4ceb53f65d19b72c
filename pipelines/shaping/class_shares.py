"""How one class is balanced, for those who show it; TensorFlow is not imported here."""

from typing import NamedTuple


class ClassShares(NamedTuple):
    """How one class is balanced."""

    before: float
    """Its share of the stream, by the decayed counts; 0 before any was seen."""
    weight: float
    after: float
    """Its share of what is learnt."""
