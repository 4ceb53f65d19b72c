"""How many bad records are a flood. Loads nothing, so that the settings can name it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodOptions:
    """How many bad records are a flood."""

    share: float
    """More than this share of the records."""
    over_s: float
    """The time over which they are counted, seconds."""
