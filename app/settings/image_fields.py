"""What a feature that is an image may be. Pure."""

from collections.abc import Sequence
from typing import Protocol

_DTYPES = ("uint8", "float32")
_CHANNELS = (1, 3)
_DIMENSIONS = 3
_NOTHING_FOR_IT = ("missing", "min", "max", "one_of", "pad", "length", "example", "ragged")


class _Image(Protocol):
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Sequence[int]: ...


def image_fault(settings: _Image) -> tuple[str, str] | None:
    """Return which setting of an image is wrong, and why; None where none is."""
    if len(settings.shape) != _DIMENSIONS or settings.shape[2] not in _CHANNELS:
        return "shape", "an image has [height, width, channels], with 1 channel or 3; write that"
    if settings.dtype not in _DTYPES:
        return "dtype", f"pixels are from 0 to 255, and this is {settings.dtype}; write uint8, or float32"
    others = [key for key in _NOTHING_FOR_IT if getattr(settings, key) not in {None, False}]
    return (others[0], "this is nothing for an image; leave it out") if others else None
