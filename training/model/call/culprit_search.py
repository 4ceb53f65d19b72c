"""The search for culprits: which records of a batch make its update not finite.

The finite guard has left out such a batch whole, so nothing of it is learnt yet. The search tries halves, each as a
call of its own: a half that gives a finite update is thereby learnt, any other is halved again, down to single records.
A replay searches in the same way, so the weights afterwards are a function of the records. Runs on the trainer's
thread, before the block is settled, so no state in between is ever visible. With `training.rows: together` a half of a
batch is no batch, and nothing is searched.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.call.compiled_call import CallResult

MOST_CALLS = 256
"""After this many calls for one batch, what is left of it is set aside untried: most of it is poisoned."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """Records set aside, by the index of their partition."""

    offsets: tuple[tuple[int, int], ...] = ()
    """(partition index, offset), sorted."""

    def by_partition(self) -> Mapping[int, int]:
        """Count the culprits of each partition, by its index."""
        return Counter(partition for partition, _ in self.offsets)


Places = Callable[[int], tuple[int, int]]
"""Given how many rows this process has, returns the number of its first one among those of all processes, and how many
all have. All that learn one model search together: each numbers the rows through, so that all try the same halves."""


def alone(present: int) -> tuple[int, int]:
    """Return the places of rows where no other process has any."""
    return 0, present


@dataclass(slots=True)
class CulpritSearch:
    """Searches the batches of one block."""

    call: Callable[[Rows], CallResult]
    spare: Callable[[], Rows]
    """Gives a batch whose rows stand in for absent ones, where this process has none of the rows to try."""
    places: Places = alone
    together: bool = False
    """Whether the loss compares rows, so that a half is another batch: then a batch is set aside whole."""
    found: list[tuple[int, int]] = field(default_factory=list)
    results: list[CallResult] = field(default_factory=list)
    outputs: list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.float32]]] = field(default_factory=list)
    """The batch, and its rows, of which these are the outputs."""

    @property
    def culprits(self) -> Culprits:
        """All culprits found so far."""
        return Culprits(tuple(sorted(self.found)))

    def search(self, batch: Rows, number: int = 0) -> None:
        """Learn what can be learnt of a batch of shape [1, B, …], and record the other rows as culprits.

        `number` is its place in the block.
        """
        offsets = batch.offsets.numpy()[0]
        partitions = batch.partitions.numpy()[0]
        present = np.flatnonzero(offsets >= 0)
        if self.together:
            self.found.extend((int(partitions[row]), int(offsets[row])) for row in present)
            return
        first, count = self.places(len(present))

        def mine(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return present[rows[(first <= rows) & (rows < first + len(present))] - first]

        # In the call that failed a single row had absent ones beside it, perhaps made of a record that is infinite even
        # without weight: here or at another member.
        if count == 1 and self._learns(batch, mine(np.arange(1)), number):
            return
        bad, calls = [np.arange(count)], 0
        # The call of the whole batch has failed already, so the first tries are its halves.
        while bad:
            rows = bad.pop()
            if len(rows) == 1 or calls >= MOST_CALLS:
                self.found.extend((int(partitions[row]), int(offsets[row])) for row in mine(rows))
                continue
            for half in np.array_split(rows, 2):
                calls += 1
                if not self._learns(batch, mine(half), number):
                    bad.append(half)

    def merged(self, first: CallResult) -> CallResult:
        """Return the block's scores, with those of the calls that the search made."""
        results, outputs = [first, *self.results], first.outputs.copy()
        for number, rows, found in self.outputs:
            outputs[number, rows] = found[: len(rows)]
        return CallResult(
            finite=np.concatenate([result.finite for result in results]),
            losses=np.concatenate([result.losses for result in results]),
            states=tuple(np.asarray(sum(group)) for group in zip(*(result.states for result in results), strict=True)),
            outputs=outputs,
        )

    def _learns(self, batch: Rows, rows: npt.NDArray[np.int64], number: int) -> bool:
        result = self.call(only(batch, rows) if len(rows) else absent(self.spare()))
        if result.finite[0]:
            self.results.append(result)
            self.outputs.append((number, rows, result.outputs[0]))
        return bool(result.finite[0])


def absent(batch: Rows) -> Rows:
    """Return the batch with all its rows absent."""
    return batch._replace(
        weights=tf.zeros_like(batch.weights),
        offsets=-tf.ones_like(batch.offsets),
        partitions=-tf.ones_like(batch.partitions),
    )


def only(batch: Rows, rows: npt.NDArray[np.int64]) -> Rows:
    """Return the batch with only these rows present; the others are copies of them, with weight 0."""
    size = int(batch.weights.shape[1])
    # Copies rather than zeros: BatchNormalization sees absent rows too, and zeros would pull its statistics towards 0.
    order = np.resize(rows, size)
    present = np.arange(size) < len(rows)

    def take(column: Any) -> Any:
        return tf.gather(column, order, axis=1)

    features, labels, weights, offsets, partitions = tf.nest.map_structure(take, batch)
    return Rows(
        features=features,
        labels=labels,
        weights=weights * tf.constant(present[None], weights.dtype),
        offsets=tf.where(present[None], offsets, tf.constant(-1, offsets.dtype)),
        partitions=partitions,
    )
