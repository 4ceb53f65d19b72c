"""The rows on which a model is built, traced and examined before its first record is learnt.

Real records where there are any, made-up ones otherwise. A real record may be bad, as any record of a stream may:
rows on which the user's code raises are left out, found by halving, so that no record keeps a start from succeeding.

Made-up rows fit the schema. A field with an `example` gets that; every other field gets random values: numbers lie in
(0, 1), integers and labels are 0 or 1, so that they fit any embedding, any logarithm and nearly any loss. If a field
has rules (`min`, `max`, `one_of`), its rows keep to them, as its records will.

Owns the choice of rows; numpy only. Runs where the model is built.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.pipelines.formats.shared.made_up import of_dtype, within
from millrace.pipelines.schema import Column, Field, Schema
from millrace.pipelines.stream.record_sample import RecordSample


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows [B, …] of every feature and label."""

    features: Mapping[str, Column]
    labels: Mapping[str, Column]

    def arranged(self, order: npt.NDArray[np.int64]) -> "Probe":
        """Return the rows in another order, which may repeat some."""
        return Probe(
            features={name: column[order] for name, column in self.features.items()},
            labels={name: column[order] for name, column in self.labels.items()},
        )


def make_probe(schema: Schema, rows: int, seed: int = 1) -> Probe:
    """Make up rows that fit the schema, the same ones for the same seed."""
    random = np.random.default_rng(seed)
    features = {field.name: _column(field, rows, random) for field in schema.features}
    for field in schema.features:
        if field.pad is not None:
            features |= _of_any_length(field, features[field.name], random)
    return Probe(
        features=features,
        labels={field.name: _column(field, rows, random, label=True) for field in schema.targets},
    )


def _of_any_length(field: Field, column: Column, random: np.random.Generator) -> dict[str, Column]:
    """Cut the rows to random lengths, pad them, and add the lengths where the dataset has such a column."""
    lengths = random.integers(0, field.shape[0] + 1, len(column))
    beyond = np.arange(field.shape[0]) >= lengths[:, np.newaxis]
    cut = column.copy()
    cut[beyond] = np.array(field.pad.encode() if isinstance(field.pad, str) else field.pad, field.numpy_dtype)
    if field.lengths is None:
        return {field.name: cut}
    return {field.name: cut, field.lengths.name: lengths.astype(np.int32)}


def _column(field: Field, rows: int, random: np.random.Generator, *, label: bool = False) -> Column:
    shape = (rows, *field.shape)
    if field.example is not None:
        return np.resize(of_dtype(field, field.example), shape)
    if field.one_of is not None:
        return of_dtype(field, field.one_of)[random.integers(0, len(field.one_of), shape)]
    if field.dtype == "string":
        words: Any = random.integers(0, 1000, shape).astype("S")
        return words.astype(object)  # type: ignore[no-any-return]  # numpy says Any
    kind = field.numpy_dtype.kind
    if label and len(field.shape) == 1 and field.shape[0] > 1 and kind == "f":
        return np.eye(field.shape[0], dtype=field.numpy_dtype)[random.integers(0, field.shape[0], rows)]
    if label or kind in "iub":
        return within(random.integers(0, 2, shape), field).astype(field.numpy_dtype)
    return within(random.uniform(0.05, 0.95, shape), field).astype(field.numpy_dtype)


ReadSample = Callable[[], RecordSample | None]
"""Returns a sample of real records, or None where there is none. It may read a file or Kafka, so it is called late."""
Check = Callable[[Probe], object]
"""Runs the user's code on a probe, and raises what that raises."""
Indices = npt.NDArray[np.int64]
_ENOUGH = 8
"""With fewer real rows than this, made-up rows show more, as rows that are all alike hide what mixes them."""
_MOST_TRIES = 64


class ProbeRows:
    """Gives probes of one batch size, and knows on which rows the user's code runs."""

    def __init__(self, schema: Schema, size: int, samples: Sequence[ReadSample] = ()) -> None:
        self._schema, self._size = schema, size
        self._untried = list(samples)
        self._checks: list[Check] = []
        self._read: RecordSample | None = None
        """The sample that was read last, whole."""
        self._few: RecordSample | None = None
        """The largest sample of which too few rows run."""
        self.tried = 0
        """The number of real records on which the user's code was run."""
        self.sample = self._next_sample()
        """The real records that the probes consist of; None where they are made up."""

    def batch(self, seed: int = 1) -> Probe:
        """Return a batch, the same one for the same seed and the same sample."""
        if self.sample is None:
            return make_probe(self._schema, self._size, seed)
        order = np.random.default_rng(seed).permutation(len(self.sample))
        return self._probe(self.sample, np.resize(order, self._size))

    def samples(self) -> list[RecordSample]:
        """Return the real records as they were read, then those of them on which the user's code runs; none if none."""
        if self.sample is None or self._read is None or len(self._read) == len(self.sample):
            return [] if self.sample is None else [self.sample]
        return [self._read, self.sample]

    @contextmanager
    def without_records(self) -> Iterator[None]:
        """Give made-up rows in the meantime."""
        sample, self.sample = self.sample, None
        try:
            yield
        finally:
            self.sample = sample

    def require(self, check: Check) -> None:
        """Leave out the real rows on which the check raises; raise its error if it raises on made-up rows too.

        That error is always the one of made-up rows, so that its text holds no value of a record.
        """
        self._checks.append(check)
        checks = [check]
        while self.sample is not None:
            good = self._that_run(self.sample, checks)
            if len(good) >= min(_ENOUGH, self._size):
                self.sample = self.sample.taken(good)
                return
            if len(good) > (0 if self._few is None else len(self._few)):
                self._few = self.sample.taken(good)
            self.sample, checks = self._next_sample(), self._checks
        try:
            for one in checks:
                one(make_probe(self._schema, self._size))
        except Exception:
            if self._few is None or not len(good := self._that_run(self._few, self._checks)):
                raise
            self.sample = self._few.taken(good)

    def _next_sample(self) -> RecordSample | None:
        while self._untried:
            read = self._untried.pop(0)()
            self._read = None if read is None else read.in_order_of(self._schema)
            if self._read is not None and len(self._read):
                return self._read
        return None

    def _that_run(self, sample: RecordSample, checks: Sequence[Check]) -> Indices:
        """Return rows on which no check raises: a batch of them where there are as many, within some tries."""
        self.tried += len(sample)
        size = self._size
        untried = [np.arange(at, min(at + size, len(sample))) for at in range(0, len(sample), size)][::-1]
        good: list[Indices] = []
        for _ in range(_MOST_TRIES):
            if not untried or sum(map(len, good)) >= size:
                break
            rows = untried.pop()
            if self._runs(sample, rows, checks):
                good.append(rows)
            elif len(rows) > 1:
                # The first half is next, and searched to its end, so that single good rows are found among many bad.
                untried.extend(reversed(np.array_split(rows, 2)))
        return np.concatenate([np.empty(0, np.int64), *good])

    def _runs(self, sample: RecordSample, rows: Indices, checks: Sequence[Check]) -> bool:
        try:
            for check in checks:
                check(self._probe(sample, np.resize(rows, self._size)))
        except Exception:  # noqa: BLE001 - the user's own code may raise anything
            return False
        return True

    def _probe(self, sample: RecordSample, order: Indices) -> Probe:
        rows = sample.taken(order)
        return Probe(features=rows.features, labels=rows.labels)
