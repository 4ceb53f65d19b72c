"""Window columns: the sequences of rows as a column, made where they are copied into a block and not before.

Rows of one chunk share most of their records, so a chunk that waits takes the memory of its records, not of its rows.
Pure; numpy only.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s
from millrace.pipelines.schema import Column


class WindowColumn:
    """A column whose rows are consecutive elements of another one."""

    def __init__(self, source: Column, newest: Int64s, length: int) -> None:
        self._first, self._shape, self._dtype = newest - (length - 1), (length, *source.shape[1:]), source.dtype
        if source.dtype.hasobject:
            windows = np.lib.stride_tricks.sliding_window_view(source, length, axis=0)
            self._windows: Column = np.moveaxis(windows, -1, 1)
        else:
            # A sequence lies in one piece, so as one element of that many bytes it is copied at once.
            row = source.nbytes // len(source)
            piece = np.ndarray(len(source) - length + 1, f"V{length * row}", source.data, 0, (row,))
            self._windows = piece

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, rows: Any) -> Column:
        """Return these rows."""
        taken: Column = self._windows[self._first[rows]]
        if not self._dtype.hasobject:
            taken = taken.view(self._dtype).reshape(-1, *self._shape)
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Column:
        """Return all rows."""
        return np.asarray(self[:], dtype)


class GapColumn:
    """The seconds of each record of a row's sequence since the one before it; 0 for the first, and for filling."""

    def __init__(self, times: WindowColumn, lengths: Int64s, length: int) -> None:
        self._times, self._lengths, self._length = times, lengths, length

    def __len__(self) -> int:
        return len(self._times)

    def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
        """Return these rows."""
        times = self._times[rows].astype(np.int64, copy=False)
        gaps = np.zeros(times.shape, np.float32)
        gaps[:, 1:] = np.diff(times, axis=1) / 1000
        gaps[np.arange(self._length) <= self._length - self._lengths[rows, None]] = 0
        return gaps

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Column:
        """Return all rows."""
        return np.asarray(self[:], dtype)
