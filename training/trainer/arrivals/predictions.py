"""Predictions that wait for the labels of their records, by partition and offset. Owned by the trainer's thread."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s, Partition

MOST_BYTES = 128 * 2**20
"""The most memory of predictions that wait; more are not kept, and count as missed."""
Outputs = Sequence[npt.NDArray[np.float32]]


class Predicted(NamedTuple):
    """Predictions of one partition, by ascending offset."""

    offsets: Int64s
    outputs: Outputs
    """An array for each output of the model."""

    def at(self, rows: Any) -> "Predicted":
        """Return some of them."""
        return Predicted(self.offsets[rows], [output[rows] for output in self.outputs])

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return self.offsets.nbytes + sum(output.nbytes for output in self.outputs)


class Predictions:
    """What was predicted of records that are not settled."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """`shapes` has that of one row of each output."""
        self._shapes = shapes
        self._kept: dict[Partition, deque[Predicted]] = {}
        self._nbytes = 0

    def __len__(self) -> int:
        return sum(len(one.offsets) for pieces in self._kept.values() for one in pieces)

    def newest(self, count: int) -> npt.NDArray[np.float32] | None:
        """Return some of the answers that wait, about as many of each partition's newest; None for several outputs."""
        if len(self._shapes) != 1:
            return None
        each, found = max(1, count // max(1, len(self._kept))), list[npt.NDArray[np.float32]]()
        for pieces in self._kept.values():
            left = each
            for piece in reversed(pieces):
                [output] = piece.outputs
                found.append(output[-left:].reshape(-1, *self._shapes[0][-1:] or (1,)))
                left -= len(output)
                if left <= 0:
                    break
        return np.concatenate(found) if found else None

    def keep(self, partition: Partition, predicted: Predicted) -> None:
        """Keep predictions of offsets behind those of the partition that are kept, as long as there is room."""
        pieces = self._kept.setdefault(partition, deque())
        if pieces:
            predicted = predicted.at(predicted.offsets > pieces[-1].offsets[-1])
        if len(predicted.offsets) and self._nbytes + predicted.nbytes <= MOST_BYTES:
            pieces.append(predicted)
            self._nbytes += predicted.nbytes

    def take(self, partition: Partition, end: int) -> Predicted | None:
        """Return the predictions of a partition before an offset, and keep them no longer; None if there are none."""
        pieces, found = self._kept.get(partition, deque()), list[Predicted]()
        while pieces and pieces[0].offsets[0] < end:
            piece = pieces.popleft()
            self._nbytes -= piece.nbytes
            if piece.offsets[-1] >= end:
                rest = piece.at(piece.offsets >= end)
                pieces.appendleft(rest)
                self._nbytes += rest.nbytes
                piece = piece.at(piece.offsets < end)
            found.append(piece)
        return joined(found) if found else None

    def forget(self, partition: Partition) -> None:
        """Forget the predictions of a partition."""
        self._nbytes -= sum(one.nbytes for one in self._kept.pop(partition, ()))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of all of them, as arrays of a checkpoint."""
        found: dict[str, npt.NDArray[Any]] = {}
        for partition, pieces in self._kept.items():
            if pieces:
                whole = joined(pieces)
                found[f"{partition}/offsets"] = whole.offsets
                found |= {f"{partition}/outputs/{number}": output for number, output in enumerate(whole.outputs)}
        return found

    def load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `arrays` has returned, beside what is kept: what was predicted stays predicted."""
        for name, offsets in arrays.items():
            place, _, what = name.rpartition("/")
            if what != "offsets":
                continue
            outputs = [arrays[one] for at in range(len(arrays)) if (one := f"{place}/outputs/{at}") in arrays]
            if [output.shape[1:] for output in outputs] != [*self._shapes]:
                continue  # of another model
            partition = Partition.parse(place)
            whole = joined([Predicted(offsets, outputs), *self._kept.get(partition, ())])
            self.forget(partition)
            self.keep(partition, whole.at(np.unique(whole.offsets, return_index=True)[1]))


def joined(pieces: Sequence[Predicted] | deque[Predicted]) -> Predicted:
    """Return predictions of one partition as one."""
    columns = zip(*(one.outputs for one in pieces), strict=True)
    return Predicted(np.concatenate([one.offsets for one in pieces]), [*map(np.concatenate, columns)])
