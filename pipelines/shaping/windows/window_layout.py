"""The layout of windows: their settings, which columns become sequences, what is held, and the schema of the rows.

Pure; runs anywhere; TensorFlow is not imported here.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field as Setting

from millrace.consumers.errors import ConfigError
from millrace.consumers.section import Count
from millrace.consumers.units import Size
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping.shaper import ShapingSection

Name = Annotated[str, Setting(min_length=1)]
TIMES = "times"
_TEXT_BYTES = 48
"""The memory of a text besides its contents, with its reference in the column."""
_KEY_BYTES = 320
"""The memory of a key: itself, its entry among the keys, and its count."""


def of_feature(name: str) -> str:
    """Return the name under which a feature's column is held; a label may have the same name."""
    return f"features/{name}"


def of_label(name: str) -> str:
    """Return the name under which a label's column is held."""
    return f"labels/{name}"


class WindowOptions(ShapingSection):
    """How records become sequences of the last ones of their key."""

    length: Count | None = Setting(
        None,
        ge=1,
        le=10_000,
        description="The number of records of a sequence, the newest last. A shorter sequence is filled up in front "
        "with zeros or empty texts. Null: the model gets single records.",
    )
    by: Name | None = Setting(
        None,
        description="The feature whose value is the key, a whole number or a text; the model gets it once. Let "
        "producers use the same key, so that its records are in one partition. Null: all records of a "
        "partition are one sequence.",
        examples=["user_id"],
    )
    of: tuple[Name, ...] | None = Setting(
        None,
        min_length=1,
        description="The features that become sequences; the model gets the other features of the newest record. Null: "
        "all features but the key.",
        examples=[["amount", "merchant"]],
    )
    dilation: Count = Setting(
        1,
        ge=1,
        le=10_000,
        description="A sequence takes every this many records of the key, counted back from the newest: with 2 it "
        "takes every second one, and reaches back twice as far. All records between are held.",
    )
    every: Count = Setting(
        1,
        ge=1,
        le=10_000,
        description="One row is learnt for every this many records of a key. The records between them are skipped, and "
        "are part of later sequences.",
    )
    min_length: Count = Setting(
        1,
        ge=1,
        description="A key gives no row until it has this many records. The earlier ones are skipped, and are "
        "part of later sequences.",
    )
    lengths: Name | None = Setting(
        None,
        description="The name of one more model input, an int32: the number of records in the sequence. Null: no such "
        "input.",
    )
    gaps: Name | None = Setting(
        None,
        description="The name of one more model input, a float32 for each record of the sequence: the seconds of event "
        "time since the record before it, and 0 for the first. Null: no such input.",
    )
    max_bytes: Size = Setting(
        64 * 2**20,
        ge=1,
        description="The most memory for the last records of all keys of one partition. If it is full, the key that "
        "was seen least recently makes room for a new one, and starts empty when it comes again. The "
        "records are held twice, and are in each checkpoint.",
    )
    max_text: Size = Setting(
        64,
        ge=4,
        le=2**16,
        description="A longer text is cut to this many bytes in a sequence, and counted as truncated.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A column of which the last records of each key are held."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def text(self) -> bool:
        """Whether it holds texts."""
        return self.dtype == object

    def nbytes(self, max_text: int) -> int:
        """Return the most memory of one record's value."""
        return math.prod(self.shape) * (_TEXT_BYTES + max_text if self.text else self.dtype.itemsize)


class WindowLayout:
    """What follows from a schema and the options."""

    def __init__(self, schema: Schema, options: WindowOptions) -> None:
        """Raise ConfigError where they do not go together."""
        assert options.length is not None
        self.schema, self.options, self.length = schema, options, options.length
        self.ahead = max((label.ahead for label in schema.labels), default=0)
        """How many records after the newest of a sequence its last label comes."""
        self.history = (self.length - 1) * options.dilation + self.ahead
        """How many records before the present one a row may be made of."""
        self.sequences = self._sequences()
        """The inputs that become sequences: features, and the lengths of those that are padded lists."""
        self.in_sequences = (*(of_feature(one.name) for one in self.sequences), *([TIMES] if options.gaps else []))
        """The columns of which a row has a sequence."""
        self.singles = self._singles()
        """By column of which a row has one value, that of an earlier record: how many records before its last one."""
        self.held = self._held()
        self.key_nbytes = (
            _KEY_BYTES + options.max_text + self.history * sum(one.nbytes(options.max_text) for one in self.held)
        )
        """The most memory that a key takes."""
        fit = options.max_bytes // self.key_nbytes
        self.capacity = 1 if options.by is None else fit
        """How many keys of a partition are held."""
        if not fit:
            raise ConfigError(
                f"windows.max_bytes: {options.max_bytes} bytes hold no single key, which takes {self.key_nbytes} bytes"
            )

    @cached_property
    def shaped(self) -> Schema:
        """The schema of the rows: what the model is given."""
        options = self.options
        sequences = {field.name for field in self.sequences}
        features = list[Field]()
        for field in self.schema.features:
            if field.name in sequences:
                # Decoding has padded the lists already, and their lengths are an input of their own.
                features += [
                    replace(one, shape=(self.length, *one.shape), pad=None, length=None)
                    for one in (field, field.lengths)
                    if one is not None
                ]
            else:
                features.append(field)
        if options.lengths is not None:
            features.append(
                Field(
                    name=options.lengths,
                    source=TIMES,
                    dtype="int32",
                    min=min((options.min_length - 1) // options.dilation + 1, self.length),
                    max=self.length,
                )
            )
        if options.gaps is not None:
            features.append(Field(name=options.gaps, source=TIMES, dtype="float32", shape=(self.length,), min=0))
        return replace(self.schema, features=tuple(features))

    def facts(self) -> dict[str, Any]:
        """Return what a state depends on, as JSON: one of other facts is of other sequences."""
        return {
            "by": self.options.by,
            "history": self.history,
            "max_text": self.options.max_text,
            "held": [[one.name, one.dtype.name, list(one.shape)] for one in self.held],
        }

    def _sequences(self) -> tuple[Field, ...]:
        options, known = self.options, {field.name: field for field in self.schema.features}
        if options.by is not None:
            key = known.get(options.by)
            if key is None:
                raise ConfigError(f"windows.by: there is no feature {options.by!r}; name one of {', '.join(known)}")
            if key.shape or key.numpy_dtype.kind not in "iubO":
                raise ConfigError(
                    f"windows.by: {options.by!r} is {key.dtype}{list(key.shape) or ''}, and a key is one whole number, "
                    "or a text"
                )
        wanted = tuple(name for name in known if name != options.by) if options.of is None else options.of
        if unknown := [name for name in wanted if name not in known]:
            raise ConfigError(f"windows.of: there is no feature {unknown[0]!r}; name some of {', '.join(known)}")
        if options.by in wanted:
            raise ConfigError(f"windows.of: {options.by!r} is the key, the same in all of a sequence; leave it out")
        if not wanted:
            raise ConfigError("windows.of: no feature would be a sequence; name at least one besides the key")
        if ragged := [name for name in wanted if known[name].ragged]:
            raise ConfigError(f"windows.of: {ragged[0]!r} is ragged, and a sequence holds rows of one shape; pad it")
        added = [name for name in (options.lengths, options.gaps) if name is not None]
        taken = [field.name for field in self.schema.inputs] + added
        if twice := [name for name in added if taken.count(name) > 1]:
            raise ConfigError(f"windows: two features would be called {twice[0]!r}; give one another name")
        names = {*wanted} | {
            field.lengths.name for field in self.schema.features if field.lengths is not None and field.name in wanted
        }
        return tuple(field for field in self.schema.inputs if field.name in names)

    def _singles(self) -> dict[str, int]:
        # What is no sequence is of the newest record of one, which is a past one where a label comes later.
        sequences = {field.name for field in self.sequences}
        features = [one.name for one in self.schema.inputs if one.name not in sequences and one.name != self.options.by]
        singles = {of_feature(name): self.ahead for name in features}
        singles |= {of_label(one.name): self.ahead - one.ahead for one in self.schema.targets}
        return {name: steps for name, steps in singles.items() if steps}

    def _held(self) -> tuple[Held, ...]:
        known = {of_feature(one.name): one for one in self.schema.inputs}
        known |= {of_label(one.name): one for one in self.schema.targets}
        wanted = {*self.in_sequences, *self.singles}
        columns = [
            Held(name=name, dtype=one.numpy_dtype, shape=one.shape) for name, one in known.items() if name in wanted
        ]
        if TIMES in wanted:
            columns.append(Held(name=TIMES, dtype=np.dtype(np.int64), shape=()))
        return tuple(columns)
