"""Sizes, ages, values and lists in short, for people; programs get the exact ones in JSON. Pure."""

from collections.abc import Sequence

_SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_READABLE = 1e9
_AGES = (("days", 86_400, 172_800), ("h", 3600, 7200), ("min", 60, 120))


def rounded_size(count: float) -> str:
    """Write bytes with one decimal in the largest unit that fits, as in 3.6 MB."""
    for unit, size in _SIZES:
        # From 999.95 on, one decimal would show a thousand of the smaller unit.
        if count >= size * 0.99995:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def rounded_value(value: float, digits: int = 3) -> str:
    """Write a metric's value with so many digits, and with all before the point where an exponent would stand."""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text and abs(value) < _READABLE else text


def rounded_age(seconds: float) -> str:
    """Write an age as the page does, as in 40 s, 3 min, 26 h or 5 days."""
    for unit, size, least in _AGES:
        if seconds >= least:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def cut_list(names: Sequence[str], most: int, between: str = ", ", of: str = "") -> str:
    """Write so many of the names, and how many more there are, as in `a, b and 3 more`; `of` says of what."""
    more = f" and {len(names) - most} more{of and f' {of}'}" if len(names) > most else ""
    return between.join(names[:most]) + more
