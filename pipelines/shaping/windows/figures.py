"""The figures of windows. Pure; runs anywhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import PartFigures, gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFigures(PartFigures):
    """With `windows`: what is held of the keys, over all partitions, at what is settled; as much is held ahead."""

    name: ClassVar = "windows"
    within: ClassVar = "training"

    keys: Annotated[int, gauge("window_keys", "Bad: far fewer than the keys that are active.")]
    """Keys whose last records `windows` holds."""
    bytes: Annotated[int, gauge("window_bytes", "Bad: as much as windows.max_bytes for each partition.")]
    """The most memory that these records take."""
    evicted: Annotated[
        Mapping[str, int],
        gauge("window_evicted_keys", "Bad: it grows as fast as records come; then sequences are short.", "reason"),
    ]
    """How often a key has made room for another, in this history; full: windows.max_bytes was reached."""
