"""What the fields were like in each hour of event time of the last week, in some kilobytes an hour.

An hour is made of up to 16 of its windows, evenly spread: as more come, every second one is dropped. When it is over,
each field's portrait is kept as compressed JSON, under its name, so that hours outlive a change of the fields. What
takes more than `MOST_BYTES` in all is forgotten, the oldest first. Used on the trainer's thread; the hours that are
kept do not change, so any thread may read them.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from millrace.pipelines.schema import Column
from millrace.training.trainer.inputs.distances import Digest, Reference
from millrace.training.trainer.inputs.portraits import LEVELS, Portrait

HOUR_MS = 3_600_000
DAY, WEEK = 24, 7 * 24
MOST_BYTES = 8 << 20
_WINDOWS = 16
_SHARES = (0, 0.02, 0.05, 0.1, 0.175, 0.25, 0.325, 0.4, 0.5, 0.6, 0.675, 0.75, 0.825, 0.9, 0.95, 0.98, 1)
"""Parts of the numbers by whose bounds they are kept."""
_TOP, _LONGEST = 8, 60
Hours = Mapping[int, bytes]
"""By the number of the hour since 1970."""


class HoursOfInputs:
    """The hours of one model's records."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.kept: Hours = {}
        self._hour: int | None = None
        """The one that is not over, how many windows it has had, and of which windows something is held."""
        self._windows = 0
        self._digests: list[Digest] = []
        self._every = 1

    def add(self, digest: Digest, at_ms: int, names: Sequence[str], numbers: int) -> None:
        """Add a window; of the fields `names` so many are numbers, and come first.

        One of an earlier hour is late, as the partitions are apart, and changes nothing. Later than a week it is none:
        then the open hour was one that a wrong clock has claimed.
        """
        hour = at_ms // HOUR_MS
        if hour in self.kept or (self._hour is not None and 0 < self._hour - hour <= WEEK):
            return
        if hour != self._hour:
            self._close(names, numbers)
            self._hour, self._windows, self._digests, self._every = hour, 0, [], 1
        if self._windows % self._every == 0:
            if len(self._digests) == _WINDOWS:
                self._digests, self._every = self._digests[::2], 2 * self._every
            if self._windows % self._every == 0:
                self._digests.append(digest)
        self._windows += 1

    def _close(self, names: Sequence[str], numbers: int) -> None:
        if self._hour is None or not self._digests:
            return
        reference = Reference(self._digests)
        fields = {name: _short(Portrait.of_reference(reference, numbers, at)) for at, name in enumerate(names)}
        # A new mapping, as others read the one before.
        kept = {**self.kept, self._hour: zlib.compress(json.dumps(fields).encode(), 1)}
        hours = sorted(kept)[-WEEK - 1 :]
        while sum(len(kept[hour]) for hour in hours) > MOST_BYTES:
            hours = hours[1:]
        self.kept = {hour: kept[hour] for hour in hours}

    def arrays(self) -> dict[str, Column]:
        """Return all as arrays of a checkpoint."""
        found: dict[str, Column] = {
            "hours.at": np.array([*self.kept], np.int64),
            "hours.sizes": np.array([*map(len, self.kept.values())], np.int64),
            "hours.fields": np.frombuffer(b"".join(self.kept.values()), np.uint8),
            "hours.open": np.array([-1 if self._hour is None else self._hour, self._windows, self._every]),
        }
        for at, one in enumerate(self._digests):
            found |= one.arrays(f"hours.{at}")
        return found

    def load(self, arrays: Mapping[str, Any], texts: int | None) -> None:
        """Take back what `arrays` has returned.

        `texts` is the number of columns that are texts; None where the open hour is one of other fields.
        """
        self.clear()
        if "hours.at" not in arrays:
            return
        kept = dict[int, bytes]()
        blobs, end = np.asarray(arrays["hours.fields"], np.uint8).tobytes(), 0
        for hour, size in zip(arrays["hours.at"].tolist(), arrays["hours.sizes"].tolist(), strict=True):
            kept[int(hour)] = blobs[end : end + size]
            end += size
        self.kept = kept
        if texts is None:
            return
        hour, self._windows, self._every = map(int, arrays["hours.open"])
        self._hour = None if hour < 0 else hour
        while f"hours.{len(self._digests)}.points" in arrays:
            self._digests.append(Digest.of_arrays(f"hours.{len(self._digests)}", arrays, texts))


def portrait_in(hour: bytes, field: str) -> Portrait | None:
    """Return what a field was like in an hour; None if it was not watched then."""
    fields = json.loads(zlib.decompress(hour))
    return _long(fields[field]) if field in fields else None


def _short(portrait: Portrait) -> dict[str, Any]:
    """Return a portrait in few bytes, as JSON values."""
    bounds = portrait.bounds and np.interp(_SHARES, np.linspace(0, 1, len(portrait.bounds)), portrait.bounds)
    top = [(value[:_LONGEST].decode("latin-1"), _digits(share)) for value, share in [*portrait.top.items()][:_TOP]]
    return {
        "missing": _digits(portrait.missing),
        "distinct": portrait.distinct,
        "bounds": [_digits(one) for one in bounds],
        "mean": None if portrait.mean is None else _digits(portrait.mean),
        "top": dict(top),
        "length": portrait.length,
    }


def _long(found: Mapping[str, Any]) -> Portrait:
    portrait = Portrait.of_json(found)
    if not portrait.bounds:
        return portrait
    levels = np.linspace(0, 1, LEVELS + 1)
    return Portrait.of_json({**found, "bounds": np.interp(levels, _SHARES, portrait.bounds).tolist()})


def _digits(value: float) -> float:
    return float(f"{value:.6g}")
