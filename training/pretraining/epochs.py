"""Epochs over blocks of files: learnt by the same compiled call as live ones, counted, scored on what is not learnt.

Why no `model.fit`: it takes a batch of the data to build the model, fails on uneven batches over replicas, and costs
about twice as much a step as the call, which sets aside the records whose update is not finite besides. Keras'
callbacks are called as `fit` calls them, except that a training batch here is a call of several batches.

Owns the loop and the figures; runs on the thread that built the learner. It ends after the epochs, when the validation
has not become better for `patience` epochs, or with an error; then nothing is to be saved.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from millrace.consumers.reasons import Reason
from millrace.pipelines.files.visits import CountedShard, DamagedFile, Refusals, Visited, Visits
from millrace.pipelines.stream.blocks import Rows
from millrace.training.errors import StepError, op_gist
from millrace.training.model.call.compiled_call import batch_of
from millrace.training.model.call.culprit_search import CulpritSearch
from millrace.training.model.call.evaluation import Evaluation, ScoreTotals
from millrace.training.model.learner import Learner

_VALIDATION = "val_"


class EventFiles(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Writes the figures of each epoch below a folder, `train/` and `validation/`, as TensorBoard reads them.

    Under the names that Keras' own callback uses, which needs the package tensorboard, and TensorFlow does not bring
    that along. Owns the files; runs on the thread that trains.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._writers: dict[str, Any] = {}
        self._metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Write the figures of an epoch."""
        for name, value in (logs or {}).items():
            kind = "validation" if name.startswith(_VALIDATION) else "train"
            if kind not in self._writers:
                self._writers[kind] = tf.summary.create_file_writer(str(self._folder / kind))
            with self._writers[kind].as_default():
                tag = f"epoch_{name.removeprefix(_VALIDATION)}"
                tf.summary.write(tag, tf.constant(value, tf.float32), step=epoch, metadata=self._metadata)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras' signature
        for writer in self._writers.values():
            writer.close()


VALIDATION = "val_"
_SHARDS_APART = 4096
"""How many shards the call tells apart. It only needs to know which rows are present: the witness, which counts them by
shard, is bound to no partition yet, so nothing of it goes into a checkpoint."""


class Blocks(Protocol):
    """Blocks of files, epoch after epoch."""

    def epoch(self, number: int) -> Iterator[Rows]:
        """Yield the blocks of an epoch."""
        ...


class EpochProgress(Protocol):
    """Hears how far the training is, on its thread."""

    def began(self, epoch: int, rows: int) -> None:
        """Hear that an epoch over so many rows begins; the first is 1."""
        ...

    def advanced(self, rows: int, loss: float) -> None:
        """Hear that so many rows more were learnt, and the mean loss of the epoch so far."""
        ...

    def ended(self, epoch: "Epoch") -> None:
        """Hear that an epoch has ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch that has ended."""

    number: int
    """The first is 1."""
    figures: Mapping[str, float]
    """Loss and metrics while it was learnt, and those of the validation with `val_` before their names."""
    learnt: int
    seconds: float
    """Learning alone, without the validation."""
    visited: Visited
    set_aside: Mapping[Reason, int]
    left_out: Mapping[str, int]
    """The rows that give nothing to learn by a setting, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingOptions:
    """How long to train, and by what to judge."""

    epochs: int = 1
    patience: int | None = None
    """End after so many epochs without a better validation, and return to the best one; None learns all epochs."""
    watch: Sequence[str] = ("val_loss", "loss")
    """The figures that may have to become better: the first of which there is one."""
    higher_is_better: Sequence[bool] = (False, False)
    callbacks: Sequence[Any] = ()
    """Keras' own, or the user's."""
    ended: Callable[[Epoch], None] = lambda _epoch: None
    """Is called when an epoch has ended, its validation included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """The outcome."""

    epochs: Sequence[Epoch]
    best: int
    """The epoch whose weights the model has now."""
    steps: int
    """Updates of all epochs."""


@dataclass(slots=True)
class _BestEpoch:
    """The best state so far, where one is kept."""

    number: int = 0
    value: float = math.nan
    state: dict[str, Any] = field(default_factory=dict)
    """The parts of a checkpoint that a learner has, by name."""


class Pretraining:
    """Trains a learner on blocks."""

    def __init__(
        self,
        learner: Learner,
        shards: Sequence[CountedShard],
        training: Blocks,
        validation: Blocks | None,
        refusals: Refusals,
        options: PretrainingOptions,
        damaged: Sequence[DamagedFile] = (),
    ) -> None:
        """`shards` are those that are trained on, at the places that the blocks name; validation has its own.

        `damaged` files are left out, and counted.
        """
        self._learner, self._shards, self._refusals, self._options = learner, shards, refusals, options
        self._damaged = damaged
        self._training, self._validation = training, validation
        self._evaluation = Evaluation(learner.call, learner.batch_size)
        self._not_finite: set[tuple[int, int]] = set()
        self._steps = 0
        self._best = _BestEpoch()

    def run(self, progress: EpochProgress) -> Pretrained:
        """Train; raise StepError where the loss is not finite or the user's code raises."""
        options = self._options
        callbacks = keras.callbacks.CallbackList(
            [*options.callbacks], add_history=False, add_progbar=False, model=self._learner.model, epochs=options.epochs
        )
        self._learner.model.stop_training = False
        epochs = list[Epoch]()
        callbacks.on_train_begin()
        for number in range(1, options.epochs + 1):
            epochs.append(self._epoch(number, callbacks, progress))
            options.ended(epochs[-1])
            progress.ended(epochs[-1])
            if self._enough(epochs[-1]) or self._learner.model.stop_training:
                break
        callbacks.on_train_end()
        best = epochs[-1].number
        if self._best.state:
            best = self._best.number
            for part in self._learner.parts:
                part.restore(self._best.state[part.name])
        return Pretrained(epochs=epochs, best=best, steps=self._steps)

    def _epoch(self, number: int, callbacks: Any, progress: EpochProgress) -> Epoch:
        progress.began(number, sum(shard.rows for shard in self._shards))
        callbacks.on_epoch_begin(number - 1)
        visits, totals = Visits(self._shards, self._damaged), ScoreTotals()
        began, batches = time.monotonic(), 0
        for rows in self._named(self._training.epoch(number - 1), f"epoch {number}"):
            callbacks.on_train_batch_begin(batches)
            offsets, shards = rows.offsets.numpy(), rows.partitions.numpy()
            present = offsets >= 0
            visits.add(shards[present], offsets[present])
            learnt = self._learn(rows, number, totals)
            batches += offsets.shape[0]
            progress.advanced(learnt, totals.mean_loss)
            callbacks.on_train_batch_end(batches - 1, {"loss": totals.mean_loss})
        seconds = time.monotonic() - began
        self._steps += batches
        set_aside, left_out = self._set_aside(), self._refusals.by_setting()
        if not totals.rows:
            raise StepError(_nothing_learnt(number, set_aside, left_out))
        figures = self._figures(totals)
        if self._validation is not None:
            figures |= self._validated(number, callbacks)
        callbacks.on_epoch_end(number - 1, dict(figures))
        return Epoch(
            number=number,
            figures=figures,
            learnt=totals.rows,
            seconds=seconds,
            visited=visits.ended(self._refusals.of),
            set_aside=set_aside,
            left_out=left_out,
        )

    def _set_aside(self) -> Mapping[Reason, int]:
        found = self._refusals.by_reason()
        return found | ({Reason.UPDATE_NOT_FINITE: len(self._not_finite)} if self._not_finite else {})

    def _learn(self, rows: Rows, number: int, totals: ScoreTotals) -> int:
        """Learn a block; return how many rows it has taught. Rows whose update is not finite are set aside."""
        named = rows._replace(partitions=rows.partitions % _SHARDS_APART)
        try:
            again = partial(self._learner.call, visit=number - 1)
            result = again(named)
            search = CulpritSearch(again, lambda: self._learner.rows_of(self._learner.probe()))
            for index in np.flatnonzero(~result.finite).tolist():
                batch, before = batch_of(named, index), len(search.found)
                search.search(batch)
                present = int(np.count_nonzero(batch.offsets.numpy() >= 0))
                if 2 * (len(search.found) - before) > present:
                    raise StepError(
                        f"epoch {number}, after {totals.rows:,} rows: the loss is not finite for most records of a "
                        "batch; lower the learning rate, scale the features in the model, or refuse such records by "
                        "min and max; nothing was saved"
                    )
        except tf.errors.OpError as error:
            raise StepError(f"epoch {number}, after {totals.rows:,} rows: the model raised {op_gist(error)}") from error
        if search.found:
            result = search.merged(result)
            self._not_finite.update(search.found)
        learnt = int(np.count_nonzero(rows.offsets.numpy() >= 0)) - len(search.found)
        losses = result.losses[result.finite]
        totals.add(learnt, float(losses.sum()) * self._learner.batch_size, result.states)
        return learnt

    def _validated(self, number: int, callbacks: Any) -> dict[str, float]:
        assert self._validation is not None
        callbacks.on_test_begin()
        totals = self._evaluation(self._named(self._validation.epoch(0), "validation"))
        if not totals.rows:
            raise StepError(
                f"epoch {number}: none of the validation rows could be used, so the model cannot be judged: compare "
                "them with records.*, validate on another share, or on none by --validation 0; nothing was saved"
            )
        figures = {f"{VALIDATION}{name}": value for name, value in self._figures(totals).items()}
        if not self._evaluation.has_loss:
            del figures[f"{VALIDATION}loss"]
        callbacks.on_test_end(figures)
        if bad := [name for name, value in figures.items() if name == "val_loss" and not math.isfinite(value)]:
            raise StepError(
                f"epoch {number}: {bad[0]} is {figures[bad[0]]}, so the model cannot be judged: lower its learning "
                "rate, scale its features, or look at the newest files; nothing was saved"
            )
        return figures

    def _named(self, blocks: Iterator[Rows], where: str) -> Iterator[Rows]:
        """Say in one line what `preprocess` raises, without the values of any record."""
        try:
            yield from blocks
        except tf.errors.OpError as error:
            raise StepError(f"{where}: preprocess raised {op_gist(error)}; nothing was saved") from error

    def _figures(self, totals: ScoreTotals) -> dict[str, float]:
        return {"loss": totals.mean_loss, **self._learner.call.metrics.results(totals.states)}

    def _enough(self, epoch: Epoch) -> bool:
        """Keep the best state; return whether nothing has become better for as long as the patience lasts."""
        options, best = self._options, self._best
        watched = zip(options.watch, options.higher_is_better, strict=True)
        name, higher = next(((name, higher) for name, higher in watched if name in epoch.figures), (None, False))
        if options.patience is None or name is None:
            return False
        value = epoch.figures[name]
        better = value > best.value if higher else value < best.value
        # A value that is NaN is better than none, and worse than any other.
        if not best.state or better or (math.isnan(best.value) and not math.isnan(value)):
            state = {part.name: part.snapshot() for part in self._learner.parts}
            for former in best.state.values():
                former.release()
            best.number, best.value, best.state = epoch.number, value, state
        return epoch.number - best.number >= options.patience


def _nothing_learnt(number: int, set_aside: Mapping[Reason, int], left_out: Mapping[str, int]) -> str:
    """Say what became of the rows of an epoch that has learnt none."""
    became = [
        *(f"{count:,} set aside as {reason}" for reason, count in set_aside.items()),
        *(f"{count:,} left out by {setting}" for setting, count in left_out.items()),
    ]
    return (
        f"epoch {number}: no row was learnt ({', '.join(became) or 'there was none'}): compare the records with "
        "records.*, or train on others; nothing was saved"
    )
