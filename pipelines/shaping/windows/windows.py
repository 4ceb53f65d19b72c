"""Windows: each record becomes a row with the sequence of its key's last records.

Owns what is remembered of each partition, as followed states, and its form in a checkpoint. Rows are made on the
generator's thread; all else is for the trainer's. What is remembered, and so its form, depends on the records alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Int64s
from millrace.pipelines.schema import Column, Schema
from millrace.pipelines.shaping.followed_states import FollowedShaper, Taken
from millrace.pipelines.shaping.windows.figures import WindowFigures
from millrace.pipelines.shaping.windows.key_windows import KEYS, Key, KeyWindows, Windows
from millrace.pipelines.shaping.windows.window_layout import TIMES, WindowLayout, WindowOptions, of_feature, of_label
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import Skipped

NAME = "windows"
COUNTS = "counts"


class WindowSettings(WindowOptions):
    """How records become sequences of the last ones of their key."""

    other_columns = True

    @property
    def used(self) -> bool:
        """Whether the settings ask for it."""
        return self.length is not None

    def row_schema(self, schema: Schema) -> Schema:
        """Return the schema of rows with sequences."""
        return WindowLayout(schema, self).shaped if self.used else schema

    def shaper(self, schema: Schema) -> "WindowShaper | None":
        """Return what shapes such rows; ConfigError if the settings do not fit them."""
        if self.used:
            return WindowShaper(WindowLayout(schema, self))
        if any(field.ahead for field in schema.labels):
            raise ConfigError("windows: a label is ahead of its records, which needs windows.length; write 1 or more")
        return None

    def without_effect(self) -> str | None:
        """Return a warning if sequences are described and none are made."""
        # An explicit null switches windows off and leaves the rest of them as it is.
        if "length" in self.model_fields_set or not self.model_fields_set:
            return None
        name = next(name for name in type(self).model_fields if name in self.model_fields_set)
        return (
            f"windows.{name} has no effect: it says how records become sequences, and none are made without a length; "
            "write length, the number of records of a sequence, or leave it out"
        )


class WindowShaper(FollowedShaper[KeyWindows]):
    """Makes rows with the sequence of their key's last records, which are followed as blocks are settled."""

    name = NAME
    setting = "windows"

    def __init__(self, layout: WindowLayout) -> None:
        super().__init__(lambda: KeyWindows(layout))
        self.layout = layout

    def made(self, decoded: Decoded, state: KeyWindows) -> tuple[Decoded, list[Skipped], Taken]:
        """Return the chunk with its rows made of sequences, and the records that give no row."""
        decoded = texts_cut(decoded, self.layout)
        taken = taken_of(decoded, self.layout)
        windows = state.cut(taken)
        rows = np.zeros(len(decoded), np.bool_)
        rows[windows.rows] = True
        left_out = [(int(offset), NAME) for offset in decoded.offsets[~rows]]
        return shaped(decoded, windows, self.layout), left_out, taken

    def figures(self) -> WindowFigures:
        """Return what is held just now, without waiting for what is settled and not taken in."""
        states = self._followed.states()
        return WindowFigures(
            keys=sum(len(state.slots) for state in states),
            bytes=sum(state.nbytes for state in states),
            evicted={"full": sum(state.evicted for state in states)},
        )

    def depends_on(self) -> dict[str, Any]:
        """Return the layout: what is held for another one is of other sequences."""
        return {"layout": self.layout.facts()}

    def written(self, state: KeyWindows) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return what is held of the keys of a partition."""
        keys, seen, columns = state.held()
        by = self.layout.options.by
        texts = any(field.name == by and field.dtype == "string" for field in self.layout.schema.features)
        # A column of texts holds objects.
        held = np.empty(len(keys), object if texts else np.int64)
        held[:] = keys
        return {COUNTS: seen, KEYS: held, **columns}, {"evicted": state.evicted}

    def read(self, state: KeyWindows, facts: Mapping[str, Any], column: Callable[[str, Sequence[int]], Column]) -> None:
        """Take over what was held of the keys of a partition."""
        state.evicted = int(facts["evicted"])
        held = {one.name: column(one.name, one.shape) for one in self.layout.held}
        keys: list[Key] = column(KEYS, ()).tolist()
        state.fill(keys, column(COUNTS, ()).astype(np.int64), held)

    def begins_anew(self, *, others: bool) -> str:
        """Say that every sequence begins anew."""
        return f"windows: the checkpoint holds {'others' if others else 'none'}, so every sequence starts empty"


class WindowColumn:
    """A column whose rows are consecutive elements of another one, made where they are copied into a block.

    Rows of one chunk share most of their records, so a chunk that waits takes the memory of its records, not of its
    rows.
    """

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

    def __init__(self, times: WindowColumn, lengths: Int64s) -> None:
        self._times, self._lengths = times, lengths

    def __len__(self) -> int:
        return len(self._times)

    def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
        """Return these rows."""
        return gaps_of(self._times[rows].astype(np.int64, copy=False), self._lengths[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Column:
        """Return all rows."""
        return np.asarray(self[:], dtype)


def gaps_of(times: Column, lengths: Int64s) -> npt.NDArray[np.float32]:
    """Return the seconds since the record before, of sequences of times that have these lengths."""
    gaps, length = np.zeros(times.shape, np.float32), times.shape[1]
    gaps[:, 1:] = np.diff(times, axis=1) / 1000
    gaps[np.arange(length) <= length - lengths[:, None]] = 0
    return gaps


def texts_cut(decoded: Decoded, layout: WindowLayout) -> Decoded:
    """Return the chunk with the texts that are held cut to their bound, noted as truncated."""
    most, truncated = layout.options.max_text, dict(decoded.truncated)
    features, labels = dict(decoded.features), dict(decoded.labels)
    texts = {one.name for one in layout.held if one.text}
    for columns, named in ((features, of_feature), (labels, of_label)):
        for name, column in columns.items():
            if named(name) not in texts:
                continue
            longer = np.fromiter((len(text) > most for text in column.ravel().tolist()), np.bool_, column.size)
            if longer.any():
                columns[name] = column.copy()
                columns[name].ravel()[longer] = [
                    # Between two characters.
                    text[:most].decode(errors="ignore").encode()
                    for text in column.ravel()[longer].tolist()
                ]
                rows = np.flatnonzero(longer) // (column.size // len(column))
                truncated[name] = truncated.get(name, np.zeros(len(column), np.bool_)).copy()
                truncated[name][rows] = True
    return replace(decoded, features=features, labels=labels, truncated=truncated)


def taken_of(decoded: Decoded, layout: WindowLayout) -> Taken:
    """Return what a state needs of a chunk."""
    columns = {of_feature(name): column for name, column in decoded.features.items()}
    columns |= {of_label(name): column for name, column in decoded.labels.items()}
    columns[TIMES] = decoded.event_times
    held = {one.name: columns[one.name] for one in layout.held}
    by = layout.options.by
    return Taken(decoded.end, decoded.offsets, held if by is None else {**held, KEYS: decoded.features[by]})


def shaped(decoded: Decoded, windows: Windows, layout: WindowLayout) -> Decoded:
    """Return the rows that a chunk gives."""
    options, rows, columns, length = layout.options, windows.rows, windows.columns, layout.length
    sequences = {field.name for field in layout.sequences}

    if not len(rows):
        return _without_rows(decoded, layout)
    features = dict[str, Column]()
    for name in decoded.features:
        if name in sequences:
            # It does of a column what is asked of one: some rows, or all.
            features[name] = cast("Column", WindowColumn(columns[of_feature(name)], windows.newest, length))
        elif of_feature(name) in layout.singles:
            features[name] = windows.singles[of_feature(name)]
        else:
            features[name] = decoded.features[name][rows]
    if options.lengths is not None:
        features[options.lengths] = windows.lengths.astype(np.int32)
    if options.gaps is not None:
        times = WindowColumn(columns[TIMES], windows.newest, length)
        features[options.gaps] = cast("Column", GapColumn(times, windows.lengths))
    labels = {
        field.name: windows.singles[of_label(field.name)]
        if of_label(field.name) in layout.singles
        else decoded.labels[field.name][rows]
        for field in layout.schema.targets
    }
    return replace(
        decoded,
        offsets=decoded.offsets[rows],
        event_times=decoded.event_times[rows],
        features=features,
        labels=labels,
        weights=None if decoded.weights is None else decoded.weights[rows],
        truncated={name: mask[rows] for name, mask in decoded.truncated.items()},
        keys=None if decoded.keys is None else decoded.keys[rows],
        timestamps=None if decoded.timestamps is None else decoded.timestamps[rows],
        # As much as its rows take when they are copied into blocks.
        nbytes=max(decoded.nbytes, len(rows) * layout.shaped.row_nbytes),
    )


def _without_rows(decoded: Decoded, layout: WindowLayout) -> Decoded:
    schema = layout.shaped

    def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Column:
        return np.empty((0, *shape), dtype)

    return replace(
        decoded,
        offsets=decoded.offsets[:0],
        event_times=decoded.event_times[:0],
        features={field.name: empty(field.shape, field.numpy_dtype) for field in schema.inputs},
        labels={field.name: empty(field.shape, field.numpy_dtype) for field in schema.targets},
        weights=None if decoded.weights is None else decoded.weights[:0],
        truncated={},
        keys=None if decoded.keys is None else decoded.keys[:0],
        timestamps=None if decoded.timestamps is None else decoded.timestamps[:0],
    )
