"""Durations, sizes and whole numbers as people write them: `500ms`, `256MiB`, `17`.

Owns the parsing, the writing back, and the pydantic types whose values are seconds (float) and bytes (int). A number
without a unit is refused, because a reader would have to guess the unit.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

DURATIONS: Mapping[str, Decimal] = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
SIZES: Mapping[str, Decimal] = {
    "B": Decimal(1),
    "kB": Decimal(10**3),
    "KB": Decimal(10**3),
    "KiB": Decimal(2**10),
    "MB": Decimal(10**6),
    "MiB": Decimal(2**20),
    "GB": Decimal(10**9),
    "GiB": Decimal(2**30),
    "TB": Decimal(10**12),
    "TiB": Decimal(2**40),
}
_MEANT: Mapping[str, Sequence[str]] = {
    "ms": ("msec", "msecs", "millis", "millisecond", "milliseconds"),
    "s": ("sec", "secs", "second", "seconds"),
    "m": ("min", "mins", "minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
    "B": ("byte", "bytes"),
    "KiB": ("k", "ki"),
    "MiB": ("m", "mi"),
    "GiB": ("g", "gi"),
    "TiB": ("t", "ti"),
}
"""What people write for a unit, in small letters."""
_MANY_BYTES = 10**6
"""A size of as many without a unit is one in bytes."""
_QUANTITY = re.compile(r"\s*(?P<number>\d{1,20}(?:\.\d{1,40})?)\s*(?P<unit>[A-Za-z%]*)\s*", re.ASCII)
_PERCENT = re.compile(r"\s*(?P<number>\d{1,20}(?:\.\d{1,40})?)\s*%\s*", re.ASCII)
_LONGEST_NUMBER = 19
"""As many digits as the largest 64-bit integer has. Python refuses to parse some thousands."""
_EXACT = Context(prec=100)
"""Enough for the longest number that the pattern lets in, times the largest unit."""


def whole_number(text: str) -> int | None:
    """Parse the digits of a number, such as an offset; None for other text, and for more digits than 64 bits have."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER else None


def parse_duration(text: object) -> float:
    return float(_quantity(text, "duration", DURATIONS, hint="s"))


def format_duration(seconds: float) -> str:
    """Write seconds in the largest unit that divides them; `parse_duration` reads exactly them back."""
    return _write(Decimal(repr(float(seconds))), DURATIONS, smallest="s")


def parse_size(text: object) -> int:
    """Read a size as bytes."""
    size = _quantity(text, "size", SIZES, hint="MiB")
    if size != size.to_integral_value():
        raise ValueError(f"{text!r} is not a whole number of bytes; write a size such as 256MiB")
    return int(size)


def parse_share(value: object) -> object:
    """Read a share that is written as percent as the number that it stands for; leave anything else as it is."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    return value if match is None else float(Decimal(match["number"]) / 100)


def format_size(size: int) -> str:
    """Write bytes in the largest unit that divides them; `parse_size` reads exactly them back."""
    return _write(Decimal(size), SIZES, smallest="B")


def _quantity(text: object, kind: str, units: Mapping[str, Decimal], hint: str) -> Decimal:
    """Return the number times its unit; raise ValueError with the units that there are."""
    known = ", ".join(units)
    match = _QUANTITY.fullmatch(str(text)) if isinstance(text, str | int | float) else None
    if isinstance(text, bool) or match is None:
        shown = repr(text) if isinstance(text, str | int | float) else f"a {type(text).__name__}"
        raise ValueError(f"{shown} is not a {kind}; write a number and a unit ({known}), as in 60{hint}")
    number, unit = match["number"], match["unit"]
    if not unit:
        meant = "B" if "B" in units and Decimal(number) >= _MANY_BYTES else hint
        raise ValueError(f"{text} has no unit; write {number}{meant}, or another of {known}")
    if unit not in units:
        small = unit.lower()
        guess = next((one for one in units if small == one.lower() or small in _MEANT.get(one, ())), None)
        advice = f"a number and one of them, as in 60{hint}" if guess is None else f"for instance {number}{guess}"
        raise ValueError(f"{text!r} has a unit that is not one of {known}; write {advice}")
    return _EXACT.multiply(Decimal(match["number"]), units[match["unit"]])


def _write(number: Decimal, units: Mapping[str, Decimal], smallest: str) -> str:
    for unit, factor in sorted(units.items(), key=lambda item: item[1], reverse=True):
        count = _EXACT.divide(number, factor)
        if count and count == count.to_integral_value() and _EXACT.multiply(count, factor) == number:
            return f"{count:.0f}{unit}"
    return f"{_EXACT.divide(number, units[smallest]).normalize(_EXACT):f}{smallest}"


def _unit_type(kind: str, units: Mapping[str, Decimal], example: str) -> dict[str, Any]:
    pattern = rf"^\s*\d+(\.\d+)?\s*({'|'.join(units)})\s*$"
    return {"type": "string", "format": kind, "pattern": pattern, "examples": [example]}


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(_unit_type("duration", DURATIONS, "60s")),
]
"""Seconds, written as `60s`."""
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, return_type=str),
    WithJsonSchema(_unit_type("size", SIZES, "256MiB")),
]
"""Bytes, written as `256MiB`."""
Share = Annotated[
    float,
    BeforeValidator(parse_share),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*%\s*$"}]}),
]
"""A share, written as `0.2` or `20 %`."""
