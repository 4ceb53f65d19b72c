"""Probe rows: the batches that a model is built, traced and examined on before its first record is learnt.

Real records where there are any, made-up ones otherwise. A real record may be bad, as any record of a stream may: rows
on which the user's code raises are left out, found by halving, so that no record keeps a start from succeeding.

Owns the choice of rows; runs where the model is built.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from millrace.pipelines.schema import Schema
from millrace.pipelines.stream.record_sample import RecordSample
from millrace.training.model.probes.probe_batches import Probe, make_probe

ReadSample = Callable[[], RecordSample | None]
"""Returns a sample of real records, or None where there is none. It may read a file or Kafka, so it is called late."""
Check = Callable[[Probe], None]
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
            self._read = self._untried.pop(0)()
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
