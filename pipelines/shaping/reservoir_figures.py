"""The figures of a reservoir, as the trainer posts them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReservoirFigures:
    """What a memory of the past holds."""

    rows: int
    size: int
    seen: int
    """Records that it is a sample of: all that were learnt since it began."""
    age: int
    """How many records were learnt since half of its rows were; half of what was seen, as the sample is uniform."""
