"""Turns the results of a call into sums for the live metrics: each record scored by the weights before its update."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.pipelines.stream.blocks import Rows
from millrace.training.recovery.isolation import Piece
from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.label_sums import Labels, LabelSums
from millrace.training.telemetry.live_metrics import Sums


def sums_of(piece: Piece, plan: BaselinePlan, batch_size: int) -> Sums:
    """Sum up the rows of one call, without those whose update was not finite."""
    rows, lesson = piece.rows, piece.lesson
    result = lesson.result
    offsets = rows.offsets.numpy()
    present = offsets >= 0
    if lesson.culprits.offsets:
        # By partition and offset: the same offset of another partition is another record.
        places = np.stack([rows.partitions.numpy(), offsets], axis=-1).astype(np.int64)
        culprits = np.array(lesson.culprits.offsets, np.int64)
        present &= ~np.isin(_as_one(places), _as_one(culprits))
    records = int(present.sum())
    # A train_step that reports no loss gives NaN for every batch; then no record counts as scored by loss.
    applied = result.finite & np.isfinite(result.losses)
    # Keras divides a batch's loss by all of its rows: times the batch size it is a sum over the rows that are present.
    loss = float(result.losses[applied].sum()) * batch_size
    sums = Sums(records, loss, records if applied.any() else 0, list(result.states))
    target = _target(rows)
    if plan.labels is not Labels.NONE and target is not None:
        labels, weights = target.numpy()[present], rows.weights.numpy()[present]
        sums.labels = sums.weighted_labels = LabelSums.over(plan.labels, labels, quantiles=plan.quantiles)
        if not (weights == 1.0).all():
            sums.weighted_labels = LabelSums.over(plan.labels, labels, weights, quantiles=plan.quantiles)
    return sums


def _target(rows: Rows) -> Any | None:
    """Return what the model is to predict, as one tensor; without a label that is its only feature."""
    target = rows.labels
    if isinstance(target, Mapping) and not target and len(rows.features) == 1:
        target = next(iter(rows.features.values()))
    if not hasattr(target, "numpy"):
        return None
    dtype = target.dtype
    return target if dtype.is_floating or dtype.is_integer or dtype.is_bool else None


def _as_one(places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """View pairs [..., 2] as one comparable value each."""
    return np.ascontiguousarray(places).view([("partition", np.int64), ("offset", np.int64)])[..., 0]
