"""A series of numbers as one line of blocks. Pure."""

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_NOTHING = " "


def sparkline(values: Sequence[float | None], *, low: float, high: float, width: int) -> str:
    """Return the newest values as blocks, the last one rightmost; a missing value is a blank."""
    shown = values[-width:]
    return "".join(_block(value, low, high) for value in shown).rjust(width)


def _block(value: float | None, low: float, high: float) -> str:
    if value is None:
        return _NOTHING
    share = min(1.0, max(0.0, (value - low) / (high - low)))
    return _BLOCKS[round(share * (len(_BLOCKS) - 1))]
